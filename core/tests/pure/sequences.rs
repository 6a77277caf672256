//! Sequences of calls, with clocks that run, stand and are set back, keys that expire, and holds that end.

use super::model::call::Wanted;
use super::model::operation::{moved, LONGEST_WAIT_MS};
use super::model::{Exact, Flow, HoldOperation, Judged, Limit, Operation, MILLION};
use super::scenario::{any_amounts, pauses, rates, starts, whole_rates, Pause};
use super::strategies::{hold_operations, limits, operations, spread};
use num_traits::Zero;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tokenbucket_core::bucket::MAX_TIME_US;
use tokenbucket_core::error::Error;
use tokenbucket_core::number::MAX_MICRO;
use tokenbucket_core::request::{self, Request, MAX_TTL_MS};

/// What is wanted of the bucket, beside its tokens.
#[derive(Clone, Debug)]
enum Extra {
    Hold(HoldOperation),
    /// The limit of the step, of so many times its capacity, overrides that of the others, for so many milliseconds.
    Override {
        times: i64,
        ttl_ms: i64,
        fills: bool,
    },
}

/// What the clock does before a call, the limit that comes with it, and what is wanted.
type Step = (Pause, Limit, Option<Extra>, Operation);

/// Steps with these limits; so many quarters of them on holds, and so many on a clock that was set back.
fn steps(
    limits: impl Strategy<Value = Vec<Limit>>,
    on_holds: u8,
    set_back: u8,
) -> impl Strategy<Value = Vec<Step>> {
    limits.prop_flat_map(move |limits| {
        let step = select(limits).prop_flat_map(move |limit| {
            // Of a pool tokens are held, but not taken.
            let on_holds = if limit.is_pool() { 3 } else { on_holds };
            let hold_operation = (0..4u8, hold_operations(&limit, any_amounts(&limit))).prop_map(
                move |(quarter, hold_operation)| (quarter < on_holds).then_some(Extra::Hold(hold_operation)),
            );
            let ttls_ms = prop_oneof![1 => Just(0), 1 => 1..100i64, 1 => 1..=MAX_TTL_MS];
            // A suspension, the same capacity, and larger ones.
            let overrides = (0..4i64, ttls_ms, any::<bool>()).prop_map(|(times, ttl_ms, fills)| {
                Some(Extra::Override { times, ttl_ms, fills: fills && times > 0 && ttl_ms > 0 })
            });
            let extra = prop_oneof![9 => hold_operation, 2 * u32::from(on_holds > 0) => overrides];
            let operation = match limit.is_pool() {
                true => any_amounts(&limit).prop_map(|cost_micro| Operation::Take { cost_micro }).boxed(),
                false => operations(&limit, any_amounts(&limit)).boxed(),
            };
            (pauses(&limit, set_back), Just(limit), extra, operation)
        });
        vec(step, 1..40)
    })
}

/// Walks a sequence of calls, each with its limit and its time; back comes what is told to wait, in milliseconds.
fn walk(start_us: i64, steps: Vec<Step>, mut call: impl FnMut(&Limit, Option<Extra>, Operation, i64) -> i64) {
    let (mut now_us, mut told_ms) = (start_us, 0);
    for (pause, limit, extra, operation) in steps {
        now_us = pause.after(now_us, told_ms);
        told_ms = call(&limit, extra, operation, now_us);
    }
}

fn any_limits() -> impl Strategy<Value = Vec<Limit>> {
    prop_oneof![
        2 => vec(limits(MAX_MICRO, whole_rates()), 1..4),
        4 => vec(limits(MAX_MICRO, rates()), 1..4),
        2 => vec(pools(), 1..3),
        // One key has one limit at a time; but nothing keeps calls from using it with a rate and with 0.
        1 => (vec(limits(MAX_MICRO, rates()), 1..3), vec(pools(), 1..3))
            .prop_map(|(limits, pools)| [limits, pools].concat()),
    ]
}

fn pools() -> impl Strategy<Value = Limit> {
    let capacities = prop_oneof![spread(MAX_MICRO), (0..=20i64).prop_map(|tokens| tokens * MILLION)];
    capacities.prop_map(|micro| Limit::pool(&format!("{micro}e-6")))
}

/// Makes a call and judges it. Returns what was told to wait, in milliseconds.
fn make(judged: &mut Judged, limit: &Limit, extra: Option<Extra>, operation: Operation, now_us: i64) -> i64 {
    let level = judged.model.level(limit, now_us);
    let is_rounded = !judged.extension.is_empty() && level.low != level.high;
    let outcome = match (extra, operation) {
        (Some(Extra::Override { ttl_ms, .. }), _) if now_us > MAX_TIME_US - ttl_ms * 1000 => return 0,
        (Some(Extra::Override { times, ttl_ms, fills }), _) => {
            judged.call(&limit.times(times), Wanted::Override { ttl_ms, fills }, now_us)
        }
        // No hold could end any more.
        (Some(Extra::Hold(hold_operation)), _)
            if hold_operation.ttl_ms().is_some_and(|ttl_ms| now_us > MAX_TIME_US - ttl_ms * 1000) =>
        {
            return 0
        }
        (Some(Extra::Hold(hold_operation)), _) => judged.call(limit, &hold_operation, now_us),
        // Of a pool tokens are held, but not taken.
        (None, operation) if limit.is_pool() => return judged.peek(limit, operation, now_us).retry_after_ms,
        // Nobody outside can tell whether it found the bucket full, so that nothing was written.
        (None, Operation::Give { .. }) if is_rounded => return 0,
        (None, operation) => judged.call(limit, operation, now_us),
    };
    outcome.map_or(0, |outcome| outcome.decision.retry_after_ms)
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
        start_us in starts(),
        steps in prop_oneof![steps(any_limits(), 2, 1), steps(any_limits(), 0, 1)],
        expires_late in any::<bool>(),
    ) {
        let mut judged = Judged { expires_late, ..Judged::default() };
        let is_exact = steps.iter().all(|(_, limit, ..)| limit.is_whole());
        walk(start_us, steps, |limit, extra, operation, now_us| {
            let told_ms = make(&mut judged, limit, extra, operation, now_us);
            let level = judged.model.level(limit, now_us);
            assert!(!is_exact || level.low == level.high, "{level:?}");
            told_ms
        });
    }
}

