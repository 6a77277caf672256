//! Judges replies by the exact model, and follows them.

use super::books::{state, Bucket, Page};
use super::foretell::{foretell, whole_tokens};
use super::step::Step;
use super::world::{Memory, Now};
use crate::common::model::{whole, Exact, ExactLimit, Level, Model, Wish};
use crate::common::{decision, integers, multi_decision, Decision};
use num_traits::ToPrimitive;
use redis::Value;

/// Judges the reply to one step, and does what it says.
pub fn hear(page: &mut Page, step: &Step, now: &Now, reply: &Value) {
    match step {
        Step::Call { bucket, wish } => hear_call(&mut page[*bucket], wish, now, reply),
        Step::Throttle { bucket, quantity } => hear_throttle(&mut page[*bucket], *quantity, now, reply),
        Step::NewLimit { bucket, limit, amount } => {
            let bucket = &mut page[*bucket];
            bucket.limit = limit.clone();
            hear_call(bucket, &Wish::Charge(amount.clone()), now, reply);
        }
        Step::Peek { bucket, cost } => {
            let Bucket { model, limit, .. } = &page[*bucket];
            model.judge(limit, &Wish::Take(cost.clone()), now.us, decision(reply));
        }
        Step::MultiTake(takes) => hear_multi_take(page, takes, now, reply),
        Step::Look { bucket } => page[*bucket].see(now, &state(reply)),
        Step::Reset { bucket, .. } => hear_reset(&mut page[*bucket], now, reply),
        Step::Nonsense { code, .. } => assert_refused(reply, code),
    }
}

fn assert_refused(reply: &Value, code: &str) {
    let refused = matches!(reply, Value::ServerError(error) if error.code() == code);
    assert!(refused, "not {code}: {reply:?}");
}

fn hear_reset(bucket: &mut Bucket, now: &Now, reply: &Value) {
    let [removed] = integers(&Value::Array(vec![reply.clone()]))[..] else { panic!("no count") };
    // A bucket that is full may still have its key.
    let must_have_key = bucket.highest(now) < bucket.limit.capacity;
    assert!(removed == 1 || (removed == 0 && !must_have_key), "removed {removed} keys of {bucket:?}");
    bucket.model = Model::default();
}

fn hear_call(bucket: &mut Bucket, wish: &Wish, now: &Now, reply: &Value) {
    if now.memory == Memory::FullAndDenying && bucket.lacks_memory(wish, now) {
        return assert_refused(reply, "OOM");
    }
    hear_decision(bucket, wish, now, decision(reply));
}

/// Follows a decision, unless there is no memory to store it.
fn hear_decision(bucket: &mut Bucket, wish: &Wish, now: &Now, decision: Decision) {
    if bucket.lacks_memory(wish, now) {
        bucket.model.judge(&bucket.limit, wish, now.us, decision);
    } else {
        bucket.model.follow(&bucket.limit, wish, now.us, decision);
    }
}

/// Reads a decision out of redis-cell's reply, and judges what that has of its own: whole seconds.
fn hear_throttle(bucket: &mut Bucket, quantity: i64, now: &Now, reply: &Value) {
    let wish = Wish::Take(whole(quantity));
    if now.memory == Memory::FullAndDenying && bucket.lacks_memory(&wish, now) {
        return assert_refused(reply, "OOM");
    }
    let [limited, limit, remaining, retry_after_s, reset_after_s] = integers(reply)[..] else {
        panic!("not five integers: {reply:?}")
    };
    let Level { lowest, highest } = bucket.model.level(&bucket.limit, now.us);
    let told = [&highest, &lowest].map(|level| foretell(&bucket.limit, &wish, level));
    let Some(decision) = told.into_iter().find(|told| told.allowed != limited) else {
        panic!("{limited} is wrong of {wish:?}: {bucket:?}")
    };
    let taken = whole(quantity * decision.allowed);
    let after = Level { lowest: lowest - &taken, highest: highest - taken };
    assert_eq!(whole(limit), bucket.limit.capacity);
    assert_within(remaining, &after, |level| whole_tokens(level).max(0));
    assert_within(reset_after_s, &after, |level| whole_seconds(&bucket.limit, &bucket.limit.capacity, level));
    if decision.allowed == 1 || decision.retry_after_ms < 0 {
        assert_eq!(retry_after_s, -1);
    } else {
        assert_within(retry_after_s, &after, |level| whole_seconds(&bucket.limit, &whole(quantity), level));
    }
    hear_decision(bucket, &wish, now, decision);
}

