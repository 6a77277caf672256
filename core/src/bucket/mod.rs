//! The algorithm: a bucket, its limit, the operations on it, and decisions.
//!
//! A bucket is two numbers: how many tokens it held when it was last refilled, and when that was. Nothing runs in
//! the background; each call adds what has flowed in since. Everything here is integer arithmetic on micro-tokens and
//! microseconds, with the time as an argument: no clock, no Redis, no allocation, and [`DebtTooDeep`] as the only error.
//! The holds of a bucket are a parameter ([`Expiring`]): most buckets have none, and pay nothing for them.
//!
//! # Why no token is ever lost or won by rounding
//!
//! A refill seldom ends on a whole micro-token. Dropping the rest at each call would starve a slow bucket under
//! frequent calls: at one token a day, a hundred-thousandth of a micro-token flows in a microsecond, and a client that
//! polls would never see one. So the rest is *dated back*: the new refill time is as many whole microseconds ago
//! as the rest took to flow. Each write loses less than a micro-token, or less than what flows in one
//! microsecond, whichever is smaller; at a whole number of tokens per second it loses nothing. A denied call
//! stores nothing, so polling loses nothing either.
//!
//! # Why nothing overflows
//!
//! Levels and capacities are within ±10^18, times within 2^60, flows and their durations within 2^62, returned holds
//! within 2^61. All sums below are of two of these, or of a level, a flow and returned holds, which fits 64 bits. They
//! are written as wrapping, because a saturating addition costs five times as much and would never saturate.
//!
//! # Why the waits are honest
//!
//! Waits are solved from the state that the next call will find: the stored one if nothing was taken, else the new
//! one. The smallest time at which the level *as computed then* suffices is an exact integer ceiling.

pub(crate) mod decide;

pub use decide::NEVER_MS;

use crate::number::{MAX_MICRO, MICRO_PER_TOKEN};
use crate::rate::Rate;

/// The latest time of a bucket, in Unix microseconds (about the year 38,500): leaves room for sums.
pub const MAX_TIME_US: i64 = 1 << 60;

/// The level of the deepest debt, in micro-tokens: -10^12 tokens.
pub const DEEPEST_DEBT_MICRO: i64 = -MAX_MICRO;

/// The state of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Micro-tokens at the last refill; negative while in debt: [`DEEPEST_DEBT_MICRO`] to [`MAX_MICRO`].
    pub level_micro: i64,
    /// Time of the last refill, in Unix microseconds: 0 to [`MAX_TIME_US`].
    pub refilled_at_us: i64,
}

/// The capacity and the refill rate of a bucket. They come with every call and are not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    capacity_micro: i64,
    rate: Rate,
}

/// An operation on one bucket. Amounts are in micro-tokens, 0 to [`MAX_MICRO`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// All of the cost, or nothing.
    Take {
        /// The cost of the call.
        cost_micro: i64,
    },
    /// As many whole tokens as there are.
    TakeUpTo {
        /// The largest grant, in whole tokens: 1 to [`MAX_TOKENS`](crate::number::MAX_TOKENS).
        max_tokens: i64,
    },
    /// All of the cost, into debt if need be, unless paying it off takes too long.
    Reserve {
        /// The cost of the call.
        cost_micro: i64,
        /// The longest wait that the caller accepts.
        max_wait_ms: i64,
    },
    /// The amount whatever the level: the work is already done.
    Charge {
        /// The cost of the work.
        amount_micro: i64,
    },
    /// The amount back, never above the capacity.
    Give {
        /// The unused amount.
        amount_micro: i64,
    },
}

impl Operation {
    /// Returns the micro-tokens that the operation needs to be allowed.
    #[must_use]
    pub fn needed_micro(&self) -> i64 {
        match *self {
            Self::Take { cost_micro } | Self::Reserve { cost_micro, .. } => cost_micro,
            Self::TakeUpTo { .. } => MICRO_PER_TOKEN,
            Self::Charge { .. } | Self::Give { .. } => 0,
        }
    }
}

