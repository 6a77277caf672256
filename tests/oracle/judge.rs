//! Judges what the module says by an exact bucket that takes over what the module granted.
//!
//! Two bounds go with it: how much less than the exact bucket the module may hold by now, and how much more. The
//! contract allows the first to grow by a micro-token (or by what flows in a microsecond, if that is less) with each
//! allowed call, and the second not at all, unless rates change.

use super::bucket::{is_told, ExactBucket, LONGEST_TOLD_MS, TOKEN};
use super::module::{Found, Worded};
use super::rational::{integer, Exact};
use num_bigint::BigInt;
use num_traits::{One, Zero};
use tokenbucket::bucket::{Change, DebtTooDeep, Operation, Outcome};
use tokenbucket::number::MAX_MICRO;

/// Where a time is computed from what a write left: less than a microsecond's flow was lost, and the moment itself is
/// a whole microsecond.
pub const LATE_US: i64 = 2;

/// The exact bucket, and how far the module's may be from it.
#[derive(Clone, Debug, Default)]
pub struct Judge {
    pub exact: ExactBucket,
    /// Micro-tokens that the module may hold less.
    lack: Exact,
    /// Micro-tokens that the module may hold more.
    pub excess: Exact,
    /// The rate of the last write.
    written_rate: Option<Exact>,
}

/// What the module may hold: no less, no more.
#[derive(Clone, Debug)]
struct Range {
    low: Exact,
    high: Exact,
}

impl Range {
    fn minus(&self, micro: &Exact) -> Self {
        Self { low: &self.low - micro, high: &self.high - micro }
    }

    fn whole_tokens(micro: &Exact) -> BigInt {
        (micro / integer(TOKEN)).floor().to_integer()
    }

    fn has_remaining(&self, tokens: i64) -> bool {
        (Self::whole_tokens(&self.low)..=Self::whole_tokens(&self.high)).contains(&BigInt::from(tokens))
    }

    /// Whether a wait until `micro` are there was told in so many milliseconds.
    fn reaches_within(&self, limit: &Worded, micro: &Exact, told_ms: i64) -> bool {
        let soonest_us = limit.exact.time_us(&(micro - &self.high));
        let latest_us = limit.exact.time_us(&(micro - &self.low)) + integer(LATE_US);
        is_told(&soonest_us, &latest_us, told_ms)
    }
}

/// What a write at this rate may lose.
pub fn loss(rate: &Exact) -> Exact {
    if rate.is_integer() {
        Exact::zero()
    } else {
        rate.clone().min(Exact::one())
    }
}

impl From<Found> for Judge {
    /// Whoever comes to a bucket knows of nothing that was lost before.
    fn from(found: Found) -> Self {
        Self { exact: found.exact(), ..Self::default() }
    }
}

impl Judge {
    /// Takes a call and what came of it to the record, if it is right.
    pub fn hear(
        &mut self,
        limit: &Worded,
        operation: Operation,
        now_us: i64,
        outcome: &Result<Outcome, DebtTooDeep>,
    ) {
        let (lack, excess) = self.margins(limit, now_us);
        let level = self.exact.level(&limit.exact, now_us);
        let held = Range { low: &level - &lack, high: (&level + &excess).min(limit.exact.capacity.clone()) };
        let Ok(outcome) = outcome else {
            let Operation::Charge { amount_micro } = operation else {
                panic!("{operation:?} is never too deep")
            };
            assert!(held.low < integer(amount_micro - MAX_MICRO), "refused a charge from {held:?}");
            return;
        };
        let moved = moved(operation, outcome);
        let grants = outcome.decision.allowed != 0;
        assert_rightly_judged(limit, &held, operation, outcome);
        let after = match outcome.change {
            Change::Keep => held,
            Change::Clear => Range { low: limit.exact.capacity.clone(), high: limit.exact.capacity.clone() },
            Change::Store { .. } if grants => {
                let after = held.minus(&moved);
                Range {
                    low: after.low - loss(&limit.exact.rate),
                    high: after.high.min(limit.exact.capacity.clone()),
                }
            }
            Change::Store { .. } => held,
        };
        assert_rightly_told(limit, &after, outcome);
        self.follow(limit, &moved, now_us, outcome, (lack, excess))
    }