/// Whether what was told is between what the lowest and the highest possible level make of it.
fn assert_within(told: i64, level: &Level, field: impl Fn(&Exact) -> i64) {
    let ends = [field(&level.lowest), field(&level.highest)];
    let range = ends[0].min(ends[1])..=ends[0].max(ends[1]);
    assert!(range.contains(&told), "told {told}, which is not within {range:?} of {level:?}");
}

/// How long until the level is what is wanted, as redis-cell tells it: rounded up to seconds, except that less
/// than a millisecond is nothing.
fn whole_seconds(limit: &ExactLimit, wanted: &Exact, level: &Exact) -> i64 {
    let whole_us = limit.time_us(&(wanted - level)).ceil();
    let seconds = (whole_us / whole(1000)).floor() / whole(1000);
    seconds.ceil().to_integer().to_i64().unwrap()
}

fn hear_multi_take(page: &mut Page, takes: &[(usize, Exact)], now: &Now, reply: &Value) {
    let wishes: Vec<_> = takes.iter().map(|(bucket, cost)| (*bucket, Wish::Take(cost.clone()))).collect();
    let any_lacks = wishes.iter().any(|(bucket, wish)| page[*bucket].lacks_memory(wish, now));
    let lacks_memory = any_lacks && now.memory == Memory::FullAndDenying;
    if lacks_memory && matches!(reply, Value::ServerError(_)) {
        let all_grant = wishes.iter().all(|(bucket, wish)| page[*bucket].foretell(wish, now).allowed == 1);
        assert!(all_grant, "a denial needs no memory");
        return assert_refused(reply, "OOM");
    }
    let (binding, own) = multi_decision(reply);
    assert_eq!(own.len(), wishes.len());
    assert_binding(binding, &own);
    assert!(binding.allowed == 0 || !lacks_memory, "a bucket was made without memory");
    for ((bucket, wish), decision) in wishes.iter().zip(own) {
        let bucket = &mut page[*bucket];
        if binding.allowed == 1 {
            hear_decision(bucket, wish, now, decision);
        } else {
            judge_untouched(bucket, wish, now, decision);
        }
    }
}

/// What is told of a bucket that was not taken from, because it or another denied it.
fn judge_untouched(bucket: &Bucket, wish: &Wish, now: &Now, decision: Decision) {
    if decision.allowed == 0 {
        return bucket.model.judge(&bucket.limit, wish, now.us, decision);
    }
    assert_eq!(bucket.foretell(wish, now).allowed, 1, "alone it would have denied {wish:?}: {bucket:?}");
    bucket.model.judge(&bucket.limit, &Wish::Take(whole(0)), now.us, decision);
}

/// The tightest of each field binds the caller.
fn assert_binding(binding: Decision, own: &[Decision]) {
    let least = |field: fn(&Decision) -> i64| own.iter().map(field).min().unwrap();
    let most = |field: fn(&Decision) -> i64| own.iter().map(field).max().unwrap();
    let never = least(|own| own.retry_after_ms) < 0;
    let expected = Decision {
        allowed: least(|own| own.allowed),
        remaining: least(|own| own.remaining),
        retry_after_ms: if never { -1 } else { most(|own| own.retry_after_ms) },
        reset_after_ms: most(|own| own.reset_after_ms),
    };
    assert_eq!(binding, expected, "of {own:?}");
}
