//! The algorithm: a bucket, its limit, what can be done to it, and what is decided.
//!
//! A bucket is two numbers: how many tokens it held when it was last refilled, and when that was. Nothing runs in
//! the background; whoever looks adds what has flowed in since. Everything here is integer arithmetic on
//! micro-tokens and microseconds, with the time as an argument: no clock, no Redis, no allocation, no failure but
//! [`DebtTooDeep`]. What comes back by itself, the holds of a bucket, is a parameter ([`Returns`]): most buckets have
//! none, and pay nothing for those that do.
//!
//! # Why no token is ever lost or won by rounding
//!
//! A refill seldom ends on a whole micro-token. Dropping the rest at each call would starve a slow bucket that is
//! asked often: at one token a day, a microsecond brings a hundred-thousandth of a micro-token, and a client that
//! polls would never see one. So the rest is *dated back*: the new refill time is as many whole microseconds ago
//! as the rest took to flow. What is lost per write is less than a micro-token, or less than what flows in one
//! microsecond, whichever is smaller; at a whole number of tokens per second it is nothing at all. And a call
//! that is denied stores nothing, so polling costs nothing either.
//!
//! # Why nothing overflows
//!
//! Levels and capacities are within ±10^18, times within 2^60, what flows and how long it takes within 2^62, what
//! holds bring back within 2^61. All sums below are of two of these, or of a level, a flow and what holds bring, which
//! fits 64 bits; they are written as wrapping, because a saturating addition costs five times as much and would never
//! saturate.
//!
//! # Why the waits are honest
//!
//! Waits are solved from the state that the next call will find: the stored one when nothing was taken, the new
//! one otherwise. The smallest time at which the level *as computed then* suffices is an exact integer ceiling.

use crate::cast::signed;
use crate::holds::Holds;
use crate::number::{MAX_MICRO, MICRO_PER_TOKEN};
use crate::rate::Rate;

/// The latest moment a bucket may bear, in Unix microseconds (about the year 38,500): leaves room for sums.
pub const MAX_TIME_US: i64 = 1 << 60;

/// The level of the deepest debt, in micro-tokens: -10^12 tokens.
pub const DEEPEST_DEBT_MICRO: i64 = -MAX_MICRO;

/// What one key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Micro-tokens at the last refill; negative while in debt: [`DEEPEST_DEBT_MICRO`] to [`MAX_MICRO`].
    pub level_micro: i64,
    /// When that was, in Unix microseconds: 0 to [`MAX_TIME_US`].
    pub refilled_at_us: i64,
}

/// How much a bucket holds and how fast it refills. It comes with every call and is stored nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    capacity_micro: i64,
    rate: Rate,
}

/// What a caller wants of one bucket. Amounts are in micro-tokens, 0 to [`MAX_MICRO`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// All of the cost, or nothing.
    Take {
        /// What the call costs.
        cost_micro: i64,
    },
    /// As many whole tokens as there are.
    TakeUpTo {
        /// The most that is wanted, in whole tokens: 1 to [`MAX_TOKENS`](crate::number::MAX_TOKENS).
        max_tokens: i64,
    },
    /// All of the cost, into debt if need be, unless paying it off takes too long.
    Reserve {
        /// What the call costs.
        cost_micro: i64,
        /// The longest wait that the caller accepts.
        max_wait_ms: i64,
    },
    /// The amount whatever the level: the work is already done.
    Charge {
        /// What the work cost.
        amount_micro: i64,
    },
    /// The amount back, never above the capacity.
    Give {
        /// What was not used.
        amount_micro: i64,
    },
}

/// What a caller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// 1 or 0; for [`Operation::TakeUpTo`] the number of tokens granted.
    pub allowed: i64,
    /// Whole tokens left, rounded down; negative while in debt.
    pub remaining: i64,
    /// Milliseconds to wait, rounded up; -1 if waiting never helps.
    pub retry_after_ms: i64,
    /// Milliseconds until the bucket is full, rounded up; -1 if it never will be.
    pub reset_after_ms: i64,
}

/// What a decision does to the stored bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing was written, and nothing may leave a trace.
    Keep,
    /// Store this bucket, which is full at `full_at_us` Unix microseconds if nobody takes any more.
    Store {
        /// The new state.
        bucket: Bucket,
        /// When the bucket is the same as no bucket.
        full_at_us: i64,
    },
    /// The bucket is full: forget it.
    Clear,
}

