//! Calls that wait in order of arrival, in the contract's words: a list, and at every event a look through all of it.

use std::collections::HashSet;
use std::sync::Arc;
use tokenbucket_core::queue::{Arrival, Db};

type Part = tokenbucket_core::request::Request<Arc<[u8]>>;

/// What can be said of a bucket and a call that wants something of it.
pub trait Buckets {
    /// What the call wants in addition to what it holds already, in micro-tokens.
    fn needs_micro(&self, db: Db, part: &Part) -> i64;

    /// Returns whether the bucket has less than that, and no wait brings it.
    fn is_lost(&self, db: Db, part: &Part) -> bool;

    /// Returns whether the bucket has less than that, and will have it.
    fn lacks(&self, db: Db, part: &Part) -> bool;
}

#[derive(Clone, Debug)]
pub struct Call {
    pub arrival: Arrival,
    pub db: Db,
    pub parts: Vec<Part>,
    pub deadline_us: i64,
}

/// The calls that wait, the earliest first.
#[derive(Clone, Debug, Default)]
pub struct Waiting(pub Vec<Call>);

impl Waiting {
    /// The first call that lacks nothing and takes nothing that an earlier one lacks. A call that no wait can help is not
    /// among them: it is denied sooner or later.
    pub fn next_served(&self, buckets: &impl Buckets) -> Option<Arrival> {
        let mut lacked = HashSet::new();
        for Call { arrival, db, parts, .. } in &self.0 {
            let lacking: Vec<&Part> = parts.iter().filter(|part| buckets.lacks(*db, part)).collect();
            let is_kept =
                |part: &Part| lacked.contains(&(*db, &part.key)) && buckets.needs_micro(*db, part) > 0;
            let is_lost = parts.iter().any(|part| buckets.is_lost(*db, part));
            if !is_lost && lacking.is_empty() && !parts.iter().any(is_kept) {
                return Some(*arrival);
            }
            lacked.extend(lacking.into_iter().map(|part| (*db, &part.key)));
        }
        None
    }

    /// What all of them want of a bucket, if one of them lacks it.
    pub fn wanted_before(&self, db: Db, key: &[u8], buckets: &impl Buckets) -> Option<i64> {
        let calls = self.0.iter().filter(|call| call.db == db);
        let parts = || calls.clone().flat_map(|call| &call.parts).filter(|part| *part.key == *key);
        let sum_micro = || parts().map(|part| part.wanted.micro()).sum();
        parts().any(|part| buckets.lacks(db, part)).then(sum_micro)
    }

    pub fn leave(&mut self, arrival: Arrival) -> Call {
        let place = self.0.iter().position(|call| call.arrival == arrival).expect("nobody leaves twice");
        self.0.remove(place)
    }
}
