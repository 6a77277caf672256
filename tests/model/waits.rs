//! What callers are told to wait, and what they find when they did.

use super::exact::operation::moved;
use super::exact::{Bucket, Exact, Flow, Judged, Limit, Operation};
use super::scenario::{self, walk};
use super::{take, take_all};
use num_traits::Zero;
use proptest::prelude::*;
use tokenbucket::bucket::MAX_TIME_US;

/// So many milliseconds later a call is allowed, and a millisecond earlier it was not.
fn is_honest(limit: &Limit, stored: Option<Bucket>, call: Operation, now_us: i64, wait_ms: i64) -> bool {
    let allowed_at = |at_us| limit.module().decide(stored, call, at_us).unwrap().decision.allowed > 0;
    let then_us = wait_ms.checked_mul(1000).and_then(|wait_us| now_us.checked_add(wait_us));
    match then_us.filter(|then_us| *then_us <= MAX_TIME_US) {
        _ if wait_ms == -1 => !allowed_at(MAX_TIME_US),
        // No clock shows it.
        None => true,
        Some(then_us) => allowed_at(then_us) && (wait_ms == 0 || !allowed_at(then_us - 1000)),
    }
}

proptest! {
    #![proptest_config(super::config(32))]

    /// The same call is allowed after the wait that was told, a debt is paid off, and the bucket is full; and not a
    /// millisecond earlier.
    #[test]
    fn waits_are_honest_to_the_millisecond(
        (limit, stored, now_us) in scenario::sights(scenario::rates(), scenario::unsteady_ticks()),
        wish in scenario::wishes(),
    ) {
        let operation = wish.of(&limit, 0);
        let mut judged = Judged::found(stored);
        let Ok(outcome) = judged.call(&limit, operation, now_us) else { return Ok(()) };
        let (told, stored) = (outcome.decision, judged.stored);
        // What is neither taken nor denied writes nothing, and stands still behind a clock that stepped back.
        prop_assume!(stored.is_none_or(|stored| stored.refilled_at_us <= now_us));
        let is_reset_honest = is_honest(&limit, stored, take_all(&limit), now_us, told.reset_after_ms);
        prop_assert!(is_reset_honest, "reset: {:?}", told);
        let is_retry_honest = match operation {
            Operation::Take { .. } | Operation::TakeUpTo { .. } if told.allowed == 0 => {
                is_honest(&limit, stored, operation, now_us, told.retry_after_ms)
            }
            Operation::Charge { .. } => is_honest(&limit, stored, take(0), now_us, told.retry_after_ms),
            // What the write of the reservation lost comes on top.
            Operation::Reserve { .. } if told.allowed == 1 && limit.is_whole() => {
                is_honest(&limit, stored, take(0), now_us, told.retry_after_ms)
            }
            _ => true,
        };
        prop_assert!(is_retry_honest, "retry: {:?}", told);
    }
}

proptest! {
    #![proptest_config(super::config(8))]

    /// Reservers who act when they were told to never act on more than the bucket held and what has flowed since; nor
    /// between any two of them, but for the millisecond to which a wait is rounded.
    #[test]
    fn reservers_who_wait_as_told_keep_the_limit(
        limit in scenario::limits(scenario::rates()),
        start_us in scenario::starts(),
        steps in scenario::steps(scenario::ticks(), scenario::reserves()),
    ) {
        let mut judged = Judged::default();
        let mut acts: Vec<(i64, Exact, i64)> = Vec::new();
        walk(std::slice::from_ref(&limit), start_us, &steps, |limit, wish, now_us, told_ms| {
            let operation = wish.of(limit, told_ms);
            let told = judged.call(limit, operation, now_us).unwrap().decision;
            let cost = moved(operation, told.allowed);
            if !cost.is_zero() {
                acts.push((now_us + told.retry_after_ms * 1000, cost, told.retry_after_ms.min(1) * 1000));
            }
            told.retry_after_ms
        });
        for (first, (from_us, _, rounded_us)) in acts.iter().enumerate() {
            // What comes all at once has come within the millisecond that the wait was rounded up to.
            let since_us = if matches!(limit.flow, Flow::Calendar(_)) { from_us - rounded_us } else { *from_us };
            let mut spent = Exact::zero();
            for (to_us, cost, _) in &acts[first..] {
                prop_assert!(*to_us > from_us - 1000, "served before those who asked earlier: {:?}", acts);
                spent += cost;
                let flowed = limit.flow.between(since_us, *to_us.max(from_us) + rounded_us);
                prop_assert!(spent <= &limit.capacity + flowed, "{:?}", acts);
            }
        }
    }
}

/// The write of a reservation may lose what flows in a microsecond. That once made the debt last a millisecond longer
/// than was told to whoever was refused, and who then would have waited exactly as long was refused again.
#[test]
fn who_would_wait_exactly_as_long_as_it_takes_is_served() {
    let limit = Limit::new("1", "100/m");
    let stored = Bucket::checked(0, 1_700_000_000_000_000);
    let reserve = |max_wait_ms| {
        let operation = Operation::Reserve { cost_micro: 1_000_000, max_wait_ms };
        limit.module().decide(stored, operation, 1_700_000_000_001_000).unwrap().decision
    };
    assert_eq!((reserve(0).allowed, reserve(0).retry_after_ms, reserve(0).reset_after_ms), (0, 599, 599));
    assert_eq!((reserve(598).allowed, reserve(598).retry_after_ms), (0, 599));
    assert_eq!((reserve(599).allowed, reserve(599).retry_after_ms), (1, 599));
}
