//! Theorems of `proofs`, which `make prove` proves for all numbers, on random ones: those of what no test compares with the exact
//! model.

use super::scenario::rates;
use super::strategies::spread;
use proptest::prelude::*;
use proptest::sample::select;
use tokenbucket_core::bucket::{Decision, MAX_TIME_US};
use tokenbucket_core::hold::{Extension, Hold};
use tokenbucket_core::number::{MAX_MICRO, MAX_TOKENS};
use tokenbucket_core::rate::Rate;

#[path = "../../../proofs/src/lib.rs"]
#[allow(dead_code)]
mod of_core;

use of_core::{AnyHolds, Scene, Verdict, HOLDS, OUTSIDE};

/// Panics with the number of a broken sentence. Outside of its domain a theorem claims nothing.
#[track_caller]
fn assert_kept<const N: usize>(verdicts: [Verdict; N]) {
    assert!(verdicts.iter().all(|verdict| [HOLDS, OUTSIDE].contains(verdict)), "{verdicts:?}");
}

fn terms() -> impl Strategy<Value = (u64, u64)> {
    let term =
        || prop_oneof![3 => 1..100u64, 1 => any::<u64>(), 2 => spread(i64::MAX).prop_map(i64::unsigned_abs)];
    (term(), term())
}

fn times() -> impl Strategy<Value = i64> {
    prop_oneof![spread(MAX_TIME_US), 0..10_000_000i64]
}

fn amounts() -> impl Strategy<Value = i64> {
    prop_oneof![3 => spread(MAX_MICRO), 3 => 0..10_000_000i64, 1 => select(vec![0, 1, MAX_MICRO])]
}

/// A call on any state of any bucket that refills: its amount, whole tokens, and longest wait in milliseconds.
fn calls() -> impl Strategy<Value = (Scene<'static>, (i64, i64, i64))> {
    let levels = (amounts(), any::<bool>()).prop_map(|(micro, is_debt)| if is_debt { -micro } else { micro });
    // Mostly shortly before the call, when the bucket is not full again.
    let ages = prop_oneof![4 => -1_000_000..10_000_000i64, 1 => spread(MAX_TIME_US)];
    let stored = (prop::bool::weighted(0.9), levels, ages);
    let tokens = prop_oneof![1..10i64, spread(MAX_TOKENS).prop_map(|tokens| tokens.max(1))];
    let arguments = (amounts(), tokens, spread(30 * 86_400_000));
    let ended = prop_oneof![2 => Just(0), 1 => amounts(), 1 => Just(1 << 61)];
    let holds = (ended, prop_oneof![Just(i64::MIN), times()])
        .prop_map(|(returned_micro, last_end_us)| AnyHolds { returned_micro, last_end_us });
    (rates(), amounts(), stored, times(), holds, arguments).prop_map(
        |(rate, capacity_micro, (is_stored, level_micro, age_us), now_us, holds, arguments)| {
            let rate = Box::leak(Box::new(Rate::parse(rate.as_bytes()).unwrap()));
            let refilled_at_us = (now_us - age_us).clamp(0, MAX_TIME_US);
            (Scene { rate, capacity_micro, is_stored, level_micro, refilled_at_us, now_us, holds }, arguments)
        },
    )
}

/// A few decisions that often agree in a field, and any others.
fn decisions() -> impl Strategy<Value = Decision> {
    let number = || prop_oneof![3 => -1..3i64, 1 => any::<i64>()];
    let wait_ms = || prop_oneof![3 => -1..3i64, 1 => spread(i64::MAX)];
    let fields = (number(), number(), wait_ms(), wait_ms());
    fields.prop_map(|(allowed, remaining, retry_after_ms, reset_after_ms)| Decision {
        allowed,
        remaining,
        retry_after_ms,
        reset_after_ms,
    })
}

/// Holds of up to three ids, of which some have ended.
fn holds(now_us: i64) -> impl Strategy<Value = Vec<Hold>> {
    let ages = prop_oneof![-10_000_000..1_000_000i64, spread(MAX_TIME_US).prop_map(|us| -us)];
    let hold = (select(vec!["a", "b", "c"]), amounts(), ages);
    let hold = hold.prop_filter_map("a hold", move |(id, micro, age_us)| {
        Hold::checked(id.as_bytes(), micro, (now_us - age_us).min(MAX_TIME_US))
    });
    prop::collection::vec(hold, 0..4)
}