proptest! {
    #![proptest_config(super::config(8))]

    /// Reservers who act when they were told to never act on more than the bucket held and what has flowed since; nor
    /// between any two of them, but for the millisecond to which a wait is rounded.
    #[test]
    fn reservers_who_wait_as_told_keep_the_limit(
        start_us in starts(),
        steps in steps(vec(limits(MAX_MICRO, rates()), 1), 0, 0),
    ) {
        let (mut judged, limit) = (Judged::default(), steps[0].1.clone());
        let mut acts: Vec<(i64, Exact, i64)> = Vec::new();
        walk(start_us, steps, |limit, _, operation, now_us| {
            let reserve = match operation {
                Operation::Take { cost_micro } | Operation::Charge { amount_micro: cost_micro } => {
                    Operation::Reserve { cost_micro, max_wait_ms: LONGEST_WAIT_MS }
                }
                Operation::Reserve { .. } => operation,
                _ => return 0,
            };
            let told = judged.call(limit, reserve, now_us).unwrap().decision;
            let cost = moved(reserve, told.allowed);
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

/// A hold above the capacity can only grow while it lasts. A smaller one can be set anew after its end, when it needs all.
#[test]
fn a_hold_above_the_capacity_grows_only_before_its_end() {
    let limit = Limit::new("5", "1");
    for (tokens, ttl_ms, retry_after_ms) in
        [(4, 500, 1000), (5, 500, 2000), (6, 3000, -1), (6, 3001, 3000), (9, 60_000, -1)]
    {
        let mut judged = Judged::default();
        judged.call(&limit, &set("a", 3, ttl_ms), 0).unwrap();
        judged.call(&limit, Operation::Take { cost_micro: 2 * MILLION }, 0).unwrap();
        let denied = judged.call(&limit, &set("a", tokens, 1), 0).unwrap().decision;
        assert_eq!((denied.allowed, denied.retry_after_ms), (0, retry_after_ms), "{tokens} for {ttl_ms} ms");
        let until_us = if tokens > 5 { ttl_ms * 1000 } else { i64::MAX };
        for (id, now_us, lacking, until_us) in [
            ("a", 0, tokens - 3, until_us),
            ("a", ttl_ms * 1000, tokens, i64::MAX),
            ("b", 0, tokens, i64::MAX),
        ] {
            let (request, extension) = (request_of(&limit, id, tokens), &judged.extension);
            assert_eq!(request.needs(extension, now_us).micro, lacking * MILLION, "{id} at {now_us}");
            assert_eq!(request.possible_until_us(extension, now_us), until_us, "{id} at {now_us}");
        }
    }
}

/// A bucket that has as many holds as it may have takes no new one. Its own are renewed, and one that has ended makes room.
#[test]
fn a_bucket_takes_no_more_holds_than_it_may_have() {
    let (limit, mut judged) = (Limit::new("5", "1"), Judged::default());
    judged.call(&limit, &set("a", 1, 1000), 0).unwrap();
    judged.call(&limit, &set("b", 1, 2000), 0).unwrap();
    for (id, tokens, max_holds, now_us, is_one_too_many) in [
        ("c", 1, 2, 0, true),
        ("c", 1, 3, 0, false),
        ("a", 2, 2, 0, false),
        ("c", 0, 2, 0, false),
        ("c", 1, 2, 999_999, true),
        ("c", 1, 2, 1_000_000, false),
        ("c", 1, 1, 1_000_000, true),
    ] {
        let request = request_of(&limit, id, tokens);
        let plan = request.plan(judged.stored, Some(&mut judged.extension), max_holds, now_us);
        let is_refused = matches!(plan, Err(Error::TooManyHolds));
        assert_eq!(is_refused, is_one_too_many, "{tokens} for {id}, of {max_holds}, at {now_us}");
    }
}

fn set(id: &str, tokens: i64, ttl_ms: i64) -> HoldOperation {
    HoldOperation::Set { id: id.to_owned(), amount_micro: tokens * MILLION, ttl_ms }
}

fn request_of<'a>(limit: &Limit, id: &'a str, tokens: i64) -> Request<&'a str> {
    Request {
        key: "k",
        limit: limit.module(),
        wanted: request::Wanted::Hold { id, amount_micro: tokens * MILLION, ttl_ms: 1 },
    }
}
