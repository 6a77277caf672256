//! What clients do: single steps, and several as one.

use super::books::{Bucket, Page};
use crate::common::exact::operation::{arguments, words};
use crate::common::exact::{throttle, Holding, Limit, Model, Operation};
use crate::common::walk::{self, RATES};
use crate::common::{Random, HOUR_MS};

/// One command on the buckets of a client, which are named by their places.
#[derive(Clone, Debug)]
pub enum Step {
    Call {
        bucket: usize,
        operation: Operation,
    },
    Hold {
        bucket: usize,
        holding: Holding,
    },
    Peek {
        bucket: usize,
        take: Operation,
    },
    MultiTake(Vec<(usize, Operation)>),
    /// A take in the words of redis-cell, of whole tokens.
    Throttle {
        bucket: usize,
        quantity: i64,
    },
    /// A charge under another limit than before.
    NewLimit {
        bucket: usize,
        limit: Limit,
        charge: Operation,
    },
    Look {
        bucket: usize,
    },
    LookAtHolds {
        bucket: usize,
    },
    Reset {
        bucket: usize,
        command: &'static str,
    },
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
        let arguments = |bucket: usize, take| arguments(take, &page[bucket].key, &page[bucket].limit);
        match self {
            Self::Call { bucket, operation } => words(*operation, &page[*bucket].key, &page[*bucket].limit),
            Self::Hold { bucket, holding } => holding.words(&page[*bucket].key, &page[*bucket].limit),
            Self::Peek { bucket, take } => format!("TB.PEEK {}", arguments(*bucket, *take)),
            Self::MultiTake(takes) => {
                let groups: Vec<_> = takes.iter().map(|(bucket, take)| arguments(*bucket, *take)).collect();
                format!("TB.MTAKE {} {}", takes.len(), groups.join(" "))
            }
            Self::Throttle { bucket, quantity } => {
                let Bucket { key, throttle, .. } = &page[*bucket];
                format!("CL.THROTTLE {key} {} {quantity}", throttle.as_ref().unwrap())
            }
            Self::NewLimit { bucket, limit, charge } => words(*charge, &page[*bucket].key, limit),
            Self::Look { bucket } => format!("TB.STATE {}", page[*bucket].key),
            Self::LookAtHolds { bucket } => format!("TB.HOLDS {}", page[*bucket].key),
            Self::Reset { bucket, command } => format!("{command} {}", page[*bucket].key),
        }
    }

    /// The places of the buckets that it is about.
    pub fn buckets(&self) -> Vec<usize> {
        match self {
            Self::Call { bucket, .. }
            | Self::Hold { bucket, .. }
            | Self::Peek { bucket, .. }
            | Self::Throttle { bucket, .. }
            | Self::NewLimit { bucket, .. }
            | Self::Look { bucket }
            | Self::LookAtHolds { bucket }
            | Self::Reset { bucket, .. } => vec![*bucket],
            Self::MultiTake(takes) => takes.iter().map(|(bucket, _)| *bucket).collect(),
        }
    }
}

/// A full bucket. The last ones can be worded for redis-cell.
pub fn new_bucket(random: &mut Random, key: String, place: usize, buckets: usize) -> Bucket {
    let is_throttled = place + THROTTLED >= buckets;
    let (limit, throttle) =
        if is_throttled { throttled_limit(random) } else { (walk::limit(random, RATES), None) };
    Bucket { key, limit, throttle, model: Model::default(), has_key: false }
}

/// Buckets of which redis-cell's command takes too.
const THROTTLED: usize = 3;

/// The same limit as we word it, and as `max_burst count period`.
fn throttled_limit(random: &mut Random) -> (Limit, Option<String>) {
    let [max_burst, count, period_s] = [30, 100, 3600].map(|most| random.between(1, most));
    (throttle::limit(max_burst, count, period_s), Some(format!("{max_burst} {count} {period_s}")))
}

/// Any step.
pub fn draw(random: &mut Random, page: &Page) -> Step {
    let bucket = place(random, page);
    if page[bucket].throttle.is_some() && random.once_in(3) {
        return Step::Throttle { bucket, quantity: random.between(0, 5) };
    }
    match random.below(33) {
        0..=16 => Step::Call { bucket, operation: walk::any_operation(random, &page[bucket].limit) },
        17..=23 => Step::Hold { bucket, holding: holding(random, &page[bucket].limit) },
        24 | 25 => Step::Peek { bucket, take: walk::take(random, &page[bucket].limit) },
        26..=29 => multi_take(random, page),
        30 => Step::Look { bucket },
        31 => Step::LookAtHolds { bucket },
        _ => Step::Reset { bucket, command: if random.once_in(2) { "DEL" } else { "UNLINK" } },
    }
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
    let bucket = place(random, page);
    let limit = walk::limit(random, RATES);
    let amount_micro = walk::amount_micro(random, &limit);
    let are_whole = limit.is_whole() && page[bucket].limit.is_whole();
    let possible = page[bucket].throttle.is_none() && amount_micro > 0 && are_whole;
    possible.then_some(Step::NewLimit { bucket, limit, charge: Operation::Charge { amount_micro } })
}
