//! One call, from any state that a bucket may be in.

use super::oracle::bucket::{LONGEST_TOLD_MS, TOKEN};
use super::oracle::judge::{assert_one_call_is_exact, loss};
use super::oracle::module::{Found, Module, Worded};
use super::oracle::rational::integer;
use super::scenario::{self, Tick};
use super::{limit, take};
use proptest::prelude::*;
use tokenbucket::bucket::{Bucket, Change, Operation, MAX_TIME_US};
use tokenbucket::number::{MAX_MICRO, MAX_TOKENS};

proptest! {
    #![proptest_config(super::config(32))]

    /// From any state that a bucket may be in, also debts and levels above the capacity of the call, one call is exact
    /// at any rate: what is allowed, what is left, how long to wait, and what is written.
    #[test]
    fn one_call_from_any_state_is_exact(
        limit in scenario::limits(scenario::rates()),
        sight in scenario::sights(scenario::unsteady_ticks()),
        wish in scenario::wishes(),
    ) {
        let found = sight.of(&limit);
        let operation = wish.of(&limit, 0);
        let outcome = limit.limit.decide(found.stored, operation, found.now_us);
        assert_one_call_is_exact(&limit, found, operation, &outcome);
    }

    #[test]
    fn a_denial_leaves_no_trace(
        limit in scenario::limits(scenario::rates()),
        sight in scenario::sights(scenario::ticks()),
        wish in prop_oneof![scenario::takes(), scenario::takes_up_to(), scenario::reserves()],
    ) {
        let Found { stored, now_us } = sight.of(&limit);
        let outcome = limit.limit.decide(stored, wish.of(&limit, 0), now_us).unwrap();
        prop_assume!(outcome.decision.allowed == 0);
        prop_assert_eq!(outcome.change, Change::Keep);
        prop_assert_eq!(outcome.granted_micro, 0);
        let described = limit.limit.describe(stored, now_us);
        prop_assert_eq!(outcome.decision.remaining, described.remaining);
        prop_assert_eq!(outcome.decision.reset_after_ms, described.reset_after_ms);
    }

    #[test]
    fn a_level_is_reached_when_it_was_foreseen(
        limit in scenario::limits(scenario::rates()),
        sight in scenario::sights(scenario::unsteady_ticks()),
        level in scenario::amounts(),
        in_debt in any::<bool>(),
    ) {
        let Found { stored, now_us } = sight.of(&limit);
        let level = level.micro(&limit.limit).min(limit.limit.capacity_micro());
        let level = if in_debt { -level } else { level };
        let missing = integer(level) - Found { stored, now_us }.level(&limit);
        let wait_us = limit.exact.time_us(&missing).ceil().to_integer();
        let told_us = limit.limit.wait_us(stored, level, now_us);
        let longest_told_us = LONGEST_TOLD_MS * 1000;
        let right = if wait_us < longest_told_us.into() { wait_us == told_us.into() } else { told_us >= longest_told_us };
        prop_assert!(right, "{} us, not {}", told_us, wait_us);
    }

    /// A bucket that is only known by when it will be full.
    #[test]
    fn a_bucket_is_made_from_the_moment_at_which_it_is_full(
        limit in scenario::limits(scenario::rates()),
        // Not so early that there is no time to date a rounding back to.
        now_us in scenario::starts().prop_map(|now_us| now_us.max(1_000_000_000_000)),
        until_full in scenario::unsteady_ticks(),
    ) {
        let full_at_us = until_full.after(now_us, &limit, 0);
        let bucket = limit.limit.full_at(full_at_us, now_us);
        prop_assert_eq!(Bucket::checked(bucket.level_micro, bucket.refilled_at_us), Some(bucket));
        prop_assert!(bucket.refilled_at_us <= now_us, "{:?}", bucket);
        let missing = &limit.exact.rate * integer((full_at_us - now_us).max(0));
        let level = (&limit.exact.capacity - missing).max(integer(-MAX_MICRO));
        let made = Found { stored: Some(bucket), now_us }.level(&limit);
        let at_the_bottom = bucket.level_micro == -MAX_MICRO;
        prop_assert!(made <= level || at_the_bottom, "{:?} holds {} of {}", bucket, made, level);
        prop_assert!(&level - &made <= loss(&limit.exact.rate), "{:?} holds {} of {}", bucket, made, level);
    }

    /// A clock that stepped back finds the bucket as it was left, and the bucket counts on from the new time.
    #[test]
    fn a_clock_that_stepped_back_neither_grants_nor_locks(
        limit in scenario::limits(scenario::rates()),
        sight in scenario::sights(scenario::spread(MAX_TIME_US).prop_map(Tick::Back)),
        wish in scenario::wishes(),
        later_us in scenario::spread(MAX_TIME_US),
    ) {
        let Found { stored: Some(stored), now_us } = sight.of(&limit) else { return Ok(()) };
        prop_assume!(now_us < stored.refilled_at_us);
        let operation = wish.of(&limit, 0);
        let (mut steady, mut stepped) = (Module { stored: Some(stored) }, Module { stored: Some(stored) });
        let expected = steady.call(&limit.limit, operation, stored.refilled_at_us);
        let outcome = stepped.call(&limit.limit, operation, now_us);
        prop_assert_eq!(outcome.map(|outcome| outcome.decision), expected.map(|outcome| outcome.decision));
        let Ok(outcome) = outcome else { return Ok(()) };
        if outcome.decision.allowed == 0 {
            let counts_on = Bucket { refilled_at_us: now_us, ..stored };
            prop_assert_eq!(stepped.stored, Some(counts_on));
        }
        // From here on, the two live the same life at different times.
        if outcome.change != Change::Keep {
            let later_us = later_us.min(MAX_TIME_US - stored.refilled_at_us);
            let told = limit.limit.describe(stepped.stored, now_us + later_us);
            prop_assert_eq!(told, limit.limit.describe(steady.stored, stored.refilled_at_us + later_us));
        }
    }
}