/// The reply.
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

/// The write of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Write nothing, and leave no trace.
    Keep,
    /// Store this bucket, which is full at `full_at_us` Unix microseconds if nothing more is taken.
    Store {
        /// The new state.
        bucket: Bucket,
        /// When the bucket equals no bucket.
        full_at_us: i64,
    },
    /// Delete the bucket, because it is full.
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

/// The level includes no hold that has ended.
pub(crate) const NOTHING_INCLUDED: i64 = i64::MIN;

/// What counts at one moment for a call.
#[derive(Clone, Copy, Debug)]
pub struct Counting<'limit> {
    /// The limit of the call, or that of an override.
    pub limit: &'limit Limit,
    /// The bucket under that limit; `None` is a full one.
    pub bucket: Option<Bucket>,
    /// Until when the level of the bucket includes ended holds, in Unix microseconds.
    pub included_until_us: i64,
}

/// The holds of a bucket, which return by themselves at known moments, and an override of its limit.
pub trait Expiring: Copy {
    /// Returns the micro-tokens of holds that ended after `since_us` and by `now_us`; saturates at 2^61, which fills any
    /// bucket.
    fn returned_micro(self, since_us: i64, now_us: i64) -> i64;

    /// Returns when the last hold ends, and an override of the limit, in Unix microseconds; the smallest number without.
    fn last_end_us(self) -> i64;

    /// Returns what counts at `now_us` for a call that brings the limit `own` to what is stored.
    #[inline(always)]
    fn counting<'limit>(self, own: &'limit Limit, stored: Option<Bucket>, _now_us: i64) -> Counting<'limit>
    where
        Self: 'limit,
    {
        Counting { limit: own, bucket: stored, included_until_us: NOTHING_INCLUDED }
    }

    /// Returns whether an override denies every positive cost at `now_us`. The limit of the calls counts on meanwhile.
    #[inline(always)]
    fn is_suspended(self, _now_us: i64) -> bool {
        false
    }

    /// Returns until when the limit of the decision counts, in Unix microseconds: the end of an override, or for ever.
    #[inline(always)]
    fn limit_until_us(self, _now_us: i64) -> i64 {
        i64::MAX
    }

    /// Returns when `bucket` reaches `level_micro` if nothing is taken, possibly in the past. Its level already
    /// includes the holds that ended by `included_until_us`.
    fn reaches_at_us(self, rate: &Rate, bucket: Bucket, included_until_us: i64, level_micro: i64) -> i64;
}

/// A bucket without holds.
#[derive(Clone, Copy, Debug)]
pub struct NoHolds;

