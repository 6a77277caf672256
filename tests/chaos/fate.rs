//! What may come of a step whose reply never came.

use super::books::{Bucket, Page};
use super::step::Step;
use super::world::{Memory, Now};
use crate::common::exact::{throttle, Holding, Model, Operation};

/// All that a step may make of a page.
pub fn outcomes(page: &Page, step: &Step, now: &Now) -> Vec<Page> {
    let in_place = |place: usize, outcomes: Vec<Bucket>| {
        outcomes.into_iter().map(|after| with(page, place, after)).collect()
    };
    match step {
        Step::Call { bucket, operation } => in_place(*bucket, of_a_call(&page[*bucket], *operation, now)),
        Step::Hold { bucket, holding } => in_place(*bucket, of_a_hold(&page[*bucket], holding, now)),
        Step::Throttle { bucket, quantity } => {
            in_place(*bucket, of_a_call(&page[*bucket], throttle::take(*quantity), now))
        }
        Step::NewLimit { bucket, limit, charge } => {
            let relimited = Bucket { limit: limit.clone(), ..page[*bucket].clone() };
            in_place(*bucket, of_a_call(&relimited, *charge, now))
        }
        Step::MultiTake(takes) => of_several_takes(page, takes, now),
        Step::Reset { bucket, .. } => {
            let full = Bucket { model: Model::default(), ..page[*bucket].clone() };
            vec![with(page, *bucket, full)]
        }
        Step::Peek { .. } | Step::Look { .. } | Step::LookAtHolds { .. } => vec![page.clone()],
    }
}

fn with(page: &Page, place: usize, bucket: Bucket) -> Page {
    let mut after = page.clone();
    after[place] = bucket;
    after
}

/// What is told does not matter to what is stored, only what is granted does.
fn of_a_call(bucket: &Bucket, operation: Operation, now: &Now) -> Vec<Bucket> {
    if bucket.lacks_memory(operation, now) {
        return vec![bucket.clone()];
    }
    let mut all_allowed = bucket.model.allowed(&bucket.limit, operation, now.us).to_vec();
    all_allowed.dedup();
    let mut outcomes = Vec::new();
    for (allowed, is_full) in all_allowed.into_iter().flatten().flat_map(|n| [(n, false), (n, true)]) {
        let mut after = bucket.clone();
        after.model.apply(&bucket.limit, operation, now.us, allowed, is_full);
        outcomes.push(after);
    }
    outcomes
}

fn of_a_hold(bucket: &Bucket, holding: &Holding, now: &Now) -> Vec<Bucket> {
    if bucket.take_instead(holding, now).is_some() {
        return vec![bucket.clone()];
    }
    let models = bucket.model.outcomes(&bucket.limit, holding, now.us);
    models.into_iter().map(|model| Bucket { model, ..bucket.clone() }).collect()
}

/// None, or all of them for which there is memory.
fn of_several_takes(page: &Page, takes: &[(usize, Operation)], now: &Now) -> Vec<Page> {
    let mut outcomes = vec![page.clone()];
    let mut after = page.clone();
    for (place, take) in takes {
        let bucket = &mut after[*place];
        let lacks_memory = bucket.lacks_memory(*take, now);
        if !bucket.may_allow(*take, now) || (lacks_memory && now.memory == Memory::FullAndDenying) {
            return outcomes;
        }
        if !lacks_memory {
            bucket.model.apply(&bucket.limit, *take, now.us, 1, false);
        }
    }
    outcomes.push(after);
    outcomes
}
