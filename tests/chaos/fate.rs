//! What may come of a step whose reply never came.

use super::books::{Bucket, Page};
use super::foretell::foretell;
use super::step::Step;
use super::world::{Memory, Now};
use crate::common::model::{whole, Exact, Level, Model, Wish};

/// All that a step may make of a page.
pub fn outcomes(page: &Page, step: &Step, now: &Now) -> Vec<Page> {
    let in_place = |place: usize, outcomes: Vec<Bucket>| {
        outcomes.into_iter().map(|after| with(page, place, after)).collect()
    };
    match step {
        Step::Call { bucket, wish } => in_place(*bucket, of_a_wish(&page[*bucket], wish, now)),
        Step::Throttle { bucket, quantity } => {
            in_place(*bucket, of_a_wish(&page[*bucket], &Wish::Take(whole(*quantity)), now))
        }
        Step::NewLimit { bucket, limit, amount } => {
            let relimited = Bucket { limit: limit.clone(), ..page[*bucket].clone() };
            in_place(*bucket, of_a_wish(&relimited, &Wish::Charge(amount.clone()), now))
        }
        Step::MultiTake(takes) => of_several_takes(page, takes, now),
        Step::Reset { bucket, .. } => {
            let full = Bucket { model: Model::default(), ..page[*bucket].clone() };
            vec![with(page, *bucket, full)]
        }
        Step::Peek { .. } | Step::Look { .. } | Step::Nonsense { .. } => vec![page.clone()],
    }
}

fn with(page: &Page, place: usize, bucket: Bucket) -> Page {
    let mut after = page.clone();
    after[place] = bucket;
    after
}

/// What is told of a wish does not matter to what is stored, only whether it is granted does.
fn of_a_wish(bucket: &Bucket, wish: &Wish, now: &Now) -> Vec<Bucket> {
    if bucket.lacks_memory(wish, now) {
        return vec![bucket.clone()];
    }
    let Level { lowest, highest } = bucket.model.level(&bucket.limit, now.us);
    let mut decisions = [lowest, highest].map(|level| foretell(&bucket.limit, wish, &level)).to_vec();
    decisions.dedup_by_key(|decision| decision.allowed);
    let follow = |decision| {
        let mut after = bucket.clone();
        after.model.follow(&bucket.limit, wish, now.us, decision);
        after
    };
    decisions.into_iter().map(follow).collect()
}

/// None, or all of them for which there is memory.
fn of_several_takes(page: &Page, takes: &[(usize, Exact)], now: &Now) -> Vec<Page> {
    let mut outcomes = vec![page.clone()];
    let mut after = page.clone();
    for (place, cost) in takes {
        let (bucket, wish) = (&mut after[*place], Wish::Take(cost.clone()));
        let told = bucket.foretell(&wish, now);
        let lacks_memory = bucket.lacks_memory(&wish, now);
        if told.allowed == 0 || (lacks_memory && now.memory == Memory::FullAndDenying) {
            return outcomes;
        }
        if !lacks_memory {
            bucket.model.follow(&bucket.limit, &wish, now.us, told);
        }
    }
    outcomes.push(after);
    outcomes
}
