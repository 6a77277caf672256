//! Judges replies by the exact model, and follows them.

use super::books::{Bucket, Page};
use super::step::Step;
use super::world::{Memory, Now};
use crate::common::exact::bucket::assert_binding;
use crate::common::exact::{throttle, Holding, Model, Operation};
use crate::common::walk::{shown_holds, stored, told};
use crate::common::{decision, integers, multi_decision, reply};
use redis::Value;

/// Judges the reply to one step, and does what it says.
pub fn hear(page: &mut Page, step: &Step, now: &Now, reply: &Value) {
    match step {
        Step::Call { bucket, operation } => hear_call(&mut page[*bucket], *operation, now, reply),
        Step::Hold { bucket, holding } => hear_hold(&mut page[*bucket], holding, now, reply),
        Step::Throttle { bucket, quantity } => hear_throttle(&mut page[*bucket], *quantity, now, reply),
        Step::NewLimit { bucket, limit, charge } => {
            page[*bucket].limit = limit.clone();
            hear_call(&mut page[*bucket], *charge, now, reply);
        }
        Step::Peek { bucket, take } => {
            let Bucket { model, limit, .. } = &page[*bucket];
            model.judge(limit, *take, now.us, told(decision(reply)));
        }
        Step::MultiTake(takes) => hear_multi_take(page, takes, now, reply),
        Step::Look { bucket } => page[*bucket].see(now, stored(reply::state(reply))),
        Step::LookAtHolds { bucket } => page[*bucket].see_holds(now, &shown_holds(reply.clone(), now.us)),
        Step::Reset { bucket, .. } => hear_reset(&mut page[*bucket], now, reply),
    }
}

fn assert_out_of_memory(reply: &Value) {
    let refused = matches!(reply, Value::ServerError(error) if error.code() == "OOM");
    assert!(refused, "not out of memory: {reply:?}");
}

fn hear_reset(bucket: &mut Bucket, now: &Now, reply: &Value) {
    let [removed] = integers(&Value::Array(vec![reply.clone()]))[..] else { panic!("no count") };
    // A bucket that is full may still have its key.
    let may_have_none = bucket.model.may_be(&bucket.limit, now.us, None);
    assert!(removed == 1 || (removed == 0 && may_have_none), "removed {removed} keys of {bucket:?}");
    bucket.model = Model::default();
}

fn hear_call(bucket: &mut Bucket, operation: Operation, now: &Now, reply: &Value) {
    let lacks_memory = bucket.lacks_memory(operation, now);
    if lacks_memory && now.memory == Memory::FullAndDenying {
        return assert_out_of_memory(reply);
    }
    bucket.model_to_follow(lacks_memory, |model, limit| {
        model.follow(limit, operation, now.us, told(decision(reply)));
    });
}

fn hear_hold(bucket: &mut Bucket, holding: &Holding, now: &Now, reply: &Value) {
    let Some(take) = bucket.take_instead(holding, now) else {
        bucket.model.follow_holding(&bucket.limit, holding, now.us, told(decision(reply)));
        return;
    };
    let is_denying = now.memory == Memory::FullAndDenying;
    if is_denying && matches!(reply, Value::ServerError(_)) {
        assert!(bucket.may_allow(take, now), "a denial needs no memory");
        return assert_out_of_memory(reply);
    }
    let told = told(decision(reply));
    assert!(told.allowed == 0 || !is_denying, "a hold was made without memory");
    bucket.model.judge(&bucket.limit, take, now.us, told);
}

fn hear_throttle(bucket: &mut Bucket, quantity: i64, now: &Now, reply: &Value) {
    let lacks_memory = bucket.lacks_memory(throttle::take(quantity), now);
    if lacks_memory && now.memory == Memory::FullAndDenying {
        return assert_out_of_memory(reply);
    }
    let fields = integers(reply).try_into().unwrap_or_else(|_| panic!("not five integers: {reply:?}"));
    bucket.model_to_follow(lacks_memory, |model, limit| {
        throttle::follow(model, limit, quantity, now.us, fields);
    });
}

fn hear_multi_take(page: &mut Page, takes: &[(usize, Operation)], now: &Now, reply: &Value) {
    let lacks_memory =
        |page: &Page, (place, take): &(usize, Operation)| page[*place].lacks_memory(*take, now);
    let any_lacks = now.memory == Memory::FullAndDenying && takes.iter().any(|take| lacks_memory(page, take));
    if any_lacks && matches!(reply, Value::ServerError(_)) {
        let all_grant = takes.iter().all(|(place, take)| page[*place].may_allow(*take, now));
        assert!(all_grant, "a denial needs no memory");
        return assert_out_of_memory(reply);
    }
    let (binding, own) = multi_decision(reply);
    let own: Vec<_> = own.into_iter().map(told).collect();
    assert_eq!(own.len(), takes.len());
    assert_binding(told(binding), &own);
    let all_allow = binding.allowed == 1;
    assert!(!all_allow || !any_lacks, "a bucket was made without memory");
    for (call, told) in takes.iter().zip(own) {
        let lacks_memory = lacks_memory(page, call);
        page[call.0].model_to_follow(lacks_memory, |model, limit| {
            model.follow_together(limit, call.1, now.us, told, all_allow);
        });
    }
}
