//! The theorems of `proofs`, which `make prove` proves for all numbers, on random ones.

use super::strategies::spread;
use proptest::prelude::*;
use proptest::sample::select;
use tokenbucket_core::bucket::{Decision, MAX_TIME_US};
use tokenbucket_core::hold::{Hold, Holds};
use tokenbucket_core::number::{MAX_MICRO, MAX_TOKENS};
use tokenbucket_core::rate::Rate;

#[path = "../../../proofs/src/lib.rs"]
#[allow(dead_code)]
mod of_core;

use of_core::{AnyHolds, Scene, Verdict, HOLDS, OUTSIDE};

/// Returns whether a theorem holds. Outside of its domain it claims nothing.
fn is_kept(verdict: Verdict) -> bool {
    verdict == HOLDS || verdict == OUTSIDE
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

/// Rates of all kinds but pools.
fn rates() -> impl Strategy<Value = Rate> {
    let usual =
        ["1", "0.3", "5/3s", "1/d", "1e12", "7/250ms", "1.23456789012e-5", "9.87654321098e-9/ms", "1/36525d"];
    let calendars = ["5@10s", "1000@d+09:00", "1@mo", "3@w", "1@y-03:30"];
    let written = select([usual.as_slice(), calendars.as_slice()].concat());
    let ratios = terms().prop_filter_map("a rate", |(count, period_s)| Rate::per_seconds(count, period_s));
    prop_oneof![written.prop_map(|rate| Rate::parse(rate.as_bytes()).unwrap()), ratios]
}

/// A call, and the amounts of its arguments.
#[derive(Clone, Copy, Debug)]
struct Call {
    rate: Rate,
    capacity_micro: i64,
    is_stored: bool,
    level_micro: i64,
    refilled_at_us: i64,
    now_us: i64,
    holds: AnyHolds,
    amount_micro: i64,
    tokens: i64,
    max_wait_ms: i64,
}

impl Call {
    fn scene(&self) -> Scene<'_> {
        Scene {
            rate: &self.rate,
            capacity_micro: self.capacity_micro,
            is_stored: self.is_stored,
            level_micro: self.level_micro,
            refilled_at_us: self.refilled_at_us,
            now_us: self.now_us,
            holds: self.holds,
        }
    }
}

