//! Deciding: applies an operation to a bucket at a moment, and computes how long to wait for missing tokens.

use super::{
    Bucket, Change, Counting, DebtTooDeep, Decision, Expiring, Limit, NoHolds, Operation, Outcome,
    DEEPEST_DEBT_MICRO, MAX_TIME_US,
};
use crate::cast::signed;
use crate::number::{MAX_MICRO, MICRO_PER_TOKEN};

/// Waiting never helps: the cost is above the capacity, or nothing flows in.
pub const NEVER_MS: i64 = -1;

impl Limit {
    /// Decides `operation` on what is stored (`None`: a full bucket) at `now_us` Unix microseconds.
    ///
    /// # Errors
    /// [`DebtTooDeep`] from [`Operation::Charge`] alone.
    #[inline(always)] // Callers know the operation, and all others fold away.
    pub fn decide(
        &self,
        stored: Option<Bucket>,
        operation: Operation,
        now_us: i64,
    ) -> Result<Outcome, DebtTooDeep> {
        self.decide_with(stored, NoHolds, operation, now_us)
    }

    /// Decides on a bucket with outstanding holds.
    ///
    /// # Errors
    /// As of [`decide`](Self::decide).
    #[inline(always)]
    pub fn decide_with(
        &self,
        stored: Option<Bucket>,
        expiring: impl Expiring,
        operation: Operation,
        now_us: i64,
    ) -> Result<Outcome, DebtTooDeep> {
        let view = View::new(self, stored, expiring, now_us);
        match operation {
            Operation::Take { cost_micro } => Ok(view.take(cost_micro)),
            Operation::TakeUpTo { max_tokens } => Ok(view.take_up_to(max_tokens)),
            Operation::Reserve { cost_micro, max_wait_ms } => Ok(view.reserve(cost_micro, max_wait_ms)),
            Operation::Charge { amount_micro } => view.charge(amount_micro),
            Operation::Give { amount_micro } => Ok(view.give(amount_micro)),
        }
    }

    /// Returns the outcome of a bucket that allows its part of a call, if another bucket denies the call. It takes nothing;
    /// like a denial, it stores the new time if the clock stepped back.
    #[must_use]
    pub fn denied_by_another(&self, stored: Option<Bucket>, expiring: impl Expiring, now_us: i64) -> Outcome {
        let denied = View::new(self, stored, expiring, now_us).denied(0);
        Outcome { decision: Decision { allowed: 1, ..denied.decision }, ..denied }
    }

    /// Denies a call of `cost_micro` because other calls wait for the bucket and want `ahead_micro` together. Its wait
    /// assumes that they are served first; it is an estimate, at least a millisecond.
    #[must_use]
    pub fn denied_behind(
        &self,
        stored: Option<Bucket>,
        expiring: impl Expiring,
        cost_micro: i64,
        ahead_micro: i64,
        now_us: i64,
    ) -> Outcome {
        let view = View::new(self, stored, expiring, now_us);
        view.denied(view.wait_behind(cost_micro, ahead_micro))
    }

    /// Returns the microseconds from `now_us` until the stored bucket reaches `level_micro` if nothing is taken; 0 if it has.
    #[must_use]
    pub fn wait_us(&self, stored: Option<Bucket>, level_micro: i64, now_us: i64) -> i64 {
        self.wait_after_us(stored, NoHolds, Change::Keep, level_micro, now_us)
    }

    /// Returns the wait after `change` was made.
    #[must_use]
    pub fn wait_after_us(
        &self,
        stored: Option<Bucket>,
        expiring: impl Expiring,
        change: Change,
        level_micro: i64,
        now_us: i64,
    ) -> i64 {
        let view = View::new(self, stored, expiring, now_us);
        let at_us = match change {
            Change::Keep => view.reaches_at_us(view.stored, view.included_until_us, level_micro),
            Change::Store { bucket, .. } => view.reaches_at_us(bucket, view.now_us, level_micro),
            Change::Clear => view.now_us,
        };
        let at_us = if view.is_suspended() && level_micro > 0 { i64::MAX } else { at_us };
        at_us.min(view.limit_until_us).wrapping_sub(view.now_us).max(0)
    }
}

