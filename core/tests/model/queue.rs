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

    /// Returns whether the bucket has less than that.
    fn is_denied(&self, db: Db, part: &Part) -> bool;

    /// Returns whether the bucket has less than that, and no wait brings it.
    fn is_lost(&self, db: Db, part: &Part) -> bool;

    /// Returns whether that is more than the capacity of an override.
    fn is_overridden(&self, db: Db, part: &Part) -> bool;
}

#[derive(Clone, Debug)]
pub struct Call {
    pub arrival: Arrival,
    pub db: Db,
    pub parts: Vec<Part>,
    pub deadline_us: i64,
    pub share: Option<Share>,
    /// An override denies it: it keeps no other call out, at any of its keys.
    pub is_apart: bool,
}

impl Call {
    fn tenant(&self) -> Option<Name> {
        self.share.as_ref().map(|share| share.tenant.clone())
    }

    fn wants_anything(&self) -> bool {
        self.parts.iter().any(|part| part.wanted.micro() > 0 || part.id().is_some())
    }

    /// Returns whether it wants something of a key, and keeps others out there.
    fn waits_for(&self, db: Db, key: &Name) -> bool {
        let wants = |part: &Part| part.wanted.micro() > 0 || part.id().is_some();
        let mut parts = self.parts.iter().filter(|part| part.key == *key);
        self.db == db && !self.is_apart && parts.any(wants)
    }

    fn wanted_micro(&self, key: &Name) -> i64 {
        self.parts.iter().filter(|part| part.key == *key).map(|part| part.wanted.micro()).sum()
    }

    /// Returns whether no wait can help it. Then it keeps no other call out.
    pub fn is_lost(&self, buckets: &impl Buckets) -> bool {
        self.parts.iter().any(|part| buckets.is_lost(self.db, part))
    }

    fn lacks(&self, key: &Name, buckets: &impl Buckets) -> bool {
        let lacks = |part: &Part| part.key == *key && buckets.is_denied(self.db, part);
        !self.is_apart && !self.is_lost(buckets) && self.parts.iter().any(lacks)
    }
}

/// The calls that wait, the earliest first.
#[derive(Clone, Debug, Default)]
pub struct Waiting {
    pub calls: Vec<Call>,
    /// The virtual times of the tenants of a key, while any call waits there.
    virtual_times: HashMap<(Db, Name), HashMap<Option<Name>, u128>>,
    /// Set once an override has begun or ended to deny calls, until the queue has examined them.
    is_stale: bool,
    /// Set while virtual times may differ: the queue examined such calls later.
    is_unsure: bool,
}

impl Waiting {
    /// Adds a call. A tenant that begins to wait starts at the least virtual time of those that do, if that is above its own.
    /// A call that wants nothing has no share.
    pub fn enter(&mut self, mut call: Call, buckets: &impl Buckets) {
        let wants_anything = call.wants_anything();
        call.share = call.share.filter(|_| wants_anything);
        call.is_apart = call.parts.iter().any(|part| buckets.is_overridden(call.db, part));
        self.is_unsure |= self.is_stale && call.share.is_some();
        self.begin(&call);
        self.calls.push(call);
    }

    fn begin(&mut self, call: &Call) {
        for part in call.parts.iter().filter(|part| call.waits_for(call.db, &part.key)) {
            let start = self.virtual_time(call.db, &part.key, &call.tenant());
            let times = self.virtual_times.entry((call.db, part.key.clone())).or_default();
            times.insert(call.tenant(), start);
        }
    }

    /// Looks at all overrides.
    pub fn look(&mut self, buckets: &impl Buckets) {
        let has_shares = self.has_shares();
        let is_apart = |call: &Call| call.parts.iter().any(|part| buckets.is_overridden(call.db, part));
        for place in 0..self.calls.len() {
            let mut call = self.calls[place].clone();
            if call.is_apart != is_apart(&call) {
                call.is_apart = !call.is_apart;
                self.is_stale = true;
                self.is_unsure |= has_shares;
                self.begin(&call);
                self.calls[place] = call;
            }
        }
        self.forget();
    }

    fn virtual_time(&self, db: Db, key: &Name, tenant: &Option<Name>) -> u128 {
        let Some(times) = self.virtual_times.get(&(db, key.clone())) else { return 0 };
        let here = self.calls.iter().filter(|call| call.waits_for(db, key));
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
        for part in call.parts.iter().filter(|part| call.waits_for(call.db, &part.key)) {
            if !self.calls.iter().any(|other| self.precedes(other, &call, &part.key)) {
                self.grant(&call, part, part.wanted.micro());
            }
        }
        self.leave(arrival)
    }

