//! Counters, and the section of `INFO` that shows them.

use super::api::server;
use super::waiting;
use redis_module::server_events::INFO_COMMAND_HANDLER_LIST;
use redis_module::{raw, InfoContext, RedisResult};
use redis_module_macros::info_command_handler;
use std::ffi::c_int;
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
    waiting: AtomicUsize,
    served_after_waiting: AtomicU64,
    gave_up_waiting: AtomicU64,
}

// SAFETY: all fields are atomic numbers, for which zero is a value.
static COUNTERS: Counters = unsafe { zeroed() };

/// Returns the counters of this server.
#[inline]
pub(crate) fn counters() -> &'static Counters {
    &COUNTERS
}

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
    pub(super) fn holds_changed(&self, before: (usize, usize), now: (usize, usize)) {
        let difference = |before: usize, now: usize| wide(now).wrapping_sub(wide(before));
        self.holds.fetch_add(difference(before.0, now.0), Ordering::Relaxed);
        self.holds_bytes.fetch_add(difference(before.1, now.1), Ordering::Relaxed);
    }

    /// Counts holds that ended unsettled.
    pub(super) fn holds_expired(&self, holds: usize) {
        if holds != 0 {
            self.holds_expired.fetch_add(wide(holds), Ordering::Relaxed);
        }
    }

    /// Counts a settlement of a hold that has ended.
    pub(crate) fn settled_late(&self) {
        add(&self.settled_late, 1);
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

    fn fields(&self) -> [(&'static str, u64); 12] {
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
            ("waiting", wide(self.waiting())),
            ("served_after_waiting", self.served_after_waiting.load(Ordering::Relaxed)),
            ("gave_up_waiting", self.gave_up_waiting.load(Ordering::Relaxed)),
        ]
    }
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// Adds the only section, named after the module.
#[info_command_handler]
fn add_counters(info: &InfoContext, for_crash_report: bool) -> RedisResult<()> {
    let fields = COUNTERS.fields().into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    // A crash may come while the queue is locked.
    let tenants = (!for_crash_report).then(waiting::all_tenants).unwrap_or_default();
    // Clients split such a field at its commas.
    let escaped = |name: &[u8]| name.escape_ascii().to_string().replace(',', "\\x2c");
    let tenants = tenants.iter().map(|(name, calls)| format!("\"{}\"={calls}", escaped(name)));
    let tenants = tenants.collect::<Vec<_>>().join(",");
    let fields = fields.chain([("waiting_tenants".to_owned(), tenants.into())]);
    info.build_one_section((String::new(), fields.collect()))
}

/// Registers the callback of `INFO`.
pub(super) fn register(context: *mut raw::RedisModuleCtx) {
    // SAFETY: the context is valid while the module is being loaded.
    unsafe { server!(RedisModule_RegisterInfoFunc)(context, Some(report)) };
}

/// Calls every handler. The crate's own function adds a backtrace to crash reports too, and taking one there ends
/// Valkey 8.1.1 in the middle of its report.
unsafe extern "C" fn report(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    let info = InfoContext::new(info);
    for handler in INFO_COMMAND_HANDLER_LIST {
        // The only error means that another section was requested.
        let _ = handler(&info, for_crash_report != 0);
    }
}