/// A decision, and the write that follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The reply.
    pub decision: Decision,
    /// The write.
    pub change: Change,
    /// Micro-tokens that left the bucket.
    pub granted_micro: i64,
}

/// A charge would take the level below -10^12 tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DebtTooDeep;

/// Waiting never helps: the cost is above the capacity, or nothing flows in.
const NEVER_MS: i64 = -1;

/// What comes back to a bucket by itself, at moments that are known.
pub trait Returns: Copy {
    /// What has come back by `now_us`, in micro-tokens; saturates at 2^61, which fills any bucket.
    fn ended_micro(self, now_us: i64) -> i64;

    /// When the last of it comes back, in Unix microseconds; the smallest number if nothing does.
    fn last_end_us(self) -> i64;

    /// The moment at which `bucket` holds `level_micro`, if nobody takes; possibly in the past. What has come back by
    /// `counted_us` is in its level already.
    fn reaches_at_us(self, rate: &Rate, bucket: Bucket, counted_us: i64, level_micro: i64) -> i64;
}

/// Nothing is held, and nothing comes back.
#[derive(Clone, Copy, Debug)]
pub struct NoReturns;

impl Returns for NoReturns {
    #[inline(always)]
    fn ended_micro(self, _now_us: i64) -> i64 {
        0
    }

    #[inline(always)]
    fn last_end_us(self) -> i64 {
        i64::MIN
    }

    #[inline(always)]
    fn reaches_at_us(self, rate: &Rate, bucket: Bucket, _counted_us: i64, level_micro: i64) -> i64 {
        let missing_micro = level_micro.wrapping_sub(bucket.level_micro);
        rate.reaches_at_us(bucket.refilled_at_us, missing_micro)
    }
}

impl Bucket {
    /// A bucket that is not decided about yet.
    pub const EMPTY: Self = Self { level_micro: 0, refilled_at_us: 0 };

    /// Takes over a state from outside, or `None` if no bucket can be in it.
    #[must_use]
    pub fn checked(level_micro: i64, refilled_at_us: i64) -> Option<Self> {
        let bucket = Self { level_micro, refilled_at_us };
        (bucket == Self::nearest(level_micro, refilled_at_us)).then_some(bucket)
    }

    /// The bucket closest to a state from outside, which may be one that no bucket can be in.
    #[must_use]
    pub fn nearest(level_micro: i64, refilled_at_us: i64) -> Self {
        Self {
            level_micro: level_micro.clamp(DEEPEST_DEBT_MICRO, MAX_MICRO),
            refilled_at_us: refilled_at_us.clamp(0, MAX_TIME_US),
        }
    }
}

impl Limit {
    /// A bucket that holds at most `capacity_micro` (0 to [`MAX_MICRO`]) and refills at `rate`.
    ///
    /// `None` if refilling it from empty would take more than 100 years.
    #[must_use]
    pub fn new(capacity_micro: i64, rate: Rate) -> Option<Self> {
        rate.refills_within_a_century(capacity_micro).then_some(Self { capacity_micro, rate })
    }

    /// A bucket that holds at most `capacity_micro`, into which nothing flows but what was held.
    #[must_use]
    pub fn pool(capacity_micro: i64) -> Self {
        Self { capacity_micro, rate: Rate::NOTHING }
    }

    /// Whether it is a [`pool`](Self::pool).
    #[must_use]
    pub fn is_pool(&self) -> bool {
        self.rate == Rate::NOTHING
    }

    /// The capacity in micro-tokens.
    #[must_use]
    pub fn capacity_micro(&self) -> i64 {
        self.capacity_micro
    }

    /// Decides `operation` on what is stored (`None`: a full bucket) at `now_us` Unix microseconds.
    ///
    /// # Errors
    /// [`DebtTooDeep`] from [`Operation::Charge`] alone.
    #[inline(always)] // The operation is known where it is called, and all others fold away.
    pub fn decide(
        &self,
        stored: Option<Bucket>,
        operation: Operation,
        now_us: i64,
    ) -> Result<Outcome, DebtTooDeep> {
        self.decide_with(stored, NoReturns, operation, now_us)
    }

