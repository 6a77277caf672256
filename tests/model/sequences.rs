//! Sequences of calls, with clocks that run, stand and are set back, keys that expire, and holds that end.

use super::exact::operation::moved;
use super::exact::{whole, Exact, Flow, Holding, Judged, Limit, Operation};
use super::scenario::{self, walk, Amount, Tick, Wish};
use num_traits::{Signed, Zero};
use proptest::collection::vec;
use proptest::prelude::*;
use tokenbucket::bucket::MAX_TIME_US;

/// Anything that can be wanted of a bucket, or of a few holds.
#[derive(Clone, Debug)]
enum Call {
    Hold(u8, Amount, Tick),
    Settle(u8, Amount),
    Other(Wish),
}

fn calls() -> impl Strategy<Value = Call> {
    let holds = (0..12u8, scenario::amounts(), prop_oneof![3 => scenario::ticks(), 1 => Just(Tick::By(0))]);
    prop_oneof![
        3 => holds.prop_map(|(id, amount, lasts)| Call::Hold(id, amount, lasts)),
        1 => (0..12u8, scenario::amounts()).prop_map(|(id, used)| Call::Settle(id, used)),
        4 => scenario::wishes().prop_map(Call::Other),
    ]
}

impl Call {
    /// Makes it. Returns what was told to wait, in milliseconds.
    fn make(self, judged: &mut Judged, limit: &Limit, now_us: i64, told_ms: i64) -> i64 {
        let id = |number| format!("request:{number}");
        let is_rounded = |judged: &Judged| {
            let level = judged.model.level(limit, now_us);
            level.low != level.high
        };
        let outcome = match self {
            // No hold could end any more.
            Self::Hold(..) if now_us > MAX_TIME_US - 1000 => return told_ms,
            Self::Hold(number, amount, lasts) => {
                let ttl_ms = ((lasts.after(now_us, limit, told_ms) - now_us) / 1000).max(1);
                let amount_micro = amount.micro(limit);
                judged.call(limit, &Holding::Set { id: id(number), amount_micro, ttl_ms }, now_us)
            }
            Self::Settle(number, used) => {
                let used_micro = if limit.is_pool() { 0 } else { used.micro(limit) };
                judged.call(limit, &Holding::Settle { id: id(number), used_micro }, now_us)
            }
            // Nobody outside can tell whether it found the bucket full, so that nothing was written.
            Self::Other(Wish::Give(_)) if !judged.holds.is_empty() && is_rounded(judged) => return told_ms,
            // Of a pool tokens are held, but not taken.
            Self::Other(_) if limit.is_pool() => {
                judged.call(limit, Operation::Give { amount_micro: 1 }, now_us)
            }
            Self::Other(wish) => judged.call(limit, wish.of(limit, told_ms), now_us),
        };
        outcome.map_or(0, |outcome| outcome.decision.retry_after_ms)
    }
}

fn pools() -> impl Strategy<Value = Limit> {
    scenario::limits(Just("1e12".to_owned()))
        .prop_map(|limit| Limit::pool(&format!("{}e-6", limit.capacity_micro())))
}

proptest! {
    #![proptest_config(super::config(16))]

    /// No rate ever grants more than the model nor loses more than the bound, and whole rates are exact for ever, also
    /// while limits change from call to call.
    ///
    /// A new rate counts from the last write. What that write left over of a micro-token, at a rate below one token
    /// a second, is kept as the time in which it flowed, and that time is counted at the new rate.
    #[test]
    fn all_that_a_life_brings_is_what_the_model_says(
        limits in prop_oneof![
            2 => vec(scenario::limits(scenario::whole_rates()), 1..4),
            4 => vec(scenario::limits(scenario::rates()), 1..4),
            1 => vec(pools(), 1..3),
        ],
        start_us in scenario::starts(),
        steps in scenario::steps(scenario::unsteady_ticks(), prop_oneof![calls(), scenario::wishes().prop_map(Call::Other)]),
        expires_late in any::<bool>(),
    ) {
        let mut judged = Judged { expires_late, ..Judged::default() };
        let is_exact = limits.iter().all(Limit::is_whole);
        walk(&limits, start_us, &steps, |limit, call, now_us, told_ms| {
            let told_ms = call.make(&mut judged, limit, now_us, told_ms);
            let level = judged.model.level(limit, now_us);
            assert!(!is_exact || level.low == level.high, "{level:?}");
            told_ms
        });
    }
}

proptest! {
    #![proptest_config(super::config(8))]

    /// Between any two moments, nobody obtains more than a full bucket, what has flowed in since, and what was given.
    #[test]
    fn nobody_obtains_more_than_flows_in(
        limit in scenario::limits(scenario::rates()),
        start_us in scenario::starts(),
        steps in scenario::steps(
            scenario::unsteady_ticks(),
            scenario::wishes().prop_map(|wish| match wish {
                Wish::Charge(cost) | Wish::Reserve(cost, _) => Wish::Take(cost),
                other => other,
            }),
        ),
    ) {
        let (mut judged, mut available, mut last_us) = (Judged::default(), limit.capacity.clone(), start_us);
        walk(std::slice::from_ref(&limit), start_us, &steps, |limit, wish, now_us, told_ms| {
            let operation = wish.of(limit, told_ms);
            let outcome = judged.call(limit, operation, now_us).unwrap();
            let given_micro = if let Operation::Give { amount_micro } = operation { amount_micro } else { 0 };
            available += limit.flow.between(last_us, now_us) + whole(given_micro);
            available = available.clone().min(limit.capacity.clone()) - whole(outcome.granted_micro);
            assert!(!available.is_negative(), "{operation:?} at {now_us}: {outcome:?}");
            last_us = now_us;
            outcome.decision.retry_after_ms
        });
    }

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
