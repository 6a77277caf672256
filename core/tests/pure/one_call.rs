//! One call, from any state that a bucket may be in.

use super::model::operation::LONGEST_WAIT_MS;
use super::model::{whole, Bucket, Judged, Limit, Model, Operation, MILLION};
use super::scenario::{any_amounts, pauses, rates, starts};
use super::strategies::{limits, operations};
use super::take;
use num_traits::ToPrimitive;
use proptest::prelude::*;
use proptest::sample::select;
use std::fmt::Debug;
use tokenbucket_core::bucket::{Decision, NoHolds, MAX_TIME_US};
use tokenbucket_core::number::MAX_MICRO;

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

/// A limit, any state that a bucket may be in under it, a time to look at that, and what is wanted then.
type Sight<W> = (Limit, Option<Bucket>, i64, W);

fn sights<W: Debug>(
    strategies: impl Fn(&Limit) -> BoxedStrategy<W> + Clone,
) -> impl Strategy<Value = Sight<W>> {
    limits(MAX_MICRO, rates()).prop_flat_map(move |limit| {
        let levels = prop::option::weighted(0.9, (any_amounts(&limit), select(vec![1, 1, 1, -1])));
        let strategies = strategies(&limit);
        let sights = (Just(limit.clone()), levels, starts(), pauses(&limit, 1), strategies);
        sights.prop_map(|(limit, level, refilled_at_us, pause, operation)| {
            let stored = level.map(|(micro, sign)| Bucket { level_micro: sign * micro, refilled_at_us });
            (limit, stored, pause.after(refilled_at_us, 0), operation)
        })
    })
}

/// The smallest and the largest of everything: limits, levels, amounts and times.
fn extremes() -> impl Strategy<Value = Sight<Operation>> {
    let rates = "1e12 999999999999/1000ms 1/36525d 1 999999999989e14/999999999961d \
        999999999989/999999999961s 9999.99999989/999999999961s";
    let rates = select(rates.split(' ').collect::<Vec<_>>());
    let amounts = select(vec![0, 1, MILLION, MAX_MICRO - 1, MAX_MICRO]);
    let times = select(vec![0, 1, MAX_TIME_US / 2, MAX_TIME_US]);
    let written = (amounts.clone(), select(vec![1, -1]), times.clone());
    let states = (amounts.clone(), rates, prop::option::weighted(0.9, written), times);
    states.prop_flat_map(move |(capacity_micro, rate, written, now_us)| {
        let limit = Limit::of_micro(capacity_micro, rate);
        let operations = operations(&limit, amounts.clone());
        let stored = written.and_then(|(micro, sign, at_us)| Bucket::checked(sign * micro, at_us));
        (Just(limit), Just(stored), Just(now_us), operations)
    })
}

fn calls() -> impl Strategy<Value = Sight<Operation>> {
    prop_oneof![extremes(), sights(|limit| operations(limit, any_amounts(limit)).boxed())]
}

proptest! {
    #![proptest_config(super::config(64))]

    /// From any state that a bucket may be in, also debts and levels above the capacity of the call, one call is exact
    /// at any rate: what is allowed, what is left, how long to wait, and what is written; and nothing is, by a denial. Its
    /// key never expires before it is full, and at most a quarter of the time until then and a second later.
    #[test]
    fn one_call_from_any_state_is_exact((limit, stored, now_us, operation) in calls(), expires_late in any::<bool>()) {
        let mut judged = Judged { expires_late, ..Judged::found(stored) };
        let outcome = judged.call(&limit, operation, now_us);
        if let (Operation::Reserve { cost_micro, .. }, Ok(outcome)) = (operation, outcome) {
            // Also for whoever would wait exactly as long as was told, or not quite.
            for told_ms in [outcome.decision.retry_after_ms, outcome.decision.retry_after_ms - 1] {
                let max_wait_ms = told_ms.clamp(0, LONGEST_WAIT_MS);
                let as_told = Operation::Reserve { cost_micro, max_wait_ms };
                let _ = Judged::found(stored).call(&limit, as_told, now_us);
            }
        }
        // And for whoever gives just what is missing.
        let missing = whole(limit.capacity_micro()) - Model::found(stored).level(&limit, now_us).low;
        if let Some(amount_micro) = missing.ceil().to_integer().to_i64().filter(|micro| *micro <= MAX_MICRO) {
            let _ = Judged::found(stored).call(&limit, Operation::Give { amount_micro }, now_us);
        }
        let free = take(0);
        let told = Decision { retry_after_ms: 0, ..limit.module().denied_by_another(stored, NoHolds, now_us).decision };
        let model = Model::found(stored);
        let is_in_debt = model.allowed(&limit, free, now_us)[0] == Some(0);
        if !is_in_debt {
            model.judge(&limit, free, now_us, told);
        }
    }

    /// After the wait that was reported, the same call is allowed, a debt is paid off, and the bucket is full; and not a
    /// millisecond earlier.
    #[test]
    fn waits_are_honest_to_the_millisecond((limit, stored, now_us, operation) in calls()) {
        let mut judged = Judged::found(stored);
        let Ok(outcome) = judged.call(&limit, operation, now_us) else { return Ok(()) };
        let (told, stored) = (outcome.decision, judged.stored);
        // What is neither taken nor denied writes nothing, and stands still behind a clock that stepped back.
        prop_assume!(stored.is_none_or(|stored| stored.refilled_at_us <= now_us));
        let all = Operation::Take { cost_micro: limit.capacity_micro() };
        let is_reset_honest = is_honest(&limit, stored, all, now_us, told.reset_after_ms);
        prop_assert!(is_reset_honest, "reset: {:?}", told);
        if told.allowed == 0 && told.retry_after_ms >= 0 {
            let wait_us = limit.module().wait_us(stored, operation.needed_micro(), now_us);
            prop_assert_eq!((wait_us + 999) / 1000, told.retry_after_ms);
        }
        if let Operation::Charge { .. } | Operation::Give { .. } = operation {
            prop_assert_eq!(operation.needed_micro(), 0);
        }
        let again = match operation {
            Operation::Take { .. } | Operation::TakeUpTo { .. } if told.allowed == 0 => operation,
            Operation::Charge { .. } => take(0),
            // What the write of the reservation lost comes on top.
            Operation::Reserve { .. } if told.allowed == 1 && limit.is_whole() => take(0),
            _ => return Ok(()),
        };
        let is_retry_honest = is_honest(&limit, stored, again, now_us, told.retry_after_ms);
        prop_assert!(is_retry_honest, "retry: {:?}", told);
    }
}

#[test]
fn a_reservation_that_would_end_in_too_deep_a_debt_is_denied() {
    let deepest = Some(Bucket { level_micro: -MAX_MICRO, refilled_at_us: 0 });
    let reserve = Operation::Reserve { cost_micro: MILLION, max_wait_ms: LONGEST_WAIT_MS };
    let decided = Judged::found(deepest).call(&Limit::new("1e12", "1e12"), reserve, 0);
    assert_eq!(decided.unwrap().decision.allowed, 0);
}