    /// The same on a bucket to which something comes back by itself.
    ///
    /// # Errors
    /// As of [`decide`](Self::decide).
    #[inline(always)]
    pub fn decide_with(
        &self,
        stored: Option<Bucket>,
        returns: impl Returns,
        operation: Operation,
        now_us: i64,
    ) -> Result<Outcome, DebtTooDeep> {
        let view = View::new(self, stored, returns, now_us);
        match operation {
            Operation::Take { cost_micro } => Ok(view.take(cost_micro)),
            Operation::TakeUpTo { max_tokens } => Ok(view.take_up_to(max_tokens)),
            Operation::Reserve { cost_micro, max_wait_ms } => Ok(view.reserve(cost_micro, max_wait_ms)),
            Operation::Charge { amount_micro } => view.charge(amount_micro),
            Operation::Give { amount_micro } => Ok(view.give(amount_micro)),
        }
    }

    /// What becomes of a bucket that would have allowed its part of a call which another bucket denies: it is told
    /// as it is and nothing is taken, but it counts on from the new time after a step back, like the one that denies.
    #[must_use]
    pub fn withhold(&self, stored: Option<Bucket>, returns: impl Returns, now_us: i64) -> Outcome {
        let denied = View::new(self, stored, returns, now_us).denied(0);
        Outcome { decision: Decision { allowed: 1, ..denied.decision }, ..denied }
    }

    /// Microseconds from `now_us` until what is stored holds `level_micro`, if nobody takes; 0 if it does already.
    #[must_use]
    pub fn wait_us(&self, stored: Option<Bucket>, level_micro: i64, now_us: i64) -> i64 {
        self.wait_after_us(stored, NoReturns, Change::Keep, level_micro, now_us)
    }

    /// The same once `change` was made.
    #[must_use]
    pub fn wait_after_us(
        &self,
        stored: Option<Bucket>,
        returns: impl Returns,
        change: Change,
        level_micro: i64,
        now_us: i64,
    ) -> i64 {
        let view = View::new(self, stored, returns, now_us);
        let at_us = match change {
            Change::Keep => view.reaches_at_us(view.untouched, EVERYTHING, level_micro),
            Change::Store { bucket, .. } => view.reaches_at_us(bucket, view.now_us, level_micro),
            Change::Clear => view.now_us,
        };
        at_us.wrapping_sub(view.now_us).max(0)
    }

    /// The bucket that will be full at `full_at_us`, as far as levels and times go in whole numbers; rounded down.
    ///
    /// Limiters that keep no level keep this moment instead (the theoretical arrival time of GCRA).
    #[must_use]
    pub fn full_at(&self, full_at_us: i64, now_us: i64) -> Bucket {
        let now_us = now_us.clamp(0, MAX_TIME_US);
        let missing = self.rate.flow_up(now_us, full_at_us);
        let level_micro = self.capacity_micro.wrapping_sub(missing.micro).max(DEEPEST_DEBT_MICRO);
        // Rounding up what is missing is dated back like the rest of a refill.
        let refilled_at_us = now_us.saturating_sub(missing.carry_us).max(0);
        Bucket { level_micro, refilled_at_us }
    }

    /// Adds what flowed in since the last refill, and what came back, never beyond the capacity.
    ///
    /// `now_us` before the last refill counts as no time passing: a clock that steps back must not create
    /// tokens, nor lock the bucket until it has caught up.
    #[inline]
    fn refill(&self, bucket: Bucket, returned_micro: i64, now_us: i64) -> Bucket {
        let flow = self.rate.flow(bucket.refilled_at_us, now_us);
        let level_micro = bucket.level_micro.wrapping_add(flow.micro).wrapping_add(returned_micro);
        if level_micro >= self.capacity_micro {
            return self.full(now_us);
        }
        Bucket { level_micro, refilled_at_us: now_us.wrapping_sub(flow.carry_us) }
    }

    #[inline]
    fn full(&self, now_us: i64) -> Bucket {
        Bucket { level_micro: self.capacity_micro, refilled_at_us: now_us }
    }
}

/// From which moment on returns count that are in no level yet: all of them.
const EVERYTHING: i64 = i64::MIN;

