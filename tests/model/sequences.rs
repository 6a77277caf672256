//! Sequences of calls, with clocks that run, stand and are set back.

use super::oracle::bucket::{ExactBucket, Stored};
use super::oracle::judge::{loss, Judge};
use super::oracle::module::{Module, Worded};
use super::oracle::rational::{integer, Exact};
use super::scenario::{self, Amount, Wish};
use super::{told_ms, walk};
use num_traits::{Signed, Zero};
use proptest::prelude::*;
use tokenbucket::bucket::{DebtTooDeep, Operation, Outcome};

/// The same bucket in both, to the micro-token and the microsecond.
fn assert_same_state(module: Module, exact: &ExactBucket) -> Result<(), TestCaseError> {
    let stored = module
        .stored
        .map(|bucket| Stored { level: integer(bucket.level_micro), written_at_us: bucket.refilled_at_us });
    prop_assert_eq!(stored, exact.stored.clone());
    Ok(())
}

proptest! {
    #![proptest_config(super::config(8))]

    /// Also while limits change from call to call, and the clock is set back.
    #[test]
    fn whole_rates_are_exact_for_ever(
        limits in prop::collection::vec(scenario::limits(scenario::whole_rates()), 1..4),
        start_us in scenario::starts(),
        steps in scenario::steps(scenario::unsteady_ticks(), scenario::wishes()),
    ) {
        let (mut module, mut exact) = (Module::default(), ExactBucket::default());
        walk(&limits, start_us, &steps, |limit, operation, now_us| {
            let outcome = module.call(&limit.limit, operation, now_us);
            match (&outcome, exact.call(&limit.exact, operation, now_us)) {
                (Ok(outcome), Ok(reply)) => {
                    let told = outcome.decision;
                    prop_assert!(reply.is_told_by(&told), "{:?}: told {:?}, not {:?}", operation, told, reply);
                }
                (Err(DebtTooDeep), Err(_)) => {}
                (told, reply) => prop_assert!(false, "{:?}: told {:?}, not {:?}", operation, told, reply),
            }
            assert_same_state(module, &exact)?;
            Ok(told_ms(outcome))
        })?;
    }

    #[test]
    fn no_rate_ever_grants_more_than_the_model_nor_loses_more_than_the_bound(
        limit in scenario::limits(scenario::rates()),
        start_us in scenario::starts(),
        steps in scenario::steps(scenario::unsteady_ticks(), scenario::wishes()),
    ) {
        let (mut module, mut judge) = (Module::default(), Judge::default());
        walk(&[limit], start_us, &steps, |limit, operation, now_us| {
            let outcome = module.call(&limit.limit, operation, now_us);
            judge.hear(limit, operation, now_us, &outcome);
            prop_assert!(judge.excess.is_zero());
            Ok(told_ms(outcome))
        })?;
    }

    /// The new rate counts from the last write. What that write left over of a micro-token, at a rate below one token
    /// a second, is kept as the time in which it flowed, and that time is counted at the new rate.
    #[test]
    fn a_changed_rate_counts_from_the_last_write(
        limits in prop::collection::vec(scenario::limits(scenario::rates()), 2..4),
        start_us in scenario::starts(),
        steps in scenario::steps(scenario::unsteady_ticks(), scenario::wishes()),
    ) {
        let (mut module, mut judge) = (Module::default(), Judge::default());
        walk(&limits, start_us, &steps, |limit, operation, now_us| {
            let outcome = module.call(&limit.limit, operation, now_us);
            judge.hear(limit, operation, now_us, &outcome);
            Ok(told_ms(outcome))
        })?;
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
        let mut module = Module::default();
        let mut moves: Vec<(i64, i64, i64)> = Vec::new();
        walk(std::slice::from_ref(&limit), start_us, &steps, |limit, operation, now_us| {
            let outcome = module.call(&limit.limit, operation, now_us).unwrap();
            let given_micro = if let Operation::Give { amount_micro } = operation { amount_micro } else { 0 };
            moves.push((now_us, outcome.granted_micro, given_micro));
            Ok(outcome.decision.retry_after_ms)
        })?;
        for first in 0..moves.len() {
            let mut last_us = moves[first].0;
            let (mut obtained, mut available) = (Exact::zero(), limit.exact.capacity.clone());
            for (now_us, granted_micro, given_micro) in &moves[first..] {
                available += &limit.exact.rate * integer((now_us - last_us).max(0)) + integer(*given_micro);
                obtained += integer(*granted_micro);
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
        let (mut module, mut exact) = (Module::default(), ExactBucket::default());
        let operation = Wish::Take(cost).of(&limit, 0);
        let cost_micro = scenario::amount_micro(operation);
        prop_assume!(cost_micro > 0);
        let (mut granted, mut due, mut now_us, mut told_ms) = (0i64, 0i64, start_us, 0);
        for tick in ticks {
            now_us = tick.after(now_us, &limit, told_ms);
            let told = module.call(&limit.limit, operation, now_us).unwrap().decision;
            granted += told.allowed;
            due += exact.call(&limit.exact, operation, now_us).unwrap().allowed;
            told_ms = told.retry_after_ms;
            prop_assert!(granted <= due, "{} of {}", granted, due);
            let lost = loss(&limit.exact.rate) * integer(granted);
            // What was lost may be all that is missing for the next.
            let missing = integer(due - granted - 1) * integer(cost_micro);
            prop_assert!(missing < lost || missing.is_negative(), "{} of {}", granted, due);
        }
    }

    /// `TB.MTAKE`: each bucket decides alone. If all would allow, all are taken from, and if one would not, none is.
    #[test]
    fn several_buckets_are_taken_from_together_or_not_at_all(
        limits in prop::collection::vec(scenario::limits(scenario::whole_rates()), 1..5),
        start_us in scenario::starts(),
        rounds in prop::collection::vec(
            (scenario::unsteady_ticks(), prop::collection::vec(scenario::amounts(), 5)),
            1..12,
        ),
    ) {
        let mut buckets: Vec<Member> = limits.into_iter().map(Member::new).collect();
        let mut now_us = start_us;
        for (tick, costs) in rounds {
            now_us = tick.after(now_us, &buckets[0].limit, 0);
            let all = buckets.iter().zip(&costs).all(|(bucket, cost)| bucket.would_allow(*cost, now_us));
            for (bucket, cost) in buckets.iter_mut().zip(&costs) {
                bucket.decide_among(all, *cost, now_us)?;
            }
        }
    }
}

/// One of several buckets that are decided on together.
struct Member {
    limit: Worded,
    module: Module,
    exact: ExactBucket,
}

impl Member {
    fn new(limit: Worded) -> Self {
        Self { limit, module: Module::default(), exact: ExactBucket::default() }
    }

    fn alone(&self, cost: Amount, now_us: i64) -> Outcome {
        self.limit.limit.decide(self.module.stored, Wish::Take(cost).of(&self.limit, 0), now_us).unwrap()
    }

    fn would_allow(&self, cost: Amount, now_us: i64) -> bool {
        self.alone(cost, now_us).decision.allowed == 1
    }

    /// Goes along with the others, and says what this bucket would have said alone.
    fn decide_among(&mut self, all: bool, cost: Amount, now_us: i64) -> Result<(), TestCaseError> {
        let alone = self.alone(cost, now_us);
        let held_back = !all && alone.decision.allowed == 1;
        let (told, reply) = if held_back {
            let told = self.limit.limit.describe(self.module.stored, now_us);
            (told, self.exact.describe(&self.limit.exact, now_us))
        } else {
            self.module.apply(alone.change);
            let take = Wish::Take(cost).of(&self.limit, 0);
            (alone.decision, self.exact.call(&self.limit.exact, take, now_us).unwrap())
        };
        prop_assert!(reply.is_told_by(&told), "{:?}: told {:?}, not {:?}", cost, told, reply);
        assert_same_state(self.module, &self.exact)
    }
}