impl Expiring for NoHolds {
    #[inline(always)]
    fn returned_micro(self, _since_us: i64, _now_us: i64) -> i64 {
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

impl Decision {
    /// Returns the tightest of each field over the decisions of several buckets.
    #[must_use]
    pub fn binding(decisions: impl Iterator<Item = Self>) -> Self {
        let none = Self { allowed: 1, remaining: 0, retry_after_ms: 0, reset_after_ms: 0 };
        decisions.reduce(tighter).unwrap_or(none)
    }
}

impl Bucket {
    /// An empty bucket at the beginning of time.
    pub const EMPTY: Self = Self { level_micro: 0, refilled_at_us: 0 };

    /// Returns the bucket that is full by every limit.
    #[must_use]
    pub fn full(now_us: i64) -> Self {
        Self::nearest(MAX_MICRO, now_us)
    }

    /// Checks a state from outside; `None` if no bucket can have it.
    #[must_use]
    pub fn checked(level_micro: i64, refilled_at_us: i64) -> Option<Self> {
        let bucket = Self { level_micro, refilled_at_us };
        (bucket == Self::nearest(level_micro, refilled_at_us)).then_some(bucket)
    }

    /// Returns the bucket closest to a state from outside, which may be out of bounds.
    #[must_use]
    pub fn nearest(level_micro: i64, refilled_at_us: i64) -> Self {
        Self {
            level_micro: level_micro.clamp(DEEPEST_DEBT_MICRO, MAX_MICRO),
            refilled_at_us: refilled_at_us.clamp(0, MAX_TIME_US),
        }
    }
}

impl Limit {
    /// Returns a bucket that holds at most `capacity_micro` (0 to [`MAX_MICRO`]) and refills at `rate`.
    ///
    /// `None` if refilling it from empty would take more than 100 years.
    #[inline]
    #[must_use]
    pub fn new(capacity_micro: i64, rate: Rate) -> Option<Self> {
        rate.refills_within_a_century(capacity_micro).then_some(Self { capacity_micro, rate })
    }

    /// Returns a pool, in which `capacity_micro` may be held. It has no level: free is what is not held.
    #[inline]
    #[must_use]
    pub fn pool(capacity_micro: i64) -> Self {
        Self { capacity_micro, rate: Rate::POOL }
    }

    /// Returns a bucket that holds at most `capacity_micro`, and into which nothing flows.
    #[must_use]
    pub fn stopped(capacity_micro: i64) -> Self {
        Self { capacity_micro, rate: Rate::NOTHING }
    }

    /// Returns whether it is a [`pool`](Self::pool).
    #[inline]
    #[must_use]
    pub fn is_pool(&self) -> bool {
        self.rate == Rate::POOL
    }

    /// Returns what counts of a bucket without holds. Nothing of a pool is held, whatever calls with a rate have left.
    #[inline]
    #[must_use]
    pub fn without_holds(&self, stored: Option<Bucket>) -> Option<Bucket> {
        stored.filter(|_| !self.is_pool())
    }

    /// Returns how fast it refills.
    #[inline]
    #[must_use]
    pub fn rate(&self) -> &Rate {
        &self.rate
    }

    /// Returns the capacity in micro-tokens.
    #[inline]
    #[must_use]
    pub fn capacity_micro(&self) -> i64 {
        self.capacity_micro
    }

    /// Returns the bucket that will be full at `full_at_us`, rounded down.
    ///
    /// Limiters without a level store this moment instead (the theoretical arrival time of GCRA).
    #[must_use]
    pub fn bucket_full_at(&self, full_at_us: i64, now_us: i64) -> Bucket {
        let now_us = now_us.clamp(0, MAX_TIME_US);
        let missing = self.rate.flow_up(now_us, full_at_us);
        let level_micro = self.capacity_micro.wrapping_sub(missing.micro).max(DEEPEST_DEBT_MICRO);
        // The excess of rounding up is dated back like the rest of a refill.
        let refilled_at_us = now_us.saturating_sub(missing.carry_us).max(0);
        Bucket { level_micro, refilled_at_us }
    }

    /// Adds the flow since the last refill and the ended holds, never beyond the capacity.
    ///
    /// If `now_us` is before the last refill, no time has passed: a clock that steps back must neither create tokens nor
    /// lock the bucket until it has caught up.
    #[inline]
    pub(crate) fn refill(&self, bucket: Bucket, expired_micro: i64, now_us: i64) -> Bucket {
        let flow = self.rate.flow(bucket.refilled_at_us, now_us);
        let level_micro = bucket.level_micro.wrapping_add(flow.micro).wrapping_add(expired_micro);
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

/// Returns the tighter of two decisions, field by field.
fn tighter(one: Decision, other: Decision) -> Decision {
    Decision {
        allowed: one.allowed.min(other.allowed),
        remaining: one.remaining.min(other.remaining),
        retry_after_ms: longer(one.retry_after_ms, other.retry_after_ms),
        reset_after_ms: longer(one.reset_after_ms, other.reset_after_ms),
    }
}

/// Returns the longer of two waits; -1 is the longest.
fn longer(one_ms: i64, other_ms: i64) -> i64 {
    if one_ms.min(other_ms) < 0 {
        return -1;
    }
    one_ms.max(other_ms)
}
