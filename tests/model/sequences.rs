//! Sequences of calls, with clocks that run, stand and are set back, and keys that expire.

use super::exact::operation::{allowed, moved};
use super::exact::{whole, Exact, Judged, Limit, Model, Operation};
use super::scenario::{self, walk, Step, Wish};
use num_traits::{Signed, Zero};
use proptest::prelude::*;
use tokenbucket::bucket::NoReturns;

/// Judges every call, and what is stored and when it expires behind it. Returns whether all was exact.
fn is_exact_for_ever(limits: &[Limit], start_us: i64, steps: &[Step], expires_late: bool) -> bool {
    let mut judged = Judged::default();
    judged.expires_late = expires_late;
    let mut is_exact = true;
    walk(limits, start_us, steps, |limit, operation, now_us| {
        let outcome = judged.call(limit, operation, now_us);
        let level = judged.model.level(limit, now_us);
        is_exact &= level.low == level.high;
        outcome.map_or(0, |outcome| outcome.decision.retry_after_ms)
    });
    is_exact
}

proptest! {
    #![proptest_config(super::config(8))]

    /// Also while limits change from call to call, and the clock is set back.
    #[test]
    fn whole_rates_are_exact_for_ever(
        limits in prop::collection::vec(scenario::limits(scenario::whole_rates()), 1..4),
        start_us in scenario::starts(),
        steps in scenario::steps(scenario::unsteady_ticks(), scenario::wishes()),
        late in any::<bool>(),
    ) {
        prop_assert!(is_exact_for_ever(&limits, start_us, &steps, late));
    }

    #[test]
    fn no_rate_ever_grants_more_than_the_model_nor_loses_more_than_the_bound(
        limit in scenario::limits(scenario::rates()),
        start_us in scenario::starts(),
        steps in scenario::steps(scenario::unsteady_ticks(), scenario::wishes()),
        late in any::<bool>(),
    ) {
        is_exact_for_ever(&[limit], start_us, &steps, late);
    }

    /// The new rate counts from the last write. What that write left over of a micro-token, at a rate below one token
    /// a second, is kept as the time in which it flowed, and that time is counted at the new rate.
    #[test]
    fn a_changed_rate_counts_from_the_last_write(
        limits in prop::collection::vec(scenario::limits(scenario::rates()), 2..4),
        start_us in scenario::starts(),
        steps in scenario::steps(scenario::unsteady_ticks(), scenario::wishes()),
    ) {
        is_exact_for_ever(&limits, start_us, &steps, true);
    }

    /// Between any two moments, nobody obtains more than a full bucket, what has flowed in since, and what was given.
    #[test]
    fn nobody_obtains_more_than_flows_in(
        limit in scenario::limits(scenario::rates()),
        start_us in scenario::starts(),
        steps in scenario::steps(
            scenario::unsteady_ticks(),
            prop_oneof![3 => scenario::takes(), 1 => scenario::takes_up_to(), 1 => scenario::gives()],
        ),
    ) {
        let mut judged = Judged::default();
        let mut moves: Vec<(i64, i64, i64)> = Vec::new();
        walk(std::slice::from_ref(&limit), start_us, &steps, |limit, operation, now_us| {
            let outcome = judged.call(limit, operation, now_us).unwrap();
            let given_micro = if let Operation::Give { amount_micro } = operation { amount_micro } else { 0 };
            moves.push((now_us, outcome.granted_micro, given_micro));
            outcome.decision.retry_after_ms
        });
        for first in 0..moves.len() {
            let mut last_us = moves[first].0;
            let (mut obtained, mut available) = (Exact::zero(), limit.capacity.clone());
            for (now_us, granted_micro, given_micro) in &moves[first..] {
                available += limit.flow.between(last_us, *now_us) + whole(*given_micro);
                obtained += whole(*granted_micro);
                prop_assert!(obtained <= available, "{:?}", moves);
                last_us = *now_us;
            }
        }
    }

    /// Against a model that makes its own decisions: callers who all pay the same never get more out of the module,
    /// and get less by no more than its losses add up to.
    #[test]
    fn equal_takes_are_granted_as_often_as_by_the_model(
        limit in scenario::limits(scenario::rates()),
        start_us in scenario::starts(),
        cost in scenario::amounts(),
        ticks in prop::collection::vec(scenario::ticks(), 1..60),
    ) {
        let (mut judged, mut own) = (Judged::default(), Model::default());
        let take = Wish::Take(cost).of(&limit, 0);
        let cost = moved(take, 1);
        prop_assume!(cost.is_positive());
        let (mut granted, mut due, mut now_us, mut told_ms) = (0i64, 0i64, start_us, 0);
        for tick in ticks {
            now_us = tick.after(now_us, &limit, told_ms);
            let told = judged.call(&limit, take, now_us).unwrap().decision;
            let own_allowed = allowed(take, &limit, &own.level(&limit, now_us).high, &[], now_us).unwrap();
            own.apply(&limit, take, now_us, own_allowed, false);
            (granted, due, told_ms) = (granted + told.allowed, due + own_allowed, told.retry_after_ms);
            prop_assert!(granted <= due, "{} of {}", granted, due);
            let lost = limit.flow.loss() * whole(granted);
            // What was lost may be all that is missing for the next.
            let missing = whole(due - granted - 1) * &cost;
            prop_assert!(missing < lost || missing.is_negative(), "{} of {}", granted, due);
        }
    }

    /// A reservation that is given back, at once or later, might as well not have been made.
    #[test]
    fn reserve_then_give_leaves_the_bucket_as_it_was(
        limit in scenario::limits(prop_oneof![scenario::rates(), scenario::whole_rates()]),
        sight in scenario::sights(scenario::ticks()),
        wish in scenario::reserves(),
        later in scenario::ticks(),
        looked_at in scenario::ticks(),
    ) {
        let (stored, now_us) = sight.of(&limit);
        let Operation::Reserve { cost_micro, max_wait_ms } = wish.of(&limit, 0) else { unreachable!() };
        let mut judged = Judged::found(stored);
        let reserve = Operation::Reserve { cost_micro, max_wait_ms };
        let reserved = judged.call(&limit, reserve, now_us).unwrap().decision;
        prop_assume!(reserved.allowed == 1 && cost_micro > 0);
        let given_at_us = later.after(now_us, &limit, reserved.retry_after_ms);
        judged.call(&limit, Operation::Give { amount_micro: cost_micro }, given_at_us).unwrap();
        let looked_at_us = looked_at.after(given_at_us, &limit, 0);
        let level = |stored| Model::found(stored).level(&limit, looked_at_us).high;
        let (left, untouched) = (level(judged.stored), level(stored));
        prop_assert!(left <= untouched, "{} of {}", left, untouched);
        prop_assert!(&untouched - &left <= limit.flow.loss() * whole(2), "{} of {}", left, untouched);
        if limit.is_whole() {
            let described = |stored| limit.module().withhold(stored, NoReturns, looked_at_us).decision;
            prop_assert_eq!(described(judged.stored), described(stored));
        }
    }
}