/// A bucket as one call sees it.
struct View<'limit, R> {
    limit: &'limit Limit,
    /// What comes back by itself.
    returns: R,
    /// The part of it that has come back by now, and is in no stored level yet.
    returned_micro: i64,
    now_us: i64,
    /// The clock is behind the last refill: a denial has to write, or the bucket would stand still until then.
    stepped_back: bool,
    /// What the next call finds if this one writes nothing (or nothing but the new time after a step back).
    untouched: Bucket,
    /// The same brought up to now: what can be taken from.
    current: Bucket,
    /// What is stored, whatever this limit makes of it.
    stored_level_micro: i64,
}

impl<'limit, R: Returns> View<'limit, R> {
    #[inline(always)]
    fn new(limit: &'limit Limit, stored: Option<Bucket>, returns: R, now_us: i64) -> Self {
        let now_us = now_us.clamp(0, MAX_TIME_US);
        let found = stored.unwrap_or_else(|| limit.full(now_us));
        let untouched = Bucket {
            // A smaller capacity than at the last write: what is above it no longer counts.
            level_micro: found.level_micro.min(limit.capacity_micro),
            refilled_at_us: found.refilled_at_us.min(now_us),
        };
        let returned_micro = returns.ended_micro(now_us);
        let current = limit.refill(untouched, returned_micro, now_us);
        Self {
            limit,
            returns,
            returned_micro,
            now_us,
            stepped_back: now_us < found.refilled_at_us,
            untouched,
            current,
            stored_level_micro: found.level_micro,
        }
    }

    #[inline(always)]
    fn take(&self, cost_micro: i64) -> Outcome {
        if cost_micro > self.current.level_micro {
            return self.denied(self.wait_for(cost_micro));
        }
        if cost_micro == 0 {
            return self.untouched(1, 0);
        }
        self.moved(1, cost_micro, 0)
    }

    #[inline]
    fn take_up_to(&self, max_tokens: i64) -> Outcome {
        let granted = self.current.level_micro.div_euclid(MICRO_PER_TOKEN).min(max_tokens);
        if granted < 1 {
            return self.denied(self.wait_for(MICRO_PER_TOKEN));
        }
        self.moved(granted, granted.saturating_mul(MICRO_PER_TOKEN), 0)
    }

    #[inline]
    fn reserve(&self, cost_micro: i64, max_wait_ms: i64) -> Outcome {
        let wait_ms = self.wait_for(cost_micro);
        if wait_ms == NEVER_MS || wait_ms > max_wait_ms {
            return self.denied(wait_ms);
        }
        if cost_micro == 0 {
            return self.untouched(1, wait_ms);
        }
        if is_too_deep(self.after(cost_micro)) {
            return self.denied(wait_ms);
        }
        self.moved(1, cost_micro, wait_ms)
    }

    #[inline]
    fn charge(&self, amount_micro: i64) -> Result<Outcome, DebtTooDeep> {
        if amount_micro == 0 {
            return Ok(self.untouched(1, self.wait_for(0)));
        }
        let after = self.after(amount_micro);
        if is_too_deep(after) {
            return Err(DebtTooDeep);
        }
        Ok(self.moved(1, amount_micro, self.debt_free_in_ms(after)))
    }

    #[inline]
    fn give(&self, amount_micro: i64) -> Outcome {
        let room_micro = self.limit.capacity_micro.wrapping_sub(self.current.level_micro);
        if amount_micro == 0 || room_micro == 0 {
            return self.untouched(1, 0);
        }
        if amount_micro < room_micro {
            let given = self.moved(1, amount_micro.saturating_neg(), 0);
            return Outcome { granted_micro: 0, ..given };
        }
        let decision = self.decision(1, self.limit.capacity_micro, 0, self.now_us);
        Outcome { decision, change: self.filled(), granted_micro: 0 }
    }

    /// What becomes of a bucket that is full now: no bucket, unless something is held that comes back.
    #[inline]
    fn filled(&self) -> Change {
        let last_end_us = self.returns.last_end_us();
        if last_end_us <= self.now_us {
            return Change::Clear;
        }
        Change::Store { bucket: self.limit.full(self.now_us), full_at_us: last_end_us }
    }

    /// What would be stored if `micro` were taken now.
    #[inline]
    fn after(&self, micro: i64) -> Bucket {
        let level_micro = self.current.level_micro.wrapping_sub(micro);
        Bucket { level_micro, ..self.current }
    }