fn calls() -> impl Strategy<Value = Call> {
    let levels = (amounts(), any::<bool>()).prop_map(|(micro, is_debt)| if is_debt { -micro } else { micro });
    // Mostly shortly before the call, when the bucket is not full again.
    let ages = prop_oneof![4 => -1_000_000..10_000_000i64, 1 => spread(MAX_TIME_US)];
    let stored = (prop::bool::weighted(0.9), levels, ages);
    let tokens = prop_oneof![1..10i64, spread(MAX_TOKENS).prop_map(|tokens| tokens.max(1))];
    let arguments = (amounts(), tokens, spread(30 * 86_400_000));
    let ended = prop_oneof![2 => Just(0), 1 => amounts(), 1 => Just(1 << 61)];
    let holds = (ended, prop_oneof![Just(i64::MIN), times()])
        .prop_map(|(ended_micro, last_end_us)| AnyHolds { ended_micro, last_end_us });
    (rates(), amounts(), stored, times(), holds, arguments).prop_map(
        |(rate, capacity_micro, stored, now_us, holds, arguments)| {
            let (is_stored, level_micro, age_us) = stored;
            let refilled_at_us = (now_us - age_us).clamp(0, MAX_TIME_US);
            let (amount_micro, tokens, max_wait_ms) = arguments;
            Call {
                rate,
                capacity_micro,
                is_stored,
                level_micro,
                refilled_at_us,
                now_us,
                holds,
                amount_micro,
                tokens,
                max_wait_ms,
            }
        },
    )
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

fn reply() -> impl Strategy<Value = Decision> {
    let waits = || prop_oneof![Just(-1), spread(i64::MAX)];
    (any::<i64>(), any::<i64>(), waits(), waits()).prop_map(
        |(allowed, remaining, retry_after_ms, reset_after_ms)| Decision {
            allowed,
            remaining,
            retry_after_ms,
            reset_after_ms,
        },
    )
}

proptest! {
    #![proptest_config(super::config(16))]

    #[test]
    fn a_rate_and_a_limit_are_within_bounds((count, period_s) in terms(), capacity_micro in amounts()) {
        prop_assert!(is_kept(of_core::ratio_is_within_bounds(count, period_s)));
        prop_assert!(is_kept(of_core::refills_of_ratio(count, period_s, capacity_micro)));
    }

    #[test]
    fn a_flow_is_rate_times_time((count, period_s) in terms(), since_us in times(), until_us in times()) {
        prop_assert!(is_kept(of_core::flow_of_ratio(count, period_s, since_us, until_us)));
        prop_assert!(is_kept(of_core::flow_up_of_ratio(count, period_s, since_us, until_us)));
    }

    #[test]
    fn a_time_is_the_first_that_suffices((count, period_s) in terms(), since_us in times(), micro in amounts()) {
        prop_assert!(is_kept(of_core::reaches_of_ratio(count, period_s, since_us, micro)));
    }

    /// Beside exact terms of a power of ten, as `Rate` has them where 64 bits are too few.
    #[test]
    fn a_decimal_rate_flows_as_a_ratio_does(
        (mantissa, exponent) in (1..1_000_000_000_000u64, -21..=-1i32), since_us in times(), until_us in times(), micro in amounts(),
    ) {
        let rate = Rate::parse(format!("{mantissa}e{exponent}").as_bytes());
        prop_assume!(rate.is_ok());
        let (rate, denominator) = (rate.unwrap(), 10u128.pow(exponent.unsigned_abs()));
        prop_assert!(is_kept(of_core::flow(&rate, mantissa.into(), denominator, since_us, until_us)));
        prop_assert!(is_kept(of_core::flow_up(&rate, mantissa.into(), denominator, since_us, until_us)));
        prop_assert!(is_kept(of_core::reaches(&rate, mantissa.into(), denominator, since_us, micro)));
        prop_assert!(is_kept(of_core::refills(&rate, mantissa.into(), denominator, micro)));
    }

    #[test]
    fn a_refill_in_two_loses_a_micro_token_at_most(rate in rates(), mut moments in [times(), times(), times()]) {
        moments.sort_unstable();
        prop_assert!(is_kept(of_core::split(&rate, moments[0], moments[1], moments[2])));
    }

    #[test]
    fn a_step_wins_nothing(call in calls(), later_us in prop_oneof![times(), Just(0)]) {
        let later_us = (call.now_us + later_us).min(MAX_TIME_US);
        let Call { amount_micro, tokens, max_wait_ms, .. } = call;
        for rate in [call.rate, Rate::NOTHING] {
            let scene = Scene { rate: &rate, ..call.scene() };
            prop_assert!(is_kept(of_core::take_wins_nothing(&scene, amount_micro, later_us)));
            prop_assert!(is_kept(of_core::take_up_to_wins_nothing(&scene, tokens, later_us)));
            prop_assert!(is_kept(of_core::reserve_wins_nothing(&scene, amount_micro, max_wait_ms, later_us)));
            prop_assert!(is_kept(of_core::charge_wins_nothing(&scene, amount_micro, later_us)));
            prop_assert!(is_kept(of_core::give_wins_nothing(&scene, amount_micro, later_us)));
        }
    }

    #[test]
    fn a_wait_is_honest(call in calls(), early_us in prop_oneof![Just(1000), times().prop_map(|us| us.max(1000))]) {
        prop_assert!(is_kept(of_core::take_waits_honestly(&call.scene(), call.amount_micro, early_us)));
        prop_assert!(is_kept(of_core::take_up_to_waits_honestly(&call.scene(), call.tokens, early_us)));
        let Call { amount_micro, max_wait_ms, .. } = call;
        prop_assert!(is_kept(of_core::reserve_waits_honestly(&call.scene(), amount_micro, max_wait_ms)));
        prop_assert!(is_kept(of_core::wait_is_the_first_that_suffices(&call.scene(), call.amount_micro)));
        prop_assert!(is_kept(of_core::charge_waits_honestly(&call.scene(), call.amount_micro)));
        prop_assert!(is_kept(of_core::reset_is_honest(&call.scene(), call.amount_micro)));
        prop_assert!(is_kept(of_core::denied_take_changes_nothing(&call.scene(), call.amount_micro)));
        if !matches!(call.rate, Rate::Calendar(_)) {
            prop_assert!(is_kept(of_core::take_loses_less_than_a_microsecond(&call.scene(), call.amount_micro)));
        }
    }

    #[test]
    fn a_number_is_what_its_digits_say(
        (whole, fraction) in ("[0-9]{1,12}", "[0-9]{0,6}"),
        other in "[+]?[0-9]{0,20}[.]?[0-9]{0,14}(e[+-]?[0-9]{1,3})?",
    ) {
        let amount = if fraction.is_empty() { whole.clone() } else { format!("{whole}.{fraction}") };
        let micro = format!("{whole}{fraction:0<6}").parse().unwrap();
        prop_assert!(is_kept(of_core::amount_is_read(amount.as_bytes(), micro)));
        prop_assert!(is_kept(of_core::amount_is_within_bounds(other.as_bytes())));
    }

    #[test]
    fn a_hold_takes_the_difference_and_gives_it_back(
        (call, all) in calls().prop_flat_map(|call| (Just(call), holds(call.now_us))),
        taken_micro in -MAX_MICRO..=MAX_MICRO,
    ) {
        for rate in [call.rate, Rate::NOTHING] {
            let scene = Scene { rate: &rate, ..call.scene() };
            let mut holds = Holds::default();
            all.iter().for_each(|hold| holds.set(hold.clone()));
            prop_assert!(is_kept(of_core::settle_gives_back(&scene, &holds, b"a", call.amount_micro)));
            let set = of_core::hold_takes_the_difference(&scene, &mut holds, b"a", call.amount_micro);
            prop_assert!(is_kept(set));
            holds.drop_ended(call.now_us);
            prop_assert!(is_kept(of_core::hold_is_replied(&scene, &holds, taken_micro)));
        }
    }

    #[test]
    fn the_tightest_of_two_binds([one, other] in [reply(), reply()]) {
        prop_assert!(is_kept(of_core::tightest_binds(&one, &other)));
    }

    #[test]
    fn a_bucket_is_made_from_when_it_is_full(call in calls(), full_at_us in times()) {
        if !matches!(call.rate, Rate::Calendar(_)) {
            prop_assert!(is_kept(of_core::bucket_is_full_at(&call.scene(), full_at_us)));
            let soon_us = (call.now_us + full_at_us % 10_000_000).min(MAX_TIME_US);
            prop_assert!(is_kept(of_core::bucket_is_full_at(&call.scene(), soon_us)));
        }
    }

    #[test]
    fn a_decision_stays_within_bounds(call in calls(), now_us in any::<i64>(), ahead_micro in 0..=i64::MAX) {
        let scene = Scene { now_us, ..call.scene() };
        let Call { amount_micro, tokens, max_wait_ms, .. } = call;
        prop_assert!(is_kept(of_core::take_overflows_nowhere(&scene, amount_micro)));
        prop_assert!(is_kept(of_core::take_up_to_overflows_nowhere(&scene, tokens)));
        prop_assert!(is_kept(of_core::reserve_overflows_nowhere(&scene, amount_micro, max_wait_ms)));
        prop_assert!(is_kept(of_core::charge_overflows_nowhere(&scene, amount_micro)));
        prop_assert!(is_kept(of_core::give_overflows_nowhere(&scene, amount_micro)));
        prop_assert!(is_kept(of_core::behind_overflows_nowhere(&scene, amount_micro, ahead_micro)));
        prop_assert!(is_kept(of_core::other_overflows_nowhere(&scene)));
        prop_assert!(is_kept(of_core::wait_overflows_nowhere(&scene, amount_micro)));
    }
}