proptest! {
    #![proptest_config(super::config(16))]

    #[test]
    fn a_flow_is_rounded_up_within_bounds(
        (count, period_s) in terms(),
        (mantissa, exponent) in (1..1_000_000_000_000u64, -21..=-1i32),
        (since_us, until_us) in (times(), times()),
    ) {
        assert_kept([
            of_core::ratio_is_within_bounds(count, period_s),
            of_core::flow_up_of_ratio(count, period_s, since_us, until_us),
        ]);
        // Beside exact terms of a power of ten, as `Rate` has them where 64 bits are too few.
        if let Ok(rate) = Rate::parse(format!("{mantissa}e{exponent}").as_bytes()) {
            let denominator = 10u128.pow(exponent.unsigned_abs());
            assert_kept([of_core::flow_up(&rate, mantissa.into(), denominator, since_us, until_us)]);
        }
    }

    #[test]
    fn a_denial_loses_nothing_and_a_bucket_is_full_when_it_was_meant_to_be(
        (scene, (amount_micro, _, max_wait_ms)) in calls(),
        full_at_us in times(),
    ) {
        assert_kept([
            of_core::reserve_waits_honestly(&scene, amount_micro, max_wait_ms),
            of_core::denied_take_changes_nothing(&scene, amount_micro),
        ]);
        if !matches!(scene.rate, Rate::Calendar(_)) {
            let soon_us = (scene.now_us + full_at_us % 10_000_000).min(MAX_TIME_US);
            assert_kept([full_at_us, soon_us].map(|at_us| of_core::bucket_is_full_at(&scene, at_us)));
        }
    }

    #[test]
    fn a_hold_takes_the_difference_and_gives_it_back(
        ((scene, (amount_micro, ..)), all) in calls().prop_flat_map(|call| (Just(call), holds(call.0.now_us))),
        taken_micro in -MAX_MICRO..=MAX_MICRO,
    ) {
        for scene in [scene, Scene { rate: &Rate::NOTHING, ..scene }, Scene { rate: &Rate::POOL, ..scene }] {
            let mut extension = Extension::default();
            all.iter().for_each(|hold| extension.holds.set(hold.clone()));
            let settled = of_core::settle_gives_back(&scene, &mut extension, b"a", amount_micro);
            let set = of_core::hold_takes_the_difference(&scene, &mut extension, b"a", amount_micro);
            extension.holds.drop_ended(scene.now_us);
            assert_kept([settled, set, of_core::hold_is_replied(&scene, &extension, taken_micro)]);
        }
    }

    #[test]
    fn an_override_that_ended_changed_no_level_but_by_its_flow(
        (scene, (amount_micro, ..)) in calls(),
        rate in rates(),
        fills in any::<bool>(),
        lasts_us in prop_oneof![0..10_000_000i64, spread(30 * 86_400_000_000)],
    ) {
        let rate = Rate::parse(rate.as_bytes()).unwrap();
        let end_us = (scene.now_us + lasts_us).min(MAX_TIME_US);
        for micro in [amount_micro, scene.capacity_micro, scene.level_micro.max(1), scene.capacity_micro / 2] {
            assert_kept([of_core::ended_override_leaves_its_flow(&scene, &rate, micro, fills, end_us)]);
        }
    }

    #[test]
    fn the_tightest_of_two_binds([one, other] in [decisions(), decisions()]) {
        assert_kept([of_core::tightest_binds(&one, &other)]);
    }

    #[test]
    fn a_decision_stays_within_bounds(
        (scene, (amount_micro, tokens, max_wait_ms)) in calls(),
        now_us in any::<i64>(),
        ahead_micro in 0..=i64::MAX,
    ) {
        let scene = Scene { now_us, ..scene };
        assert_kept([
            of_core::take_overflows_nowhere(&scene, amount_micro),
            of_core::take_up_to_overflows_nowhere(&scene, tokens),
            of_core::reserve_overflows_nowhere(&scene, amount_micro, max_wait_ms),
            of_core::charge_overflows_nowhere(&scene, amount_micro),
            of_core::give_overflows_nowhere(&scene, amount_micro),
            of_core::behind_overflows_nowhere(&scene, amount_micro, ahead_micro),
            of_core::other_overflows_nowhere(&scene),
            of_core::wait_overflows_nowhere(&scene, amount_micro),
        ]);
    }
}
