//! What callers are told to wait, and what they find when they did.

use super::oracle::judge::LATE_US;
use super::oracle::module::{Found, Module};
use super::oracle::rational::{integer, Exact};
use super::scenario;
use super::{after_ms, limit, take, walk};
use num_traits::Zero;
use proptest::prelude::*;
use tokenbucket::bucket::{Bucket, Operation, MAX_TIME_US};
use tokenbucket::number::MAX_MICRO;

proptest! {
    #![proptest_config(super::config(32))]

    /// The same call as many milliseconds later as told is allowed, and a millisecond earlier it is not.
    #[test]
    fn retry_after_is_honest_to_the_millisecond(
        limit in scenario::limits(scenario::rates()),
        sight in scenario::sights(scenario::unsteady_ticks()),
        wish in prop_oneof![scenario::takes(), scenario::takes_up_to()],
    ) {
        let Found { stored, now_us } = sight.of(&limit);
        let operation = wish.of(&limit, 0);
        let mut module = Module { stored };
        let denied = module.call(&limit.limit, operation, now_us).unwrap().decision;
        prop_assume!(denied.allowed == 0);
        let allowed_at = |now_us| limit.limit.decide(module.stored, operation, now_us).unwrap().decision.allowed > 0;
        if denied.retry_after_ms == -1 {
            prop_assert!(!allowed_at(MAX_TIME_US));
        } else if let Some(then_us) = after_ms(now_us, denied.retry_after_ms) {
            prop_assert!(allowed_at(then_us), "{:?}", denied);
            prop_assert!(!allowed_at(then_us - 1000), "{:?}", denied);
        }
    }

    /// The bucket is full as many milliseconds later as told, and a millisecond earlier it is not.
    #[test]
    fn reset_after_is_honest_to_the_millisecond(
        limit in scenario::limits(scenario::rates()),
        sight in scenario::sights(scenario::ticks()),
        wish in scenario::wishes(),
    ) {
        let Found { stored, now_us } = sight.of(&limit);
        let mut module = Module { stored };
        let Ok(outcome) = module.call(&limit.limit, wish.of(&limit, 0), now_us) else { return Ok(()) };
        let told = outcome.decision;
        let all = Operation::Take { cost_micro: limit.limit.capacity_micro() };
        let full_at = |now_us| limit.limit.decide(module.stored, all, now_us).unwrap().decision.allowed == 1;
        if let Some(then_us) = after_ms(now_us, told.reset_after_ms) {
            prop_assert!(full_at(then_us), "{:?}", told);
            prop_assert_eq!(limit.limit.describe(module.stored, then_us).reset_after_ms, 0);
            prop_assert!(told.reset_after_ms == 0 || !full_at(then_us - 1000), "{:?}", told);
        }
    }

    /// Whoever was told to wait for a debt to end finds none then (but for what the write lost), and finds it a
    /// millisecond earlier.
    #[test]
    fn a_debt_lasts_as_long_as_told(
        limit in scenario::limits(scenario::rates()),
        sight in scenario::sights(scenario::ticks()),
        wish in prop_oneof![scenario::reserves(), scenario::amounts().prop_map(scenario::Wish::Charge)],
    ) {
        let Found { stored, now_us } = sight.of(&limit);
        let mut module = Module { stored };
        let Ok(outcome) = module.call(&limit.limit, wish.of(&limit, 0), now_us) else { return Ok(()) };
        let told = outcome.decision;
        prop_assume!(told.allowed == 1);
        let solvent_at = |now_us| limit.limit.decide(module.stored, take(0), now_us).unwrap().decision.allowed == 1;
        if let Some(then_us) = after_ms(now_us, told.retry_after_ms) {
            let late_us = if limit.is_whole() { 0 } else { LATE_US };
            prop_assert!(solvent_at(then_us + late_us), "{:?}", told);
            prop_assert!(told.retry_after_ms == 0 || !solvent_at(then_us - 1000), "{:?}", told);
        }
    }

    /// Whoever is told how long a reservation would have made him wait, and would wait as long, gets it.
    #[test]
    fn a_refused_reservation_is_granted_to_who_waits_as_told(
        limit in scenario::limits(scenario::rates()),
        sight in scenario::sights(scenario::ticks()),
        wish in scenario::reserves(),
    ) {
        let Found { stored, now_us } = sight.of(&limit);
        let operation = wish.of(&limit, 0);
        let cost_micro = scenario::amount_micro(operation);
        let refused = limit.limit.decide(stored, operation, now_us).unwrap().decision;
        prop_assume!(refused.allowed == 0 && (0..=scenario::MAX_WAIT_MS).contains(&refused.retry_after_ms));
        let patient = Operation::Reserve { cost_micro, max_wait_ms: refused.retry_after_ms };
        let granted = limit.limit.decide(stored, patient, now_us).unwrap().decision;
        let after = sight.of(&limit).exact().level(&limit.exact, now_us) - integer(cost_micro);
        if after >= integer(-MAX_MICRO) {
            prop_assert_eq!((granted.allowed, granted.retry_after_ms), (1, refused.retry_after_ms));
        } else {
            prop_assert_eq!(granted, refused);
        }
    }

    #[test]
    fn reserve_without_patience_is_take(
        limit in scenario::limits(scenario::rates()),
        sight in scenario::sights(scenario::unsteady_ticks()),
        wish in scenario::takes(),
    ) {
        let Found { stored, now_us } = sight.of(&limit);
        let take = wish.of(&limit, 0);
        let cost_micro = scenario::amount_micro(take);
        let reserve = Operation::Reserve { cost_micro, max_wait_ms: 0 };
        let taken = limit.limit.decide(stored, take, now_us);
        prop_assert_eq!(limit.limit.decide(stored, reserve, now_us), taken);
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
        let mut module = Module::default();
        let mut acts: Vec<(i64, i64, i64)> = Vec::new();
        walk(std::slice::from_ref(&limit), start_us, &steps, |limit, operation, now_us| {
            let told = module.call(&limit.limit, operation, now_us).unwrap().decision;
            let cost_micro = scenario::amount_micro(operation);
            if told.allowed == 1 && cost_micro > 0 {
                acts.push((now_us + told.retry_after_ms * 1000, cost_micro, told.retry_after_ms.min(1) * 1000));
            }
            Ok(told.retry_after_ms)
        })?;
        for (first, (from_us, _, rounded_us)) in acts.iter().enumerate() {
            let mut spent = Exact::zero();
            for (to_us, cost_micro, _) in &acts[first..] {
                prop_assert!(*to_us > from_us - 1000, "served before those who asked earlier: {:?}", acts);
                spent += integer(*cost_micro);
                let flowed = &limit.exact.rate * integer((to_us - from_us).max(0) + rounded_us);
                prop_assert!(spent <= &limit.exact.capacity + flowed, "{:?}", acts);
            }
        }
    }
}

/// The write of a reservation may lose what flows in a microsecond. That once made the debt last a millisecond longer
/// than was told to whoever was refused, and who then would have waited exactly as long was refused again.
#[test]
fn who_would_wait_exactly_as_long_as_it_takes_is_served() {
    let limit = limit(1, "100/m");
    let stored = Bucket::checked(0, 1_700_000_000_000_000);
    let reserve = |max_wait_ms| {
        let operation = Operation::Reserve { cost_micro: 1_000_000, max_wait_ms };
        limit.decide(stored, operation, 1_700_000_000_001_000).unwrap().decision
    };
    assert_eq!((reserve(0).allowed, reserve(0).retry_after_ms, reserve(0).reset_after_ms), (0, 599, 599));
    assert_eq!((reserve(598).allowed, reserve(598).retry_after_ms), (0, 599));
    assert_eq!((reserve(599).allowed, reserve(599).retry_after_ms), (1, 599));
}