    /// By how much the module may be below and above the exact bucket when it looks at it now.
    fn margins(&self, limit: &Worded, now_us: i64) -> (Exact, Exact) {
        let Some(stored) = &self.exact.stored else { return (Exact::zero(), Exact::zero()) };
        let (mut lack, mut excess) = (&self.lack + self.lost_by_stepping_back(now_us), self.excess.clone());
        // Less than a micro-token that the last write left over is kept as the time in which it flowed.
        if let Some(written) = self.written_rate.as_ref().filter(|rate| **rate < Exact::one()) {
            if limit.exact.rate > *written {
                excess += (&limit.exact.rate - written) / written;
            } else if limit.exact.rate < *written {
                lack += Exact::one();
            }
        }
        let elapsed_us = (now_us - stored.written_at_us).max(0);
        let overflow = &stored.level + &limit.exact.rate * integer(elapsed_us) - &limit.exact.capacity;
        if overflow >= Exact::zero() {
            return ((lack - overflow).max(Exact::zero()), Exact::zero());
        }
        (lack, excess)
    }

    /// What a write at less than one token a second left over of a micro-token is lost when the clock steps back.
    fn lost_by_stepping_back(&self, now_us: i64) -> Exact {
        let stepped_back = self.exact.stored.as_ref().is_some_and(|stored| now_us < stored.written_at_us);
        let had_rest = self.written_rate.as_ref().is_some_and(|rate| *rate < Exact::one());
        if stepped_back && had_rest {
            Exact::one()
        } else {
            Exact::zero()
        }
    }

    fn follow(
        &mut self,
        limit: &Worded,
        moved: &Exact,
        now_us: i64,
        outcome: &Outcome,
        (lack, excess): (Exact, Exact),
    ) {
        match outcome.change {
            _ if outcome.decision.allowed == 0 => {
                self.lack += self.lost_by_stepping_back(now_us);
                self.exact.follow_clock_back(now_us);
            }
            Change::Keep => {}
            Change::Clear => {
                let after = self.exact.level(&limit.exact, now_us) - moved + excess;
                assert!(after >= limit.exact.capacity, "cleared what is not full: {}", after);
                *self = Self::default();
            }
            Change::Store { .. } => {
                self.exact.follow(&limit.exact, moved, now_us);
                self.lack = lack + loss(&limit.exact.rate);
                self.excess = excess;
                self.written_rate = Some(limit.exact.rate.clone());
            }
        }
    }

    /// Takes over that the key expired, which it must not before its bucket is full.
    pub fn expire(&mut self, written: &Worded, now_us: i64) {
        let level = self.exact.level(&written.exact, now_us);
        assert!(level + &self.excess >= written.exact.capacity, "expired before it was full");
        *self = Self::default();
    }
}

/// Micro-tokens that left the bucket; those that came back count as negative.
pub fn moved(operation: Operation, outcome: &Outcome) -> Exact {
    match operation {
        _ if outcome.decision.allowed == 0 => Exact::zero(),
        Operation::Take { cost_micro } | Operation::Reserve { cost_micro, .. } => integer(cost_micro),
        Operation::TakeUpTo { .. } => integer(outcome.decision.allowed) * integer(TOKEN),
        Operation::Charge { amount_micro } => integer(amount_micro),
        Operation::Give { amount_micro } => integer(-amount_micro),
    }
}

/// Granted only what is there, denied only what may not be there.
fn assert_rightly_judged(limit: &Worded, held: &Range, operation: Operation, outcome: &Outcome) {
    let told = outcome.decision;
    let right = match operation {
        Operation::Take { cost_micro } => is_rightly_taken(limit, held, &integer(cost_micro), outcome),
        Operation::TakeUpTo { max_tokens } => {
            let most = Range::whole_tokens(&held.high).min(max_tokens.into());
            let least = Range::whole_tokens(&held.low).min(max_tokens.into());
            let granted = BigInt::from(told.allowed);
            let in_range = least <= granted && granted <= most.max(BigInt::zero());
            in_range && (told.allowed > 0 || is_rightly_taken(limit, held, &integer(TOKEN), outcome))
        }
        Operation::Reserve { cost_micro, max_wait_ms } => {
            is_rightly_reserved(limit, held, &integer(cost_micro), max_wait_ms, outcome)
        }
        Operation::Charge { amount_micro } => {
            let after = held.minus(&integer(amount_micro));
            let after = Range { low: after.low - loss(&limit.exact.rate), ..after };
            told.allowed == 1 && after.reaches_within(limit, &Exact::zero(), told.retry_after_ms)
        }
        Operation::Give { .. } => told.allowed == 1 && told.retry_after_ms == 0,
    };
    assert!(right, "{:?} of {:?} came to {:?}", operation, held, told);
}

