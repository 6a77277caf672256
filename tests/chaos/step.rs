//! What clients do: single steps, and several as one.

use super::books::{Bucket, Page};
use crate::common::exact::operation::{arguments, words};
use crate::common::exact::{throttle, Holding, Limit, Model, Operation};
use crate::common::walk::{self, RATES};
use crate::common::{Random, HOUR_MS};

/// One command of a client, whose buckets are named by their places.
#[derive(Clone, Debug)]
pub enum Step {
    One(usize, Act),
    MultiTake(Vec<(usize, Operation)>),
}

/// What is done with one bucket.
#[derive(Clone, Debug)]
pub enum Act {
    Call(Operation),
    Hold(Holding),
    Peek(Operation),
    /// A take in the words of redis-cell, of whole tokens.
    Throttle(i64),
    /// A charge under another limit than before.
    NewLimit(Limit, Operation),
    Look,
    LookAtHolds,
    /// By this command, which removes the key.
    Reset(&'static str),
}

/// How steps are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapping {
    None,
    Transaction,
    Script,
}

impl Step {
    /// As a client words it.
    pub fn words(&self, page: &Page) -> String {
        match self {
            Self::One(place, act) => act.words(&page[*place]),
            Self::MultiTake(takes) => {
                let group = |(place, take): &(usize, Operation)| {
                    arguments(*take, &page[*place].key, &page[*place].limit)
                };
                format!("TB.MTAKE {} {}", takes.len(), takes.iter().map(group).collect::<Vec<_>>().join(" "))
            }
        }
    }

    /// The places of the buckets that it is about.
    pub fn places(&self) -> Vec<usize> {
        match self {
            Self::One(place, _) => vec![*place],
            Self::MultiTake(takes) => takes.iter().map(|(place, _)| *place).collect(),
        }
    }
}

impl Act {
    /// What is wanted of the bucket, where that is decided by how much it has.
    pub fn operation(&self) -> Option<Operation> {
        match self {
            Self::Call(operation) | Self::NewLimit(_, operation) => Some(*operation),
            Self::Throttle(quantity) => Some(throttle::take(*quantity)),
            _ => None,
        }
    }

    fn words(&self, Bucket { key, limit, throttle, .. }: &Bucket) -> String {
        match self {
            Self::Call(operation) => words(*operation, key, limit),
            Self::Hold(holding) => holding.words(key, limit),
            Self::Peek(take) => format!("TB.PEEK {}", arguments(*take, key, limit)),
            Self::Throttle(quantity) => {
                format!("CL.THROTTLE {key} {} {quantity}", throttle.as_ref().unwrap())
            }
            Self::NewLimit(limit, charge) => words(*charge, key, limit),
            Self::Look => format!("TB.STATE {key}"),
            Self::LookAtHolds => format!("TB.HOLDS {key}"),
            Self::Reset(command) => format!("{command} {key}"),
        }
    }
}

/// A full bucket; if it is throttled, one of which redis-cell's command takes too.
pub fn new_bucket(random: &mut Random, key: String, is_throttled: bool) -> Bucket {
    let (limit, throttle) = if is_throttled {
        let [max_burst, count, period_s] = [30, 100, 3600].map(|most| random.between(1, most));
        (throttle::limit(max_burst, count, period_s), Some(format!("{max_burst} {count} {period_s}")))
    } else {
        (walk::limit(random, RATES), None)
    };
    Bucket { key, limit, throttle, model: Model::default(), has_key: false }
}

/// Any step.
pub fn draw(random: &mut Random, page: &Page) -> Step {
    let place = place(random, page);
    let Bucket { limit, throttle, .. } = &page[place];
    if throttle.is_some() && random.once_in(3) {
        return Step::One(place, Act::Throttle(random.between(0, 5)));
    }
    let act = match random.below(33) {
        0..=16 => Act::Call(walk::any_operation(random, limit)),
        17..=23 => Act::Hold(holding(random, limit)),
        24 | 25 => Act::Peek(walk::take(random, limit)),
        26..=29 => return multi_take(random, page),
        30 => Act::Look,
        31 => Act::LookAtHolds,
        _ => Act::Reset(if random.once_in(2) { "DEL" } else { "UNLINK" }),
    };
    Step::One(place, act)
}

/// A call on a hold; some last until the clock has leapt a few times.
fn holding(random: &mut Random, limit: &Limit) -> Holding {
    let mut holding = walk::any_holding(random, limit);
    match &mut holding {
        Holding::Set { ttl_ms, .. } if random.once_in(2) => *ttl_ms = random.between(1, 6 * HOUR_MS),
        _ => {}
    }
    holding
}

fn place(random: &mut Random, page: &Page) -> usize {
    usize::try_from(random.below(page.len() as u64)).unwrap()
}

fn multi_take(random: &mut Random, page: &Page) -> Step {
    let places: Vec<usize> = (0..page.len()).collect();
    let count = usize::try_from(random.between(1, 4)).unwrap();
    let places = random.shuffled(&places).into_iter().take(count);
    Step::MultiTake(places.map(|place| (place, walk::take(random, &page[place].limit))).collect())
}

/// A charge under a new limit, if there is a bucket that may have one.
///
/// Only between rates at which nothing is rounded. At others a level is known to a micro-token, and whether a smaller
/// charge that was cut off was made is not: at another rate the moment of the last write would show.
pub fn new_limit(random: &mut Random, page: &Page) -> Option<Step> {
    let place = place(random, page);
    let limit = walk::limit(random, RATES);
    let amount_micro = walk::amount_micro(random, &limit);
    let are_whole = limit.is_whole() && page[place].limit.is_whole();
    let possible = page[place].throttle.is_none() && amount_micro > 0 && are_whole;
    possible.then_some(Step::One(place, Act::NewLimit(limit, Operation::Charge { amount_micro })))
}