    /// Removes a call.
    pub fn leave(&mut self, arrival: Arrival) -> Call {
        let place = self.calls.iter().position(|call| call.arrival == arrival).expect("nobody leaves twice");
        let call = self.calls.remove(place);
        self.forget();
        call
    }

    /// Forgets the virtual times of keys for which no call waits.
    fn forget(&mut self) {
        let calls = &self.calls;
        let is_waited = |db, key: &Name| calls.iter().any(|call| call.waits_for(db, key));
        self.virtual_times.retain(|(db, key), _| is_waited(*db, key));
        self.is_unsure &= !self.virtual_times.is_empty();
    }

    /// Notes that the queue has examined all calls.
    pub fn end_turn(&mut self) {
        self.is_stale = false;
    }

    fn has_shares(&self) -> bool {
        self.calls.iter().any(|call| call.share.is_some())
    }

    /// Returns whether the model knows the order.
    pub fn is_exact(&self) -> bool {
        !self.has_shares() || !self.is_unsure
    }

    fn precedes(&self, call: &Call, other: &Call, key: &Name) -> bool {
        call.waits_for(other.db, key) && self.is_before(call, other, key)
    }

    /// Returns whether a call of the same database is before another at a key, also if it wants nothing.
    fn is_before(&self, call: &Call, other: &Call, key: &Name) -> bool {
        let place = |call: &Call| (self.virtual_time(call.db, key, &call.tenant()), call.arrival);
        let is_other = call.arrival != other.arrival && call.db == other.db;
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
        for call in self.calls.iter().filter(|call| !call.is_apart && !call.is_lost(buckets)) {
            let Call { arrival, db, parts, .. } = call;
            let lacking: Vec<&Part> = parts.iter().filter(|part| buckets.is_denied(*db, part)).collect();
            let is_kept =
                |part: &Part| lacked.contains(&(*db, &part.key)) && buckets.needs_micro(*db, part) > 0;
            if lacking.is_empty() && !parts.iter().any(is_kept) {
                return Some(*arrival);
            }
            lacked.extend(lacking.into_iter().map(|part| (*db, &part.key)));
        }
        None
    }

    fn all_next_by_shares(&self, buckets: &impl Buckets) -> Vec<Arrival> {
        let is_kept = |call: &Call, part: &Part| {
            let is_before = |other: &&Call| self.is_before(other, call, &part.key);
            let needs = buckets.needs_micro(call.db, part) > 0;
            needs && self.calls.iter().filter(is_before).any(|other| other.lacks(&part.key, buckets))
        };
        let is_free = |call: &&Call| {
            let is_blocked = |part| buckets.is_denied(call.db, part) || is_kept(call, part);
            !call.is_apart && !call.parts.iter().any(is_blocked)
        };
        let free: Vec<_> = self.calls.iter().filter(is_free).collect();
        // Of those that need nothing of a key, the order does not matter there.
        let needs = |call: &Call, key: &Name| {
            let mut parts = call.parts.iter().filter(|part| part.key == *key);
            parts.any(|part| buckets.needs_micro(call.db, part) > 0)
        };
        let is_behind = |call: &Call, other: &Call| {
            let need = |key: &Name| needs(call, key) && needs(other, key);
            let is_before = |part: &Part| need(&part.key) && self.precedes(other, call, &part.key);
            self.is_exact() && call.parts.iter().any(is_before)
        };
        // A call that waits for the turn of another one there does not keep later ones from its other keys.
        let waits_its_turn = |call: &Call| {
            let is_before =
                |other: &&&Call| call.parts.iter().any(|part| self.precedes(other, call, &part.key));
            free.iter().any(|other| is_before(&other))
        };
        let is_kept = |call: &Call| free.iter().any(|other| is_behind(call, other) && !waits_its_turn(other));
        let first = free.iter().filter(|call| !is_kept(call));
        first.map(|call| call.arrival).collect()
    }

    /// Returns what the calls want of a bucket that keep others out.
    pub fn wanted_micro(&self, db: Db, key: &Name) -> i64 {
        let calls = self.calls.iter().filter(|call| call.db == db && !call.is_apart);
        calls.map(|call| call.wanted_micro(key)).sum()
    }

    /// Returns what the calls want of a bucket that lack it; `None` if there is no such call.
    pub fn lacking_micro(&self, db: Db, key: &Name, buckets: &impl Buckets) -> Option<i64> {
        let lacking = self.calls.iter().filter(|call| call.db == db && call.lacks(key, buckets));
        lacking.map(|call| call.wanted_micro(key)).reduce(|one, other| one + other)
    }
}
