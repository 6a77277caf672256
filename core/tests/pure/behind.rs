//! The wait of a call that is denied because others wait for the bucket: how long it is if they take what they want.

use super::model::{Flow, Limit, MILLION};
use super::scenario::rates;
use super::strategies::{limits, pauses_us};
use proptest::collection::vec;
use proptest::prelude::*;
use tokenbucket_core::bucket::{self, Bucket, Change, Operation, MAX_TIME_US, NEVER_MS};
use tokenbucket_core::hold::{Extension, Hold};

/// Micro-tokens: what those ahead want, and at the end what the call wants.
type Wants = Vec<i64>;

/// How long it takes until all have taken in turn, each as soon as there is enough; `None` if that is never.
fn all_take_in_us(
    limit: &bucket::Limit,
    bucket: Bucket,
    mut extension: Extension,
    wants: &Wants,
    now_us: i64,
) -> Option<i64> {
    let (mut stored, mut at_us) = (Some(bucket), now_us);
    for cost_micro in wants {
        at_us =
            at_us.saturating_add(limit.wait_after_us(stored, &extension, Change::Keep, *cost_micro, at_us));
        if at_us >= MAX_TIME_US {
            return None;
        }
        if limit.is_pool() {
            // It is taken by being held.
            let id = u64::try_from(extension.holds.len() + 1000).unwrap().to_be_bytes();
            extension.holds.set(Hold::checked(&id, *cost_micro, MAX_TIME_US).unwrap());
            continue;
        }
        let take = Operation::Take { cost_micro: *cost_micro };
        let Change::Store { bucket, .. } = limit.decide_with(stored, &extension, take, at_us).unwrap().change
        else {
            panic!("{cost_micro} are denied at {at_us}");
        };
        extension.holds.drop_ended(at_us);
        stored = Some(bucket);
    }
    Some(at_us - now_us)
}

fn told_ms(limit: &bucket::Limit, bucket: Bucket, extension: &Extension, wants: &Wants, now_us: i64) -> i64 {
    let (cost_micro, ahead) = wants.split_last().unwrap();
    let ahead_micro = ahead.iter().fold(0, |sum: i64, micro| sum.saturating_add(*micro));
    let outcome = limit.denied_behind(Some(bucket), extension, *cost_micro, ahead_micro, now_us);
    assert_eq!((outcome.decision.allowed, outcome.granted_micro), (0, 0));
    assert_eq!(outcome.change, Change::Keep, "a denial writes nothing");
    let free = limit.decide_with(Some(bucket), extension, Operation::Take { cost_micro: 0 }, now_us).unwrap();
    assert_eq!(outcome.decision.remaining, free.decision.remaining);
    outcome.decision.retry_after_ms
}

/// Returns whether it happens in no less than `told_ms`, rounded up.
fn is_not_late(told_ms: i64, in_us: i64) -> bool {
    told_ms == 1 || in_us > (told_ms - 1) * 1000
}

/// Returns whether it has happened by then. Each of those who take may lose what flows in a microsecond.
fn is_not_early(told_ms: i64, in_us: i64, wants: &Wants) -> bool {
    in_us <= told_ms * 1000 + i64::try_from(wants.len()).unwrap()
}

fn rated() -> impl Strategy<Value = (Limit, Bucket, Wants, i64)> {
    limits(1000 * MILLION, rates())
        .prop_filter("there is room", |limit| limit.capacity_micro() > 0)
        .prop_flat_map(|limit| {
            let (capacity_micro, started_us) = (limit.capacity_micro(), 1_700_000_000 * MILLION);
            let states = (-capacity_micro..capacity_micro, pauses_us(&limit).prop_map(|us| us % (1 << 50)));
            (Just(limit), states, vec(1..=capacity_micro, 2..6)).prop_map(
                move |(limit, (level_micro, since_us), wants)| {
                    (limit, Bucket { level_micro, refilled_at_us: started_us }, wants, started_us + since_us)
                },
            )
        })
}

proptest! {
    #![proptest_config(super::config(4))]

    /// By the calendar it may be longer: what comes at a boundary and finds no room is lost before those ahead have taken.
    #[test]
    fn the_wait_behind_others_is_that_until_they_have_taken((limit, bucket, wants, now_us) in rated()) {
        let is_steady = matches!(limit.flow, Flow::Steady(_));
        let limit = limit.module();
        // The first of them waits.
        prop_assume!(limit.wait_us(Some(bucket), wants[0], now_us) > 0);
        let told_ms = told_ms(&limit, bucket, &Extension::default(), &wants, now_us);
        let in_us = all_take_in_us(&limit, bucket, Extension::default(), &wants, now_us).expect("it refills");
        prop_assert!(is_not_late(told_ms, in_us), "{} ms, and {} us", told_ms, in_us);
        prop_assert!(!is_steady || is_not_early(told_ms, in_us, &wants), "{} ms, and {} us", told_ms, in_us);
    }

    /// If the holds that there are do not suffice, until the last of them has ended.
    #[test]
    fn the_wait_behind_others_for_a_pool_is_that_until_holds_end(
        free_micro in 0..5i64,
        held in vec((1..5i64, 1..1_000_000i64), 0..6),
        wants in vec(1..6i64, 2..6),
    ) {
        let mut extension = Extension::default();
        for (number, (micro, ends_at_us)) in held.iter().enumerate() {
            extension.holds.set(Hold::checked(&[number as u8], *micro, *ends_at_us).unwrap());
        }
        let all_micro = free_micro + held.iter().map(|(micro, _)| micro).sum::<i64>();
        let limit = bucket::Limit::pool(all_micro.max(5));
        // It has no level, whatever is stored.
        let bucket = Bucket { level_micro: 3, refilled_at_us: 0 };
        let told_ms = told_ms(&limit, bucket, &extension, &wants, 0);
        let last_us = held.iter().map(|(_, ends_at_us)| *ends_at_us).max().unwrap_or(0);
        match all_take_in_us(&limit, bucket, extension, &wants, 0) {
            Some(in_us) => prop_assert_eq!(told_ms, ((in_us + 999) / 1000).max(1)),
            None => prop_assert_eq!(told_ms, ((last_us + 999) / 1000).max(1)),
        }
    }

    #[test]
    fn no_wait_helps_whoever_wants_more_than_the_capacity((limit, bucket, wants, now_us) in rated()) {
        let limit = limit.module();
        for (off_by, is_never) in [(0, false), (1, true)] {
            let wants = vec![wants[0], limit.capacity_micro() + off_by];
            let told_ms = told_ms(&limit, bucket, &Extension::default(), &wants, now_us);
            prop_assert_eq!(told_ms == NEVER_MS, is_never);
            prop_assert!(is_never || told_ms >= 1);
        }
    }
}

/// 6 of 10 tokens end after two seconds, the rest after five, and one a second flows in.
#[test]
fn the_wait_behind_others_counts_what_flows_in_and_what_ends() {
    let mut extension = Extension::default();
    for (id, tokens, seconds) in [(b"a", 6, 2), (b"b", 4, 5)] {
        extension.holds.set(Hold::checked(id, tokens * MILLION, seconds * MILLION).unwrap());
    }
    let (limit, bucket) = (Limit::new("10", "1").module(), Bucket { level_micro: 0, refilled_at_us: 0 });
    for (wants, wait_ms) in [([0, 9], 3000), ([1, 8], 3000), ([3, 8], 5000)] {
        assert_eq!(
            told_ms(&limit, bucket, &extension, &wants.map(|tokens| tokens * MILLION).to_vec(), 0),
            wait_ms
        );
    }
}
