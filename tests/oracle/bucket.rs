//! A token bucket in exact arithmetic, written from the contract and from nothing else.
//!
//! A level is a fraction and is never rounded; only what is told is. What the module stores, and how it carries
//! what it cannot store, is unknown here.

use super::rational::{integer, Exact};
use num_bigint::BigInt;
use num_traits::{ToPrimitive, Zero};
use tokenbucket::bucket::{Decision, Operation};

/// Micro-tokens in a token.
pub const TOKEN: i64 = 1_000_000;

/// The deepest debt in micro-tokens.
const DEEPEST: i64 = -1_000_000_000_000_000_000;

/// What comes with a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactLimit {
    /// Micro-tokens.
    pub capacity: Exact,
    /// Micro-tokens per microsecond.
    pub rate: Exact,
}

impl ExactLimit {
    /// How long `micro` micro-tokens take to flow in, in microseconds; nothing is there at once.
    pub fn time_us(&self, micro: &Exact) -> Exact {
        micro.max(&Exact::zero()) / &self.rate
    }
}

/// What a key holds. Nothing stored: a full bucket, whatever the capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExactBucket {
    pub stored: Option<Stored>,
}

/// A level, and the moment of the write that left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub level: Exact,
    pub written_at_us: i64,
}

/// What a caller is told, before anything is rounded to milliseconds or saturates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    pub allowed: i64,
    pub remaining: BigInt,
    /// `None`: never.
    pub retry_after_us: Option<Exact>,
    pub reset_after_us: Exact,
}

/// A charge beyond the deepest debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooDeep;

/// What becomes of a call, before the level is known to anyone.
enum Verdict {
    /// So many tokens are told as allowed, so many micro-tokens leave, and the caller waits for the debt to end.
    Granted { allowed: i64, micro: Exact },
    /// The caller would need so many micro-tokens.
    Denied { needs: Exact },
    /// The debt would last too long, or be too deep.
    DebtRefused { level: Exact },
}

impl ExactBucket {
    /// The level at `now_us`. A clock that is behind the last write adds nothing.
    pub fn level(&self, limit: &ExactLimit, now_us: i64) -> Exact {
        match &self.stored {
            None => limit.capacity.clone(),
            Some(stored) => {
                let elapsed_us = (now_us - stored.written_at_us).max(0);
                (&stored.level + &limit.rate * integer(elapsed_us)).min(limit.capacity.clone())
            }
        }
    }

    /// What `TB.PEEK` would say of the bucket as it is.
    pub fn describe(&self, limit: &ExactLimit, now_us: i64) -> Reply {
        reply(limit, 1, &self.level(limit, now_us), Some(Exact::zero()))
    }

    /// Decides, and makes it so.
    pub fn call(&mut self, limit: &ExactLimit, operation: Operation, now_us: i64) -> Result<Reply, TooDeep> {
        let level = self.level(limit, now_us);
        match judge(limit, &level, operation)? {
            Verdict::Granted { allowed, micro } => {
                let after = (&level - &micro).min(limit.capacity.clone());
                if after != level {
                    self.write(limit, after.clone(), now_us);
                }
                let wait = waits_for_debt(operation).then(|| limit.time_us(&-&after));
                Ok(reply(limit, allowed, &after, Some(wait.unwrap_or_else(Exact::zero))))
            }
            Verdict::Denied { needs } => {
                self.follow_clock_back(now_us);
                let wait = (needs <= limit.capacity).then(|| limit.time_us(&(needs - &level)));
                Ok(reply(limit, 0, &level, wait))
            }
            Verdict::DebtRefused { level: after } => {
                self.follow_clock_back(now_us);
                Ok(reply(limit, 0, &level, Some(limit.time_us(&-after))))
            }
        }
    }

    /// Takes over that `micro` micro-tokens left at `now_us` (came back, if negative), whoever decided so.
    pub fn follow(&mut self, limit: &ExactLimit, micro: &Exact, now_us: i64) {
        let level = (self.level(limit, now_us) - micro).min(limit.capacity.clone());
        self.stored = Some(Stored { level, written_at_us: now_us });
    }

    /// After a step back the bucket keeps its level and counts on from the new time.
    pub fn follow_clock_back(&mut self, now_us: i64) {
        if let Some(stored) = &mut self.stored {
            stored.written_at_us = stored.written_at_us.min(now_us);
        }
    }

