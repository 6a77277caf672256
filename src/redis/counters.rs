//! What this server counts.

use std::mem::zeroed;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use tokenbucket_core::bucket::Outcome;
use tokenbucket_core::number::MICRO_PER_TOKEN;

/// Counts since the server started.
pub(crate) struct Counters {
    allowed: AtomicU64,
    denied: AtomicU64,
    errors: AtomicU64,
    granted_tokens: AtomicU64,
    granted_micro: AtomicI64,
    /// The server's background threads count it down, so updates are read-modify-write.
    buckets: AtomicU64,
    /// Bytes of the first value without holds. All have one size, which the allocator decides.
    value_bytes: AtomicUsize,
    /// Buckets with holds. This and the next three are updated like `buckets`.
    buckets_with_holds: AtomicU64,
    holds: AtomicU64,
    /// Bytes of buckets with holds.
    holds_bytes: AtomicU64,
    holds_expired: AtomicU64,
    settled_late: AtomicU64,
    renewed_late: AtomicU64,
    /// Updated like `buckets`.
    overrides: AtomicU64,
    waiting: AtomicUsize,
    served_after_waiting: AtomicU64,
    gave_up_waiting: AtomicU64,
    waits_refused: AtomicU64,
}

/// The counters of this server.
// SAFETY: all fields are atomic numbers, for which zero is a value.
pub(crate) static COUNTERS: Counters = unsafe { zeroed() };

/// Adds to a counter that only the server's main thread writes, without the lock of a read-modify-write.
#[inline]
fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

impl Counters {
    /// Counts the decision on a call.
    #[inline]
    pub(crate) fn decision(&self, allowed: bool) {
        add(if allowed { &self.allowed } else { &self.denied }, 1);
    }

    /// Counts tokens that left a bucket.
    #[inline]
    pub(crate) fn granted(&self, outcome: &Outcome) {
        if outcome.granted_micro == 0 {
            return;
        }
        let micro = self.granted_micro.load(Ordering::Relaxed).saturating_add(outcome.granted_micro);
        add(&self.granted_tokens, (micro / MICRO_PER_TOKEN).unsigned_abs());
        self.granted_micro.store(micro % MICRO_PER_TOKEN, Ordering::Relaxed);
    }

    /// Counts a refused call.
    pub(crate) fn error(&self) {
        add(&self.errors, 1);
    }

    pub(super) fn bucket_allocated(&self, value_bytes: impl FnOnce() -> usize) {
        self.buckets.fetch_add(1, Ordering::Relaxed);
        if self.value_bytes.load(Ordering::Relaxed) == 0 {
            self.value_bytes.store(value_bytes(), Ordering::Relaxed);
        }
    }

    pub(super) fn bucket_with_holds_allocated(&self) {
        self.buckets.fetch_add(1, Ordering::Relaxed);
        self.buckets_with_holds.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn bucket_freed(&self, had_holds: bool) {
        self.buckets.fetch_sub(1, Ordering::Relaxed);
        self.buckets_with_holds.fetch_sub(had_holds.into(), Ordering::Relaxed);
    }

    /// Counts the holds and bytes of a bucket, which had others before.
    pub(super) fn holds_changed(&self, before: (u32, u32), now: (u32, u32)) {
        let difference = |before: u32, now: u32| u64::from(now).wrapping_sub(before.into());
        self.holds.fetch_add(difference(before.0, now.0), Ordering::Relaxed);
        self.holds_bytes.fetch_add(difference(before.1, now.1), Ordering::Relaxed);
    }

    /// Counts the override of a bucket, which had one before or not.
    pub(super) fn overrides_changed(&self, before: bool, now: bool) {
        if before != now {
            self.overrides.fetch_add(u64::from(now).wrapping_sub(before.into()), Ordering::Relaxed);
        }
    }

    /// Counts holds that ended unsettled.
    pub(super) fn holds_expired(&self, holds: usize) {
        if holds != 0 {
            self.holds_expired.fetch_add(wide(holds), Ordering::Relaxed);
        }
    }

    /// Counts a settlement, or a renewal, of a hold that has ended.
    pub(crate) fn late(&self, is_renewal: bool) {
        add(if is_renewal { &self.renewed_late } else { &self.settled_late }, 1);
    }

    /// Returns how many calls wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Sets how many calls wait.
    pub(super) fn set_waiting(&self, calls: usize) {
        self.waiting.store(calls, Ordering::Relaxed);
    }

    /// Counts a wait that ended: the call was served, or gave up.
    pub(super) fn wait_ended(&self, is_served: bool) {
        add(if is_served { &self.served_after_waiting } else { &self.gave_up_waiting }, 1);
    }

    /// Returns whether one more call may wait, or counts that it may not.
    pub(super) fn has_room(&self, max_waiters: usize) -> bool {
        let has_room = self.waiting() < max_waiters;
        add(&self.waits_refused, u64::from(!has_room));
        has_room
    }

    /// Returns the numbers that `INFO` shows, by the names of their fields.
    pub(super) fn fields(&self) -> [(&'static str, u64); 15] {
        let buckets = self.buckets.load(Ordering::Relaxed);
        let without_holds = buckets.saturating_sub(self.buckets_with_holds.load(Ordering::Relaxed));
        let bytes = without_holds.saturating_mul(wide(self.value_bytes.load(Ordering::Relaxed)));
        [
            ("decisions_allowed", self.allowed.load(Ordering::Relaxed)),
            ("decisions_denied", self.denied.load(Ordering::Relaxed)),
            ("errors", self.errors.load(Ordering::Relaxed)),
            ("tokens_granted", self.granted_tokens.load(Ordering::Relaxed)),
            ("buckets", buckets),
            ("bucket_bytes", bytes.saturating_add(self.holds_bytes.load(Ordering::Relaxed))),
            ("holds", self.holds.load(Ordering::Relaxed)),
            ("holds_expired", self.holds_expired.load(Ordering::Relaxed)),
            ("settled_late", self.settled_late.load(Ordering::Relaxed)),
            ("renewed_late", self.renewed_late.load(Ordering::Relaxed)),
            ("overrides", self.overrides.load(Ordering::Relaxed)),
            ("waiting", wide(self.waiting())),
            ("served_after_waiting", self.served_after_waiting.load(Ordering::Relaxed)),
            ("gave_up_waiting", self.gave_up_waiting.load(Ordering::Relaxed)),
            ("waits_refused", self.waits_refused.load(Ordering::Relaxed)),
        ]
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