    /// An outcome that takes `micro` (puts back, if negative).
    #[inline(always)]
    fn moved(&self, allowed: i64, micro: i64, retry_after_ms: i64) -> Outcome {
        let bucket = self.after(micro);
        let full_at_us = self.full_at_us(bucket, self.now_us);
        let decision = self.decision(allowed, bucket.level_micro, retry_after_ms, full_at_us);
        let full_at_us = full_at_us.max(self.returns.last_end_us());
        Outcome { decision, change: Change::Store { bucket, full_at_us }, granted_micro: micro }
    }

    /// An outcome that leaves everything as it is.
    #[inline(always)]
    fn untouched(&self, allowed: i64, retry_after_ms: i64) -> Outcome {
        let full_at_us = self.full_at_us(self.untouched, EVERYTHING);
        let decision = self.decision(allowed, self.current.level_micro, retry_after_ms, full_at_us);
        Outcome { decision, change: Change::Keep, granted_micro: 0 }
    }

    /// A denial. It writes only where the clock stepped back, so that the bucket counts on from the new time.
    #[inline(always)]
    fn denied(&self, retry_after_ms: i64) -> Outcome {
        let denied = self.untouched(0, retry_after_ms);
        if !self.stepped_back {
            return denied;
        }
        // A level above this limit's capacity stays for others to see: a denial takes nothing.
        let level_micro = self.stored_level_micro.wrapping_add(self.returned_micro).min(MAX_MICRO);
        let bucket = Bucket { level_micro, ..self.untouched };
        let full_at_us = self.full_at_us(bucket, self.now_us).max(self.returns.last_end_us());
        Outcome { change: Change::Store { bucket, full_at_us }, ..denied }
    }

    #[inline]
    fn decision(&self, allowed: i64, level_micro: i64, retry_after_ms: i64, full_at_us: i64) -> Decision {
        let remaining = level_micro.div_euclid(MICRO_PER_TOKEN);
        Decision { allowed, remaining, retry_after_ms, reset_after_ms: self.wait_until_ms(full_at_us) }
    }

    #[inline]
    fn full_at_us(&self, bucket: Bucket, counted_us: i64) -> i64 {
        self.reaches_at_us(bucket, counted_us, self.limit.capacity_micro)
    }

    #[inline]
    fn reaches_at_us(&self, bucket: Bucket, counted_us: i64, level_micro: i64) -> i64 {
        self.returns.reaches_at_us(&self.limit.rate, bucket, counted_us, level_micro)
    }

    /// How long until a plain take of `cost_micro` is allowed.
    #[inline]
    fn wait_for(&self, cost_micro: i64) -> i64 {
        if cost_micro > self.limit.capacity_micro {
            return NEVER_MS;
        }
        self.wait_until_ms(self.reaches_at_us(self.untouched, EVERYTHING, cost_micro))
    }

    #[inline]
    fn debt_free_in_ms(&self, bucket: Bucket) -> i64 {
        if bucket.level_micro >= 0 {
            return 0;
        }
        self.wait_until_ms(self.reaches_at_us(bucket, self.now_us, 0))
    }

    /// The wait until `at_us`: without end where nothing flows in, and nothing comes back that would do.
    #[inline]
    fn wait_until_ms(&self, at_us: i64) -> i64 {
        if at_us > MAX_TIME_US && self.limit.is_pool() {
            return NEVER_MS;
        }
        self.ms_until(at_us)
    }

    /// Milliseconds from now to `at_us`, rounded up, 0 for the past.
    #[inline]
    fn ms_until(&self, at_us: i64) -> i64 {
        let wait_us = at_us.wrapping_sub(self.now_us).max(0).unsigned_abs();
        signed(wait_us.wrapping_add(999) / 1000)
    }
}

#[inline]
fn is_too_deep(bucket: Bucket) -> bool {
    bucket.level_micro < DEEPEST_DEBT_MICRO
}

/// What comes of a hold before anything is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// The level is to be this, and the hold what it was asked to be.
    Moved {
        /// The level without what is held from now on; what has come back by now is in it.
        bucket: Bucket,
        /// Micro-tokens that leave the bucket; negative if they come back.
        taken_micro: i64,
    },
    /// No hold changes.
    Kept(Outcome),
}