    fn write(&mut self, limit: &ExactLimit, level: Exact, now_us: i64) {
        // A bucket that is full has no key.
        self.stored = (level < limit.capacity).then_some(Stored { level, written_at_us: now_us });
    }
}

fn waits_for_debt(operation: Operation) -> bool {
    matches!(operation, Operation::Reserve { .. } | Operation::Charge { .. })
}

fn judge(limit: &ExactLimit, level: &Exact, operation: Operation) -> Result<Verdict, TooDeep> {
    Ok(match operation {
        Operation::Take { cost_micro } => take(level, integer(cost_micro)),
        Operation::TakeUpTo { max_tokens } => take_up_to(level, max_tokens),
        Operation::Reserve { cost_micro, max_wait_ms } => {
            reserve(limit, level, integer(cost_micro), &BigInt::from(max_wait_ms))
        }
        Operation::Charge { amount_micro } => {
            let micro = integer(amount_micro);
            if level - &micro < integer(DEEPEST) && amount_micro > 0 {
                return Err(TooDeep);
            }
            Verdict::Granted { allowed: 1, micro }
        }
        Operation::Give { amount_micro } => Verdict::Granted { allowed: 1, micro: integer(-amount_micro) },
    })
}

fn take(level: &Exact, cost: Exact) -> Verdict {
    if cost <= *level {
        Verdict::Granted { allowed: 1, micro: cost }
    } else {
        Verdict::Denied { needs: cost }
    }
}

fn take_up_to(level: &Exact, max_tokens: i64) -> Verdict {
    let whole_tokens = (level / integer(TOKEN)).floor().to_integer();
    let granted = whole_tokens.min(max_tokens.into()).to_i64().unwrap();
    if granted > 0 {
        Verdict::Granted { allowed: granted, micro: integer(granted) * integer(TOKEN) }
    } else {
        Verdict::Denied { needs: integer(TOKEN) }
    }
}

fn reserve(limit: &ExactLimit, level: &Exact, cost: Exact, max_wait_ms: &BigInt) -> Verdict {
    let after = level - &cost;
    if cost > limit.capacity {
        Verdict::Denied { needs: cost }
    } else if milliseconds(&limit.time_us(&-&after)) <= *max_wait_ms
        && (after >= integer(DEEPEST) || cost.is_zero())
    {
        Verdict::Granted { allowed: 1, micro: cost }
    } else {
        Verdict::DebtRefused { level: after }
    }
}

fn reply(limit: &ExactLimit, allowed: i64, level: &Exact, retry_after_us: Option<Exact>) -> Reply {
    Reply {
        allowed,
        remaining: (level / integer(TOKEN)).floor().to_integer(),
        retry_after_us,
        reset_after_us: limit.time_us(&(&limit.capacity - level)),
    }
}

/// A time as it is told: rounded up.
pub fn milliseconds(time_us: &Exact) -> BigInt {
    (time_us / integer(1000)).ceil().to_integer()
}

impl Reply {
    /// Whether this is what was told.
    pub fn is_told_by(&self, told: &Decision) -> bool {
        self.is_told_within(told, 0, 0)
    }

    /// Whether this is what was told, with times that are up to so many microseconds later than they might be.
    pub fn is_told_within(&self, told: &Decision, retry_late_us: i64, reset_late_us: i64) -> bool {
        let retry = match &self.retry_after_us {
            None => told.retry_after_ms == -1,
            Some(wait_us) => is_told(wait_us, &(wait_us + integer(retry_late_us)), told.retry_after_ms),
        };
        let reset_us = &self.reset_after_us;
        retry
            && is_told(reset_us, &(reset_us + integer(reset_late_us)), told.reset_after_ms)
            && self.allowed == told.allowed
            && self.remaining == BigInt::from(told.remaining)
    }
}

/// Waits of up to 100,000 years are told as they are; of a longer one at least that much is told.
pub const LONGEST_TOLD_MS: i64 = 3_155_760_000_000_000;

/// Whether a wait that ends between these two moments may be told in so many milliseconds.
pub fn is_told(soonest_us: &Exact, latest_us: &Exact, told_ms: i64) -> bool {
    let told = BigInt::from(told_ms);
    let in_time = told <= milliseconds(latest_us) || told_ms >= LONGEST_TOLD_MS;
    in_time && told >= milliseconds(soonest_us).min(LONGEST_TOLD_MS.into())
}
