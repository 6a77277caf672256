//! What may come of a step whose reply never came.

use super::books::{Bucket, Page};
use super::step::{Act, Step};
use super::world::{Memory, Now};
use crate::common::exact::{throttle, Holding, Model, Operation};

/// All that a step may make of a page.
pub fn outcomes(page: &Page, step: &Step, now: &Now) -> Vec<Page> {
    let (place, act) = match step {
        Step::One(place, act) => (*place, act),
        Step::MultiTake(takes) => return of_several_takes(page, takes, now),
    };
    let bucket = page[place].clone();
    let outcomes = match act {
        Act::Call(operation) => of_a_call(bucket, *operation, now),
        Act::Hold(holding) => of_a_hold(bucket, holding, now),
        Act::Throttle(quantity) => of_a_call(bucket, throttle::take(*quantity), now),
        Act::NewLimit(limit, charge) => of_a_call(Bucket { limit: limit.clone(), ..bucket }, *charge, now),
        Act::Reset(_) => vec![Bucket { model: Model::default(), ..bucket }],
        Act::Peek(_) | Act::Look | Act::LookAtHolds => vec![bucket],
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