impl Limit {
    /// Decides whether the hold `id` may be of `amount_micro` from now on. Leaves `holds` as they are.
    ///
    /// What it holds already need not be taken again. Denied, the wait is until there is what is lacking, whether or
    /// not the hold itself ends before: then the whole amount is needed, and what was held is there too. But a hold of
    /// more than the capacity (which was larger) can only grow while it lasts.
    #[must_use]
    pub fn hold(
        &self,
        stored: Option<Bucket>,
        holds: &mut Holds,
        id: &[u8],
        amount_micro: i64,
        now_us: i64,
    ) -> Holding {
        let held = holds.outstanding_of(id, now_us).map(|hold| (hold.amount_micro, hold.ends_at_us));
        let (held_micro, ends_at_us) = held.unwrap_or((0, i64::MAX));
        let lacking_micro = amount_micro.wrapping_sub(held_micro);
        let view = View::new(self, stored, &*holds, now_us);
        if amount_micro == 0 && held.is_none() {
            return Holding::Kept(view.untouched(1, 0));
        }
        if lacking_micro <= 0 || lacking_micro <= view.current.level_micro {
            return view.held(lacking_micro);
        }
        let own = if held.is_some() { holds.remove(id) } else { None };
        let wait_ms = View::new(self, stored, &*holds, now_us).wait_for(lacking_micro);
        if let Some(own) = own {
            holds.set(own);
        }
        let view = View::new(self, stored, &*holds, now_us);
        let comes_too_late = amount_micro > self.capacity_micro && view.after_ms(wait_ms) >= ends_at_us;
        Holding::Kept(view.denied(if comes_too_late { NEVER_MS } else { wait_ms }))
    }

    /// Decides what becomes of a bucket when the hold `id` ends and `used_micro` of it were used.
    ///
    /// # Errors
    /// [`DebtTooDeep`] if much more was used.
    pub fn settle(
        &self,
        stored: Option<Bucket>,
        holds: &Holds,
        id: &[u8],
        used_micro: i64,
        now_us: i64,
    ) -> Result<Holding, DebtTooDeep> {
        let view = View::new(self, stored, holds, now_us);
        let Some(hold) = holds.outstanding_of(id, now_us) else {
            return Ok(Holding::Kept(view.untouched(0, NEVER_MS)));
        };
        let lacking_micro = used_micro.wrapping_sub(hold.amount_micro);
        if is_too_deep(view.after(lacking_micro)) {
            return Err(DebtTooDeep);
        }
        Ok(view.held(lacking_micro))
    }

    /// What there is to say and to store once the holds have been changed: `bucket` is what [`Holding::Moved`] told,
    /// and of `holds` none has ended. The wait told is until the bucket is out of debt.
    #[must_use]
    pub fn moved(&self, bucket: Bucket, holds: &Holds, taken_micro: i64, now_us: i64) -> Outcome {
        let view = View::new(self, Some(bucket), holds, now_us);
        let full_at_us = view.full_at_us(bucket, view.now_us);
        let decision = view.decision(1, bucket.level_micro, view.debt_free_in_ms(bucket), full_at_us);
        let is_full = bucket.level_micro == self.capacity_micro;
        let full_at_us = full_at_us.max(holds.last_end_us());
        let change = if is_full { view.filled() } else { Change::Store { bucket, full_at_us } };
        Outcome { decision, change, granted_micro: taken_micro.max(0) }
    }

    /// When a hold of `amount_micro` can no longer be had: as it ends, if it is of more than the capacity.
    #[must_use]
    pub fn holdable_until_us(&self, holds: &Holds, id: &[u8], amount_micro: i64, now_us: i64) -> i64 {
        let own = holds.outstanding_of(id, now_us).filter(|_| amount_micro > self.capacity_micro);
        own.map_or(i64::MAX, |hold| hold.ends_at_us)
    }
}

impl<R: Returns> View<'_, R> {
    /// A hold takes `lacking_micro` more, or gives back, if negative.
    fn held(&self, lacking_micro: i64) -> Holding {
        let after = self.after(lacking_micro);
        let is_full = after.level_micro >= self.limit.capacity_micro;
        let bucket = if is_full { self.limit.full(self.now_us) } else { after };
        Holding::Moved { bucket, taken_micro: lacking_micro }
    }

    /// The moment that is `wait_ms` from now, or the beginning of time if that never comes.
    fn after_ms(&self, wait_ms: i64) -> i64 {
        self.now_us.saturating_add(wait_ms.saturating_mul(1000))
    }
}