/// The smallest amounts and the largest, the fastest rate and the slowest, the ends of time, the deepest debt: every
/// combination of them, and each decision is the exact one or as much as is ever told.
#[test]
fn nothing_overflows_at_the_extremes() {
    let rates = [
        ("1e12", integer(MAX_TOKENS)),
        ("999999999999/1000ms", integer(999_999_999_999i64)),
        ("1/36525d", integer(TOKEN) / integer(3_155_760_000_000_000i64)),
        ("1", integer(1)),
        (
            "999999999989e14/999999999961d",
            integer(999_999_999_989i64) / integer(999_999_999_961i64) / integer(86_400)
                * integer(100_000_000_000_000i64),
        ),
        ("999999999989/999999999961s", integer(999_999_999_989i64) / integer(999_999_999_961i64)),
        (
            "999999999989e-8/999999999961s",
            integer(999_999_999_989i64) / integer(999_999_999_961i64) / integer(100_000_000),
        ),
    ];
    let amounts = [0, 1, TOKEN, MAX_MICRO - 1, MAX_MICRO];
    let levels = [
        None,
        Some(-MAX_MICRO),
        Some(1 - MAX_MICRO),
        Some(-1),
        Some(0),
        Some(1),
        Some(MAX_MICRO - 1),
        Some(MAX_MICRO),
    ];
    let times = [0, 1, MAX_TIME_US / 2, MAX_TIME_US - 1, MAX_TIME_US];
    for rate in rates {
        let rate = (rate.0.to_owned(), rate.1);
        for capacity in amounts {
            let limit = Worded::new(capacity, &rate);
            for (level, refilled_at_us, now_us) in combinations(&levels, &times) {
                let stored = level.map(|level_micro| Bucket { level_micro, refilled_at_us });
                for operation in amounts.iter().flat_map(|amount| all_operations(*amount)) {
                    let outcome = limit.limit.decide(stored, operation, now_us);
                    let found = Found { stored, now_us };
                    assert_one_call_is_exact(&limit, found, operation, &outcome);
                }
            }
        }
    }
}

fn combinations(levels: &[Option<i64>], times: &[i64]) -> Vec<(Option<i64>, i64, i64)> {
    let mut all = Vec::new();
    for level in levels {
        for refilled_at_us in times {
            all.extend(times.iter().map(|now_us| (*level, *refilled_at_us, *now_us)));
        }
    }
    all
}

fn all_operations(micro: i64) -> [Operation; 7] {
    let reserve = |max_wait_ms| Operation::Reserve { cost_micro: micro, max_wait_ms };
    [
        Operation::Take { cost_micro: micro },
        Operation::TakeUpTo { max_tokens: (micro / TOKEN).max(1) },
        reserve(0),
        reserve(1),
        reserve(3_155_760_000_000),
        Operation::Charge { amount_micro: micro },
        Operation::Give { amount_micro: micro },
    ]
}

/// A clock beyond all bounds is as good as one at the bound.
#[test]
fn a_clock_out_of_bounds_is_taken_for_the_nearest_within() {
    let limit = limit(10, "3.7");
    let bucket = Bucket::checked(3 * TOKEN, 1_700_000_000_000_000);
    for (clock_us, nearest_us) in
        [(i64::MIN, 0), (-1, 0), (MAX_TIME_US + 1, MAX_TIME_US), (i64::MAX, MAX_TIME_US)]
    {
        for stored in [None, bucket] {
            assert_eq!(limit.decide(stored, take(1), clock_us), limit.decide(stored, take(1), nearest_us));
        }
    }
}

#[test]
fn only_what_a_bucket_can_hold_is_a_state() {
    for level_micro in [-MAX_MICRO, -1, 0, 1, MAX_MICRO] {
        for refilled_at_us in [0, 1, MAX_TIME_US] {
            let bucket = Bucket { level_micro, refilled_at_us };
            assert_eq!(Bucket::checked(level_micro, refilled_at_us), Some(bucket));
        }
    }
    for (level_micro, refilled_at_us) in [
        (-MAX_MICRO - 1, 0),
        (MAX_MICRO + 1, 0),
        (i64::MIN, 0),
        (i64::MAX, 0),
        (0, -1),
        (0, i64::MIN),
        (0, MAX_TIME_US + 1),
        (0, i64::MAX),
    ] {
        assert_eq!(Bucket::checked(level_micro, refilled_at_us), None, "{level_micro} {refilled_at_us}");
    }
}

/// A denial takes nothing, also where all that it may write is the time of a clock that was set back: here it took what
/// was above the capacity that came with the denied call.
#[test]
fn a_denial_after_a_step_back_takes_nothing() {
    let (small, large) = (limit(1, "1"), limit(10, "1"));
    let now_us = 1_700_000_000_000_000;
    let mut module = Module { stored: Bucket::checked(8 * TOKEN, now_us) };
    let denied = module.call(&small, take(2), now_us - 1).unwrap().decision;
    assert_eq!((denied.allowed, denied.retry_after_ms), (0, -1));
    assert_eq!(module.stored, Bucket::checked(8 * TOKEN, now_us - 1));
    assert_eq!(large.describe(module.stored, now_us - 1).remaining, 8);
}
