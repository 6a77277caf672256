//! Tokens that are put back.

use super::oracle::judge::loss;
use super::oracle::module::{Found, Module};
use super::oracle::rational::integer;
use super::scenario;
use proptest::prelude::*;
use tokenbucket::bucket::{Change, Operation};
use tokenbucket::number::MAX_MICRO;

proptest! {
    #![proptest_config(super::config(32))]

    /// A reservation that is given back, at once or later, might as well not have been made.
    #[test]
    fn reserve_then_give_leaves_the_bucket_as_it_was(
        limit in scenario::limits(prop_oneof![scenario::rates(), scenario::whole_rates()]),
        sight in scenario::sights(scenario::ticks()),
        wish in scenario::reserves(),
        later in scenario::ticks(),
        looked_at in scenario::ticks(),
    ) {
        let Found { stored, now_us } = sight.of(&limit);
        let operation = wish.of(&limit, 0);
        let cost_micro = scenario::amount_micro(operation);
        let mut module = Module { stored };
        let reserved = module.call(&limit.limit, operation, now_us).unwrap().decision;
        prop_assume!(reserved.allowed == 1 && cost_micro > 0);
        let given_at_us = later.after(now_us, &limit, reserved.retry_after_ms);
        module.call(&limit.limit, Operation::Give { amount_micro: cost_micro }, given_at_us).unwrap();
        let looked_at_us = looked_at.after(given_at_us, &limit, 0);
        let level = Found { stored: module.stored, now_us: looked_at_us }.level(&limit);
        let untouched = Found { stored, now_us: looked_at_us }.level(&limit);
        prop_assert!(level <= untouched, "{} of {}", level, untouched);
        prop_assert!(&untouched - &level <= loss(&limit.exact.rate) * integer(2), "{} of {}", level, untouched);
        if limit.is_whole() {
            prop_assert_eq!(
                limit.limit.describe(module.stored, looked_at_us),
                limit.limit.describe(stored, looked_at_us)
            );
        }
    }

    #[test]
    fn give_never_exceeds_the_capacity(
        limit in scenario::limits(scenario::rates()),
        sight in scenario::sights(scenario::unsteady_ticks()),
        wish in scenario::gives(),
        looked_at in scenario::ticks(),
    ) {
        let Found { stored, now_us } = sight.of(&limit);
        let give = wish.of(&limit, 0);
        let amount_micro = scenario::amount_micro(give);
        let mut module = Module { stored };
        let before = Found { stored, now_us }.level(&limit);
        let outcome = module.call(&limit.limit, give, now_us).unwrap();
        let after = Found { stored: module.stored, now_us }.level(&limit);
        prop_assert_eq!(outcome.granted_micro, 0);
        prop_assert!(after <= (&before + integer(amount_micro)).min(limit.exact.capacity.clone()));
        let filled = before.clone() < limit.exact.capacity && before + integer(amount_micro) >= limit.exact.capacity;
        prop_assert_eq!(outcome.change == Change::Clear, filled, "{:?}", outcome);
        let looked_at_us = looked_at.after(now_us, &limit, 0);
        let too_much = Operation::Take { cost_micro: (limit.limit.capacity_micro() + 1).min(MAX_MICRO) };
        if limit.limit.capacity_micro() < MAX_MICRO {
            let taken = limit.limit.decide(module.stored, too_much, looked_at_us).unwrap().decision;
            prop_assert_eq!(taken.allowed, 0);
        }
    }
}