/// A bucket as one call sees it.
pub(crate) struct View<'limit, R> {
    /// The limit that counts.
    pub(crate) limit: &'limit Limit,
    /// Its holds.
    expiring: R,
    /// Micro-tokens of holds that have ended, which the stored level does not include yet.
    expired_micro: i64,
    /// Until when the stored level includes ended holds.
    included_until_us: i64,
    pub(crate) now_us: i64,
    /// Until when its limit counts: no wait in a reply goes beyond.
    limit_until_us: i64,
    /// The clock is behind the last refill: a denial has to write, or the bucket would not refill until then.
    stepped_back: bool,
    /// The bucket that the next call finds if this one writes nothing, or only the new time after a step back.
    stored: Bucket,
    /// The stored bucket, refilled up to now.
    pub(crate) current: Bucket,
    /// The stored level, which may be above this limit's capacity.
    stored_level_micro: i64,
}

impl<'limit, R: Expiring + 'limit> View<'limit, R> {
    /// Sees a bucket as a call that brings the limit `own`.
    #[inline(always)]
    pub(crate) fn new(own: &'limit Limit, stored: Option<Bucket>, expiring: R, now_us: i64) -> Self {
        let now_us = now_us.clamp(0, MAX_TIME_US);
        let Counting { limit, bucket, included_until_us } = expiring.counting(own, stored, now_us);
        let found = bucket.unwrap_or_else(|| limit.full(now_us));
        let stored = Bucket {
            // A smaller capacity than at the last write: what is above it no longer counts.
            level_micro: found.level_micro.min(limit.capacity_micro),
            refilled_at_us: found.refilled_at_us.min(now_us),
        };
        let expired_micro = expiring.returned_micro(included_until_us, now_us);
        let current = limit.refill(stored, expired_micro, now_us);
        Self {
            limit,
            expiring,
            expired_micro,
            included_until_us,
            now_us,
            limit_until_us: expiring.limit_until_us(now_us),
            stepped_back: now_us < found.refilled_at_us,
            stored,
            current,
            stored_level_micro: found.level_micro,
        }
    }

    /// Sees a bucket of `now_us` at most, which includes all holds that have ended, under the limit that counts.
    #[inline(always)]
    pub(crate) fn of(limit: &'limit Limit, bucket: Bucket, expiring: R, now_us: i64) -> Self {
        let now_us = now_us.clamp(0, MAX_TIME_US);
        Self {
            limit,
            expiring,
            expired_micro: 0,
            included_until_us: now_us,
            now_us,
            limit_until_us: expiring.limit_until_us(now_us),
            stepped_back: false,
            stored: bucket,
            current: bucket,
            stored_level_micro: bucket.level_micro,
        }
    }

    #[inline(always)]
    fn take(&self, cost_micro: i64) -> Outcome {
        if cost_micro > self.available_micro() {
            return self.denied(self.wait_for(cost_micro));
        }
        if cost_micro == 0 {
            return self.unchanged(1, 0);
        }
        self.taken(1, cost_micro, 0)
    }

    #[inline]
    fn take_up_to(&self, max_tokens: i64) -> Outcome {
        let granted = self.available_micro().div_euclid(MICRO_PER_TOKEN).min(max_tokens);
        if granted < 1 {
            return self.denied(self.wait_for(MICRO_PER_TOKEN));
        }
        self.taken(granted, granted.saturating_mul(MICRO_PER_TOKEN), 0)
    }

    #[inline]
    fn reserve(&self, cost_micro: i64, max_wait_ms: i64) -> Outcome {
        let wait_ms = self.wait_for(cost_micro);
        if wait_ms == NEVER_MS || wait_ms > max_wait_ms {
            return self.denied(wait_ms);
        }
        if cost_micro == 0 {
            return self.unchanged(1, wait_ms);
        }
        if is_too_deep(self.after(cost_micro)) {
            return self.denied(wait_ms);
        }
        self.taken(1, cost_micro, wait_ms)
    }

    #[inline]
    fn charge(&self, amount_micro: i64) -> Result<Outcome, DebtTooDeep> {
        if amount_micro == 0 {
            return Ok(self.unchanged(1, self.wait_for(0)));
        }
        let after = self.after(amount_micro);
        if is_too_deep(after) {
            return Err(DebtTooDeep);
        }
        Ok(self.taken(1, amount_micro, self.debt_free_in_ms(after)))
    }

    #[inline]
    fn give(&self, amount_micro: i64) -> Outcome {
        let room_micro = self.limit.capacity_micro.wrapping_sub(self.current.level_micro);
        if amount_micro == 0 || room_micro == 0 {
            return self.unchanged(1, 0);
        }
        if amount_micro < room_micro {
            let given = self.taken(1, amount_micro.saturating_neg(), 0);
            return Outcome { granted_micro: 0, ..given };
        }
        let decision = self.decision(1, self.limit.capacity_micro, 0, self.now_us);
        Outcome { decision, change: self.filled(), granted_micro: 0 }
    }

    /// Returns the write of a bucket that is full now: it is stored only while it has outstanding holds.
    #[inline]
    pub(crate) fn filled(&self) -> Change {
        let last_end_us = self.expiring.last_end_us();
        if last_end_us <= self.now_us {
            return Change::Clear;
        }
        Change::Store { bucket: self.limit.full(self.now_us), full_at_us: last_end_us }
    }

    /// Returns whether nothing may be taken, whatever the level.
    #[inline(always)]
    fn is_suspended(&self) -> bool {
        self.expiring.is_suspended(self.now_us)
    }

    /// Returns what may be taken now.
    #[inline(always)]
    pub(crate) fn available_micro(&self) -> i64 {
        self.available_of(self.current.level_micro)
    }

    #[inline(always)]
    fn available_of(&self, level_micro: i64) -> i64 {
        if self.is_suspended() {
            level_micro.min(0)
        } else {
            level_micro
        }
    }

    /// Returns whether no wait makes a take of `cost_micro` possible.
    #[inline(always)]
    fn is_impossible(&self, cost_micro: i64) -> bool {
        cost_micro > self.limit.capacity_micro || (self.is_suspended() && cost_micro > 0)
    }

    /// Returns the bucket after taking `micro` now.
    #[inline]
    pub(crate) fn after(&self, micro: i64) -> Bucket {
        let level_micro = self.current.level_micro.wrapping_sub(micro);
        Bucket { level_micro, ..self.current }
    }

    /// Returns the bucket after taking `micro` now, never above the capacity.
    pub(crate) fn at_most_full(&self, micro: i64) -> Bucket {
        let after = self.after(micro);
        if after.level_micro >= self.limit.capacity_micro {
            return self.limit.full(self.now_us);
        }
        after
    }

    /// Returns an outcome that takes `micro` (puts back, if negative).
    #[inline(always)]
    fn taken(&self, allowed: i64, micro: i64, retry_after_ms: i64) -> Outcome {
        let bucket = self.after(micro);
        let full_at_us = self.full_at_us(bucket, self.now_us);
        let decision = self.decision(allowed, bucket.level_micro, retry_after_ms, full_at_us);
        let full_at_us = full_at_us.max(self.expiring.last_end_us());
        Outcome { decision, change: Change::Store { bucket, full_at_us }, granted_micro: micro }
    }

    /// Returns an outcome that changes nothing.
    #[inline(always)]
    pub(crate) fn unchanged(&self, allowed: i64, retry_after_ms: i64) -> Outcome {
        let full_at_us = self.full_at_us(self.stored, self.included_until_us);
        let decision = self.decision(allowed, self.current.level_micro, retry_after_ms, full_at_us);
        Outcome { decision, change: Change::Keep, granted_micro: 0 }
    }

    /// Returns the outcome for a hold that is not there, which no wait brings back.
    pub(crate) fn late(&self) -> Outcome {
        let unchanged = self.unchanged(0, NEVER_MS);
        Outcome { decision: Decision { retry_after_ms: NEVER_MS, ..unchanged.decision }, ..unchanged }
    }

    /// Returns a denial. It writes only if the clock stepped back, so that the bucket continues from the new time.
    #[inline(always)]
    pub(crate) fn denied(&self, retry_after_ms: i64) -> Outcome {
        let denied = self.unchanged(0, retry_after_ms);
        if !self.stepped_back {
            return denied;
        }
        // A level above this limit's capacity stays, for calls with a larger one: a denial takes nothing.
        let level_micro = self.stored_level_micro.wrapping_add(self.expired_micro).min(MAX_MICRO);
        let bucket = Bucket { level_micro, ..self.stored };
        let full_at_us = self.full_at_us(bucket, self.now_us).max(self.expiring.last_end_us());
        Outcome { change: Change::Store { bucket, full_at_us }, ..denied }
    }

    #[inline(always)]
    pub(crate) fn decision(
        &self,
        allowed: i64,
        level_micro: i64,
        retry_after_ms: i64,
        full_at_us: i64,
    ) -> Decision {
        let remaining = self.available_of(level_micro).div_euclid(MICRO_PER_TOKEN);
        let retry_after_ms = self.at_most_to_the_end(retry_after_ms);
        let full_at_us = if self.is_suspended() { i64::MAX } else { full_at_us };
        let reset_after_ms = self.at_most_to_the_end(self.wait_until_ms(full_at_us));
        Decision { allowed, remaining, retry_after_ms, reset_after_ms }
    }

    /// Returns a wait that ends with the limit at the latest: nothing is known of the next one.
    #[inline(always)]
    fn at_most_to_the_end(&self, wait_ms: i64) -> i64 {
        if self.limit_until_us == i64::MAX {
            return wait_ms;
        }
        let left_ms = self.ms_until(self.limit_until_us);
        if wait_ms == NEVER_MS {
            left_ms
        } else {
            wait_ms.min(left_ms)
        }
    }

    #[inline]
    pub(crate) fn full_at_us(&self, bucket: Bucket, included_until_us: i64) -> i64 {
        self.reaches_at_us(bucket, included_until_us, self.limit.capacity_micro)
    }

    #[inline]
    fn reaches_at_us(&self, bucket: Bucket, included_until_us: i64, level_micro: i64) -> i64 {
        self.expiring.reaches_at_us(&self.limit.rate, bucket, included_until_us, level_micro)
    }

    /// Returns the wait until a take of `cost_micro` is allowed.
    #[inline]
    pub(crate) fn wait_for(&self, cost_micro: i64) -> i64 {
        if self.is_impossible(cost_micro) {
            return NEVER_MS;
        }
        self.wait_until_ms(self.reaches_at_us(self.stored, self.included_until_us, cost_micro))
    }

    /// Returns the wait until a take of `cost_micro` is allowed, if others take `ahead_micro` first.
    fn wait_behind(&self, cost_micro: i64, ahead_micro: i64) -> i64 {
        if self.is_impossible(cost_micro) {
            return NEVER_MS;
        }
        let level_micro = self.stored.level_micro.saturating_sub(ahead_micro).max(DEEPEST_DEBT_MICRO);
        let at_us =
            self.reaches_at_us(Bucket { level_micro, ..self.stored }, self.included_until_us, cost_micro);
        let is_foreseeable = at_us <= MAX_TIME_US || !self.limit.is_pool();
        // A pool refills when the calls ahead end their holds, at an unknown time. It may have no hold now.
        let at_us = if is_foreseeable { at_us } else { self.expiring.last_end_us().max(self.now_us) };
        self.ms_until(at_us).max(1)
    }

    #[inline]
    pub(crate) fn debt_free_in_ms(&self, bucket: Bucket) -> i64 {
        if bucket.level_micro >= 0 {
            return 0;
        }
        self.wait_until_ms(self.reaches_at_us(bucket, self.now_us, 0))
    }

    /// Returns the wait until `at_us`; [`NEVER_MS`] for a pool whose holds do not return enough.
    #[inline]
    fn wait_until_ms(&self, at_us: i64) -> i64 {
        if at_us > MAX_TIME_US {
            return self.wait_beyond_time_ms(at_us);
        }
        self.ms_until(at_us)
    }

    #[cold] // Each take paid for the comparison of its rate.
    fn wait_beyond_time_ms(&self, at_us: i64) -> i64 {
        match self.limit.is_pool() {
            true => NEVER_MS,
            false => self.ms_until(at_us),
        }
    }

    /// Returns the moment `wait_ms` from now, which is in the past for [`NEVER_MS`].
    pub(crate) fn after_ms(&self, wait_ms: i64) -> i64 {
        self.now_us.saturating_add(wait_ms.saturating_mul(1000))
    }

    /// Returns milliseconds from now to `at_us`, rounded up, 0 for the past.
    #[inline]
    fn ms_until(&self, at_us: i64) -> i64 {
        let wait_us = at_us.wrapping_sub(self.now_us).max(0).unsigned_abs();
        signed(wait_us.wrapping_add(999) / 1000)
    }
}

#[inline]
pub(crate) fn is_too_deep(bucket: Bucket) -> bool {
    bucket.level_micro < DEEPEST_DEBT_MICRO
}
