//! Calls that wait in order of arrival or by shares, in the contract's words: a list, and at every event a look through all
//! of it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tokenbucket_core::queue::{Arrival, Db};

type Name = Arc<[u8]>;
type Part = tokenbucket_core::request::Request<Name>;
pub type Share = tokenbucket_core::request::Share<Name>;

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
    pub share: Option<Share>,
}

impl Call {
    fn tenant(&self) -> Option<Name> {
        self.share.as_ref().map(|share| share.tenant.clone())
    }

    fn wants_anything(&self) -> bool {
        self.parts.iter().any(|part| part.wanted.micro() > 0 || part.id().is_some())
    }

    fn names(&self, db: Db, key: &Name) -> bool {
        self.db == db && self.parts.iter().any(|part| part.key == *key)
    }
}

/// The calls that wait, the earliest first.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    pub calls: Vec<Call>,
    /// The virtual times of the tenants of a key, while any call waits there.
    virtual_times: HashMap<(Db, Name), HashMap<Option<Name>, u128>>,
    /// Set while virtual times may differ: a call gave up, and the model did not know whether it was next.
    is_unsure: bool,
}

impl Waiting {
    /// Adds a call. A tenant that begins to wait starts at the least virtual time of those that do, if that is above its own.
    /// A call that wants nothing has no share.
    pub fn enter(&mut self, mut call: Call) {
        let wants_anything = call.wants_anything();
        call.share = call.share.filter(|_| wants_anything);
        for part in call.parts.iter().filter(|_| wants_anything) {
            let start = self.virtual_time(call.db, &part.key, &call.tenant());
            let times = self.virtual_times.entry((call.db, part.key.clone())).or_default();
            times.insert(call.tenant(), start);
        }
        self.calls.push(call);
    }

    fn virtual_time(&self, db: Db, key: &Name, tenant: &Option<Name>) -> u128 {
        let Some(times) = self.virtual_times.get(&(db, key.clone())) else { return 0 };
        let here = self.calls.iter().filter(|call| call.names(db, key) && call.wants_anything());
        let waiting: Vec<_> = here.map(Call::tenant).collect();
        let own = times.get(tenant).copied().unwrap_or(0);
        let least = waiting.iter().map(|tenant| times[tenant]).min().unwrap_or(0);
        if waiting.contains(tenant) {
            own
        } else {
            own.max(least)
        }
    }

    /// Adds what a call was granted of a key, divided by its weight, to the virtual time of its tenant.
    pub fn grant(&mut self, call: &Call, part: &Part, micro: i64) {
        let weight_micro = call.share.as_ref().map_or(1_000_000, |share| share.weight_micro);
        let times = self.virtual_times.entry((call.db, part.key.clone())).or_default();
        *times.entry(call.tenant()).or_default() +=
            micro.max(0) as u128 * 1_000_000_000_000 / weight_micro as u128;
    }

    /// Removes a call that was granted nothing. If it was next at its key, it passes its turn: it counts as granted.
    pub fn give_up(&mut self, arrival: Arrival) -> Call {
        let call =
            self.calls.iter().find(|call| call.arrival == arrival).expect("nobody leaves twice").clone();
        self.is_unsure |= !self.is_exact();
        for part in call.parts.iter().filter(|_| call.wants_anything()) {
            let others = self.calls.iter().filter(|other| other.arrival != arrival && other.wants_anything());
            if !others.clone().any(|other| self.precedes(other, &call, &part.key)) {
                self.grant(&call, part, part.wanted.micro());
            }
        }
        self.leave(arrival)
    }

    /// Removes a call.
    pub fn leave(&mut self, arrival: Arrival) -> Call {
        let place = self.calls.iter().position(|call| call.arrival == arrival).expect("nobody leaves twice");
        let call = self.calls.remove(place);
        let calls = &self.calls;
        let is_waited =
            |db, key: &Name| calls.iter().any(|call| call.names(db, key) && call.wants_anything());
        self.virtual_times.retain(|(db, key), _| is_waited(*db, key));
        self.is_unsure &= !self.virtual_times.is_empty();
        call
    }

