//! Judges replies by the exact model, and follows them; and what may come of a step whose reply never came.

use super::books::{Bucket, Page};
use super::step::{Act, Step};
use super::world::{Memory, Now};
use crate::common::exact::bucket::assert_binding;
use crate::common::exact::{throttle, Holding, Model, Operation};
use crate::common::walk::{shown_holds, stored, told};
use crate::common::{decision, integer, integers, multi_decision, reply};
use redis::Value;

/// Judges the reply to one step, and does what it says.
pub fn hear(page: &mut Page, step: &Step, now: &Now, reply: &Value) {
    let (place, act) = match step {
        Step::One(place, act) => (*place, act),
        Step::MultiTake(takes) => return hear_multi_take(page, takes, now, reply),
    };
    let bucket = &mut page[place];
    match act {
        Act::Hold(holding) => hear_hold(bucket, holding, now, reply),
        Act::Peek(take) => bucket.model.judge(&bucket.limit, *take, now.us, told(decision(reply))),
        Act::Look => bucket.see(now, stored(reply::state(reply))),
        Act::LookAtHolds => bucket.see_holds(now, &shown_holds(reply.clone(), now.us)),
        Act::Reset(_) => {
            let removed = integer(reply);
            // A bucket that is full may still have its key.
            let may_have_none = bucket.model.may_be(&bucket.limit, now.us, None);
            assert!(removed == 1 || (removed == 0 && may_have_none), "removed {removed} keys of {bucket:?}");
            bucket.model = Model::default();
        }
        Act::Call(_) | Act::NewLimit(..) | Act::Throttle(_) => {
            if let Act::NewLimit(limit, _) = act {
                bucket.limit = limit.clone();
            }
            hear_call(bucket, act, now, reply);
        }
    }
}

fn hear_call(bucket: &mut Bucket, act: &Act, now: &Now, reply: &Value) {
    let operation = act.operation().expect("a call");
    let lacks_memory = bucket.lacks_memory(operation, now);
    if lacks_memory && now.memory == Memory::FullAndDenying {
        return assert!(is_out_of_memory(reply), "{reply:?}");
    }
    bucket.follow(lacks_memory, |model, limit| match act {
        Act::Throttle(quantity) => {
            let fields = integers(reply).try_into().unwrap_or_else(|_| panic!("{reply:?}"));
            throttle::follow(model, limit, *quantity, now.us, fields)
        }
        _ => model.follow(limit, operation, now.us, told(decision(reply))),
    });
}

pub fn is_out_of_memory(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == "OOM")
}

fn hear_hold(bucket: &mut Bucket, holding: &Holding, now: &Now, reply: &Value) {
    let Some(take) = bucket.take_instead(holding, now) else {
        bucket.model.follow(&bucket.limit, holding, now.us, told(decision(reply)));
        return;
    };
    let is_denying = now.memory == Memory::FullAndDenying;
    if is_denying && is_out_of_memory(reply) {
        return assert!(bucket.may_allow(take, now), "a denial needs no memory");
    }
    let told = told(decision(reply));
    assert!(told.allowed == 0 || !is_denying, "a hold was made without memory");
    bucket.model.judge(&bucket.limit, take, now.us, told);
}

fn hear_multi_take(page: &mut Page, takes: &[(usize, Operation)], now: &Now, reply: &Value) {
    let lacks_memory =
        |page: &Page, (place, take): &(usize, Operation)| page[*place].lacks_memory(*take, now);
    let any_lacks = now.memory == Memory::FullAndDenying && takes.iter().any(|take| lacks_memory(page, take));
    if any_lacks && is_out_of_memory(reply) {
        let all_grant = takes.iter().all(|(place, take)| page[*place].may_allow(*take, now));
        return assert!(all_grant, "a denial needs no memory");
    }
    let (binding, own) = multi_decision(reply);
    let own: Vec<_> = own.into_iter().map(told).collect();
    assert_eq!(own.len(), takes.len());
    assert_binding(told(binding), &own);
    let all_allow = binding.allowed == 1;
    assert!(!all_allow || !any_lacks, "a bucket was made without memory");
    for (call, told) in takes.iter().zip(own) {
        let lacks_memory = lacks_memory(page, call);
        page[call.0].follow(lacks_memory, |model, limit| {
            model.follow_together(limit, call.1, now.us, told, all_allow)
        });
    }
}

/// All that a step may make of a page.
pub fn outcomes(page: &Page, step: &Step, now: &Now) -> Vec<Page> {
    let (place, act) = match step {
        Step::One(place, act) => (*place, act),
        Step::MultiTake(takes) => return of_several_takes(page, takes, now),
    };
    let mut bucket = page[place].clone();
    if let Act::NewLimit(limit, _) = act {
        bucket.limit = limit.clone();
    }
    let outcomes = match (act, act.operation()) {
        (Act::Hold(holding), _) => of_a_hold(bucket, holding, now),
        (Act::Reset(_), _) => vec![Bucket { model: Model::default(), ..bucket }],
        (_, Some(operation)) => of_a_call(bucket, operation, now),
        _ => vec![bucket],
    };
    let with = |after: Bucket| {
        let mut page = page.clone();
        page[place] = after;
        page
    };
    outcomes.into_iter().map(with).collect()
}

/// What is told does not matter to what is stored, only what is granted does.
fn of_a_call(bucket: Bucket, operation: Operation, now: &Now) -> Vec<Bucket> {
    if bucket.lacks_memory(operation, now) {
        return vec![bucket];
    }
    let mut all_allowed = bucket.model.allowed(&bucket.limit, operation, now.us).to_vec();
    all_allowed.dedup();
    let outcome = |(allowed, is_full)| {
        let mut after = bucket.clone();
        after.model.apply(&bucket.limit, operation, now.us, allowed, is_full);
        after
    };
    all_allowed.into_iter().flatten().flat_map(|n| [(n, false), (n, true)]).map(outcome).collect()
}

fn of_a_hold(bucket: Bucket, holding: &Holding, now: &Now) -> Vec<Bucket> {
    if bucket.take_instead(holding, now).is_some() {
        return vec![bucket];
    }
    let models = bucket.model.outcomes(&bucket.limit, holding, now.us);
    models.into_iter().map(|model| Bucket { model, ..bucket.clone() }).collect()
}

/// None, or all of them for which there is memory.
fn of_several_takes(page: &Page, takes: &[(usize, Operation)], now: &Now) -> Vec<Page> {
    let mut after = page.clone();
    for (place, take) in takes {
        let bucket = &mut after[*place];
        let lacks_memory = bucket.lacks_memory(*take, now);
        if !bucket.may_allow(*take, now) || (lacks_memory && now.memory == Memory::FullAndDenying) {
            return vec![page.clone()];
        }
        if !lacks_memory {
            bucket.model.apply(&bucket.limit, *take, now.us, 1, false);
        }
    }
    vec![page.clone(), after]
}
