//! What clients do: one command on a bucket, or on several.

use super::possible_states::{Bucket, Buckets};
use crate::common::judged_calls::{self, RATES};
use crate::common::model::call::Wanted;
use crate::common::model::operation::{arguments, words};
use crate::common::model::{throttle, HoldOperation, Limit, Model, Operation};
use crate::common::{Random, HOUR_MS};

/// One command of a client.
#[derive(Clone, Debug)]
pub struct Step {
    pub words: String,
    /// Of its buckets, among the client's.
    pub places: Vec<usize>,
    pub act: Act,
}

/// What is done with one bucket, or with several.
#[derive(Clone, Debug)]
pub enum Act {
    /// Perhaps under another limit than before.
    Decide(Option<Limit>, Want),
    TakeTogether(Vec<Operation>),
    Peek(Operation),
    Look,
    LookAtHolds,
    /// The key is removed.
    Reset,
}

/// What is wanted of a bucket.
#[derive(Clone, Debug)]
pub enum Want {
    Operation(Operation),
    Hold(HoldOperation),
    /// A take in the words of redis-cell, of whole tokens.
    Throttle(i64),
}

impl Want {
    pub fn wanted(&self) -> Wanted<'_> {
        match self {
            Self::Operation(operation) => (*operation).into(),
            Self::Hold(hold_operation) => hold_operation.into(),
            Self::Throttle(quantity) => throttle::take(*quantity).into(),
        }
    }
}

impl Step {
    /// Lets it be the command that waits, if there is one, where it may not wait: then it decides as the other.
    pub fn with_max_wait_ms(mut self, max_wait_ms: i64) -> Self {
        let words: Vec<&str> = self.words.split(' ').collect();
        self.words = match words.as_slice() {
            ["TB.TAKE", rest @ ..] if rest.len() == 4 => format!("TB.BTAKE {} {max_wait_ms}", rest.join(" ")),
            ["TB.HOLD", rest @ ..] => format!("TB.BHOLD {} {max_wait_ms}", rest.join(" ")),
            ["TB.MTAKE", count, rest @ ..] => format!("TB.BMTAKE {count} {max_wait_ms} {}", rest.join(" ")),
            _ => return self,
        };
        self
    }
}

/// The buckets of a client, all of them full; some are throttled: of these redis-cell's command takes too.
pub fn new_buckets(random: &mut Random, client: u64) -> Buckets {
    const BUCKETS: usize = 12;
    const THROTTLED: usize = 3;
    let bucket = |place| {
        let (limit, throttle) = if place < THROTTLED {
            let [max_burst, count, period_s] = [30, 100, 3600].map(|most| random.between(1, most));
            (throttle::limit(max_burst, count, period_s), Some(format!("{max_burst} {count} {period_s}")))
        } else {
            (judged_calls::limit(random, RATES), None)
        };
        let key = format!("client:{client}:{place}");
        Bucket { key, limit, throttle, model: Model::default(), has_key: false, is_certain: true }
    };
    (0..BUCKETS).map(bucket).collect()
}

/// Any step.
pub fn draw(random: &mut Random, buckets: &Buckets) -> Step {
    let place = random.below(buckets.len() as u64) as usize;
    let Bucket { key, limit, throttle, .. } = &buckets[place];
    let decide = |want: Want| (want.wanted().words(key, limit), Act::Decide(None, want));
    let (words, act) = match (random.below(33), throttle) {
        (0..=10, Some(throttle)) => {
            let quantity = random.between(0, 5);
            let words = format!("CL.THROTTLE {key} {throttle} {quantity}");
            (words, Act::Decide(None, Want::Throttle(quantity)))
        }
        (0..=16, _) => decide(Want::Operation(judged_calls::any_operation(random, limit))),
        (17..=23, _) => {
            let mut hold_operation = judged_calls::any_hold_operation(random, limit);
            // Some last until the clock has leapt a few times.
            if let (HoldOperation::Set { ttl_ms, .. }, true) = (&mut hold_operation, random.once_in(2)) {
                *ttl_ms = random.between(1, 6 * HOUR_MS);
            }
            decide(Want::Hold(hold_operation))
        }
        (24..=25, _) => {
            let take = judged_calls::take(random, limit);
            (format!("TB.PEEK {}", arguments(take, key, limit)), Act::Peek(take))
        }
        (26..=29, _) => return take_together(random, buckets),
        (30, _) => return look(buckets, place),
        (31, _) => (format!("TB.HOLDS {key}"), Act::LookAtHolds),
        _ => (format!("{} {key}", random.pick(&["DEL", "UNLINK"])), Act::Reset),
    };
    Step { words, places: vec![place], act }
}

pub fn look(buckets: &Buckets, place: usize) -> Step {
    Step { words: format!("TB.STATE {}", buckets[place].key), places: vec![place], act: Act::Look }
}

fn take_together(random: &mut Random, buckets: &Buckets) -> Step {
    let mut places = random.shuffled(&(0..buckets.len()).collect::<Vec<_>>());
    places.truncate(random.between(1, 4) as usize);
    let (mut words, mut takes) = (format!("TB.MTAKE {}", places.len()), vec![]);
    for Bucket { key, limit, .. } in places.iter().map(|place| &buckets[*place]) {
        let take = judged_calls::take(random, limit);
        words += &format!(" {}", arguments(take, key, limit));
        takes.push(take);
    }
    Step { words, places, act: Act::TakeTogether(takes) }
}

/// A charge under a new limit, if there is a bucket that may have one.
///
/// Only of a bucket that is known for sure, and between rates at which nothing is rounded. At others a level is known to a
/// micro-token, and whether a smaller charge that was cut off was made is not: at another rate the moment of the last
/// write would show.
pub fn new_limit(random: &mut Random, buckets: &Buckets) -> Option<Step> {
    let place = random.below(buckets.len() as u64) as usize;
    let Bucket { key, limit, throttle, is_certain, .. } = &buckets[place];
    let new_limit = judged_calls::limit(random, RATES);
    let amount_micro = judged_calls::amount_micro(random, &new_limit);
    let are_whole = limit.is_whole() && new_limit.is_whole();
    let charge = Operation::Charge { amount_micro };
    let words = words(charge, key, &new_limit);
    let act = Act::Decide(Some(new_limit), Want::Operation(charge));
    let is_possible = *is_certain && throttle.is_none() && amount_micro > 0 && are_whole;
    is_possible.then_some(Step { words, places: vec![place], act })
}
