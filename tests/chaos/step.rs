//! What clients do: one command on a bucket, or on several.

use super::possible_states::{Bucket, Buckets};
use crate::common::judged_calls::{self, RATES};
use crate::common::model::call::Wanted;
use crate::common::model::operation::arguments;
use crate::common::model::{HoldOperation, Limit, Model, Operation};
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
    Decide(Want),
    TakeTogether(Vec<Operation>),
    /// The first of these that is allowed.
    TakeOneOf(Vec<Operation>),
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
    Override { limit: Limit, ttl_ms: i64, fills: bool },
}

impl Want {
    pub fn wanted(&self) -> Wanted<'_> {
        match self {
            Self::Operation(operation) => (*operation).into(),
            Self::Hold(hold_operation) => hold_operation.into(),
            Self::Override { ttl_ms, fills, .. } => Wanted::Override { ttl_ms: *ttl_ms, fills: *fills },
        }
    }

    /// The limit that it brings to a bucket which other calls use with `limit`.
    pub fn limit<'a>(&'a self, limit: &'a Limit) -> &'a Limit {
        match self {
            Self::Override { limit, .. } => limit,
            _ => limit,
        }
    }
}

impl Step {
    pub fn overrides(&self) -> bool {
        matches!(self.act, Act::Decide(Want::Override { .. }))
    }

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

/// The buckets of a client, all of them full.
pub fn new_buckets(random: &mut Random, client: u64) -> Buckets {
    const BUCKETS: usize = 12;
    let bucket = |place| {
        let (key, limit) = (format!("client:{client}:{place}"), judged_calls::limit(random, RATES));
        Bucket { key, limit, model: Model::default(), has_key: false }
    };
    (0..BUCKETS).map(bucket).collect()
}

/// Any step.
pub fn draw(random: &mut Random, buckets: &Buckets) -> Step {
    let place = random.below(buckets.len() as u64) as usize;
    let Bucket { key, limit, .. } = &buckets[place];
    let decide = |want: Want| (want.wanted().words(key, want.limit(limit)), Act::Decide(want));
    let (words, act) = match random.below(35) {
        0..=16 => decide(Want::Operation(judged_calls::any_operation(random, limit))),
        17..=23 => {
            let drawn = judged_calls::any_hold_operation(random, limit);
            // Some last until the clock has leapt a few times.
            let lasts_long = random.once_in(2);
            let hold_operation =
                if lasts_long { drawn.lasting(random.between(1, 6 * HOUR_MS)) } else { drawn };
            decide(Want::Hold(hold_operation))
        }
        24..=25 => {
            let take = judged_calls::take(random, limit);
            (format!("TB.PEEK {}", arguments(take, key, limit)), Act::Peek(take))
        }
        26..=29 => return take_of_several(random, buckets),
        30 => return look(buckets, place),
        31 => (format!("TB.HOLDS {key}"), Act::LookAtHolds),
        32..=33 => {
            // A bucket that is full by a smaller capacity may expire, and is full by the larger one. Another rate would leave
            // open whether a gift finds a bucket full that has holds: `decisions.rs` looks at that after each call.
            let other = limit.times(random.between(0, 3));
            let (limit, ttl_ms) = match random.once_in(3) {
                true => (limit.clone(), 0),
                false => (other, random.between(1, 6 * HOUR_MS)),
            };
            let fills = ttl_ms > 0 && limit.capacity_micro() > 0 && random.once_in(3);
            decide(Want::Override { limit, ttl_ms, fills })
        }
        _ => (format!("{} {key}", random.pick(&["DEL", "UNLINK"])), Act::Reset),
    };
    Step { words, places: vec![place], act }
}

pub fn look(buckets: &Buckets, place: usize) -> Step {
    Step { words: format!("TB.STATE {}", buckets[place].key), places: vec![place], act: Act::Look }
}

fn take_of_several(random: &mut Random, buckets: &Buckets) -> Step {
    let mut places = random.shuffled(&(0..buckets.len()).collect::<Vec<_>>());
    places.truncate(random.between(1, 4) as usize);
    let is_one_of = random.once_in(3);
    let head = if is_one_of {
        format!("TB.TAKEANY {} 1", places.len())
    } else {
        format!("TB.MTAKE {}", places.len())
    };
    let (mut words, mut takes) = (head, vec![]);
    for Bucket { key, limit, .. } in places.iter().map(|place| &buckets[*place]) {
        let take = judged_calls::take(random, limit);
        words += &format!(" {}", arguments(take, key, limit));
        takes.push(take);
    }
    let act = if is_one_of { Act::TakeOneOf(takes) } else { Act::TakeTogether(takes) };
    Step { words, places, act }
}