    fn has_shares(&self) -> bool {
        self.calls.iter().any(|call| call.share.is_some())
    }

    /// Returns whether the model knows the order: with shares, calls of several keys wait at one of them, and it does not know
    /// where.
    pub fn is_exact(&self) -> bool {
        !self.has_shares() || (!self.is_unsure && self.calls.iter().all(|call| call.parts.len() == 1))
    }

    fn precedes(&self, call: &Call, other: &Call, key: &Name) -> bool {
        let place = |call: &Call| (self.virtual_time(call.db, key, &call.tenant()), call.arrival);
        let is_other = call.arrival != other.arrival && call.names(other.db, key);
        is_other && (!self.is_exact() || place(call) < place(other))
    }

    /// Returns a call that is next.
    pub fn next_served(&self, buckets: &impl Buckets) -> Option<Arrival> {
        self.all_next(buckets).first().copied()
    }

    /// Returns the calls that are next: they lack nothing, take nothing that one before them lacks, and none before them at a
    /// key is like that. With shares there may be one at each key, without it is the earliest. A call that no wait can help is
    /// not among them: it is denied sooner or later.
    pub fn all_next(&self, buckets: &impl Buckets) -> Vec<Arrival> {
        match self.has_shares() {
            true => self.all_next_by_shares(buckets),
            false => self.next_by_arrival(buckets).into_iter().collect(),
        }
    }

    fn next_by_arrival(&self, buckets: &impl Buckets) -> Option<Arrival> {
        let mut lacked = HashSet::new();
        for Call { arrival, db, parts, .. } in &self.calls {
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

    fn all_next_by_shares(&self, buckets: &impl Buckets) -> Vec<Arrival> {
        let lacks = |call: &Call, key: &Name| {
            call.parts.iter().any(|part| part.key == *key && buckets.lacks(call.db, part))
        };
        let is_kept = |call: &Call, part: &Part| {
            let is_before = |other: &&Call| self.precedes(other, call, &part.key);
            let needs = buckets.needs_micro(call.db, part) > 0;
            needs && self.calls.iter().filter(is_before).any(|other| lacks(other, &part.key))
        };
        let is_free = |call: &&Call| {
            !call.parts.iter().any(|part| {
                buckets.is_lost(call.db, part) || buckets.lacks(call.db, part) || is_kept(call, part)
            })
        };
        let free: Vec<_> = self.calls.iter().filter(is_free).collect();
        // Of those that need nothing, the order does not matter.
        let needs = |call: &Call| call.parts.iter().any(|part| buckets.needs_micro(call.db, part) > 0);
        let is_behind = |call: &Call, other: &Call| {
            let is_before = |part: &Part| self.precedes(other, call, &part.key);
            self.is_exact() && needs(call) && needs(other) && call.parts.iter().any(is_before)
        };
        let first = free.iter().filter(|call| !free.iter().any(|other| is_behind(call, other)));
        first.map(|call| call.arrival).collect()
    }

    pub fn parts<'a>(&'a self, db: Db, key: &'a [u8]) -> impl Iterator<Item = &'a Part> {
        let calls = self.calls.iter().filter(move |call| call.db == db);
        calls.flat_map(|call| &call.parts).filter(move |part| *part.key == *key)
    }

    /// What all of them want of a bucket.
    pub fn wanted_micro(&self, db: Db, key: &[u8]) -> i64 {
        self.parts(db, key).map(|part| part.wanted.micro()).sum()
    }

    /// What all of them want of a bucket, if one of them lacks it.
    pub fn wanted_before(&self, db: Db, key: &[u8], buckets: &impl Buckets) -> Option<i64> {
        let is_lacked = self.parts(db, key).any(|part| buckets.lacks(db, part));
        is_lacked.then(|| self.wanted_micro(db, key))
    }
}