fn is_rightly_taken(limit: &Worded, held: &Range, cost: &Exact, outcome: &Outcome) -> bool {
    let told = outcome.decision;
    match told.allowed {
        0 if *cost > limit.exact.capacity => told.retry_after_ms == -1,
        0 => {
            *cost > held.low
                && told.retry_after_ms > 0
                && held.reaches_within(limit, cost, told.retry_after_ms)
        }
        _ => *cost <= held.high && told.retry_after_ms == 0,
    }
}

fn is_rightly_reserved(
    limit: &Worded,
    held: &Range,
    cost: &Exact,
    max_wait_ms: i64,
    outcome: &Outcome,
) -> bool {
    let told = outcome.decision;
    let after = held.minus(cost);
    let after = Range { low: after.low - loss(&limit.exact.rate), ..after };
    let right_wait = after.reaches_within(limit, &Exact::zero(), told.retry_after_ms);
    match told.allowed {
        0 if *cost > limit.exact.capacity => told.retry_after_ms == -1,
        // A caller who would wait as long as that is granted it, unless the debt has reached its bottom.
        0 => right_wait && (told.retry_after_ms > max_wait_ms || after.low < integer(-MAX_MICRO)),
        _ => right_wait && told.retry_after_ms <= max_wait_ms,
    }
}

/// What is said of the bucket as the call leaves it.
fn assert_rightly_told(limit: &Worded, after: &Range, outcome: &Outcome) {
    let told = outcome.decision;
    assert!(after.has_remaining(told.remaining), "{:?} told as {:?}", after, told);
    let in_time = after.reaches_within(limit, &limit.exact.capacity, told.reset_after_ms);
    assert!(in_time, "{:?} told as {:?}", after, told);
}

/// One call on a bucket of whole micro-tokens: there is nothing yet that could have been lost, only what is written
/// may be short of the exact level by what one write may lose.
pub fn assert_one_call_is_exact(
    limit: &Worded,
    found: Found,
    operation: Operation,
    outcome: &Result<Outcome, DebtTooDeep>,
) {
    let mut exact = found.exact();
    let (outcome, reply) = match (outcome, exact.call(&limit.exact, operation, found.now_us)) {
        (Ok(outcome), Ok(reply)) => (outcome, reply),
        (Err(DebtTooDeep), Err(_)) => return,
        (told, reply) => panic!("{operation:?} of {found:?}: told {told:?}, not {reply:?}"),
    };
    let told = outcome.decision;
    let taken = moved(operation, outcome).max(Exact::zero());
    assert_eq!(integer(outcome.granted_micro), taken, "what is counted as granted");
    let writes = outcome.change != Change::Keep && !limit.is_whole();
    let reset_late_us = if writes { LATE_US } else { 0 };
    let retry_late_us = if writes && matches!(operation, Operation::Charge { .. }) { LATE_US } else { 0 };
    let right = reply.is_told_within(&told, retry_late_us, reset_late_us);
    assert!(right, "{:?} of {:?}: told {:?}, not {:?}", operation, found, told, reply);
    assert_change_is_exact(limit, found, outcome, &exact);
}

/// What is written is the exact bucket, as far as micro-tokens and microseconds can tell it; and nothing is written
/// where nothing changed.
fn assert_change_is_exact(limit: &Worded, found: Found, outcome: &Outcome, exact: &ExactBucket) {
    match (outcome.change, &exact.stored) {
        (Change::Keep, stored) => assert_eq!(&found.exact().stored, stored),
        (Change::Clear, stored) => assert_eq!(&None, stored),
        (Change::Store { bucket, full_at_us }, Some(stored)) => {
            assert_ne!(Some(bucket), found.stored, "written though nothing changed");
            assert_eq!(stored.written_at_us, found.now_us);
            let carried_us = found.now_us - bucket.refilled_at_us;
            assert!(carried_us >= 0, "{:?} refilled in the future", bucket);
            let level = integer(bucket.level_micro) + &limit.exact.rate * integer(carried_us);
            assert!(level <= stored.level, "{:?} holds more than {}", bucket, stored.level);
            assert!(&stored.level - &level <= loss(&limit.exact.rate), "{:?} lost too much", bucket);
            let full_after_us =
                limit.exact.time_us(&(&limit.exact.capacity - &level)).min(integer(LONGEST_TOLD_MS * 1000));
            assert!(integer(full_at_us - found.now_us) >= full_after_us, "{bucket:?} would expire too early");
        }
        (change, stored) => panic!("{change:?}, not {stored:?}"),
    }
}
