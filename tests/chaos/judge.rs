//! Judges replies by the exact model, and follows them.

use super::books::{state, Bucket, Page};
use super::step::Step;
use super::world::{Memory, Now};
use crate::common::model::{whole, Exact, Model, Wish};
use crate::common::{decision, integers, multi_decision, Decision};
use redis::Value;

/// Judges the reply to one step, and does what it says.
pub fn hear(page: &mut Page, step: &Step, now: &Now, reply: &Value) {
    match step {
        Step::Call { bucket, wish } => hear_call(&mut page[*bucket], wish, now, reply),
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
