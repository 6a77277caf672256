//! Calls that wait for what their buckets lack, and whose turn it is.
//!
//! # The order
//!
//! A call lacks a bucket while the bucket has less than the call wants of it. What an earlier call lacks, no later one
//! may take. A call that waits for one bucket does not keep others from its other buckets, and a part of a call that wants
//! nothing (of cost 0, or a hold that is large enough) is kept by no other call.
//!
//! # How the next one is found
//!
//! Each call is *parked* at one bucket that keeps it: one that it lacks, or that an earlier call lacks which wants it too.
//! Whatever keeps the first of those parked at a bucket keeps all of them. So a bucket is looked at only when it has
//! changed ([`Queue::mark`]) or when enough has flowed in for the first one parked there ([`Queue::next_look_us`]), and
//! then only the first one is examined: it stays, is parked at another bucket that keeps it, or it is its turn.
//!
//! That holds only if all calls that are parked together want something. So parts of cost 0, which lack a bucket while it
//! is in debt, are parked apart. A call whose hold has become large enough is parked alone, and examined.
//!
//! The queue has no clock, no server and no thread: it asks [`Levels`] for levels and the time. Its owner marks the buckets
//! that change, and calls [`Queue::next_served`] until nobody is left whose turn it is.

mod waited;
mod wants;

use crate::bucket::Limit;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use waited::Waited;

pub use waited::Held;

/// The number of a call that waits: a later call has a larger one.
pub type Arrival = u64;

/// A bucket at which calls are parked.
type BucketId = u64;

/// The same key for calls that want something of it, and for those of cost 0 under each limit.
#[derive(Clone, Debug, Default)]
struct Ids {
    wanted: Option<BucketId>,
    free: Vec<(Limit, BucketId)>,
}

/// The number of a database.
pub type Db = i32;

/// What the queue asks of the buckets, all of it at one moment.
pub trait Levels {
    /// Until when the bucket has less than `wanted_micro` under `limit`, in Unix microseconds, if nobody takes;
    /// [`i64::MAX`] if that cannot be foreseen. `None` if it has as much.
    fn lacks_until_us(&mut self, db: Db, key: &[u8], limit: &Limit, wanted_micro: i64) -> Option<i64>;

    /// What is held of the bucket under `id` at that moment.
    fn held(&mut self, db: Db, key: &[u8], id: &[u8]) -> Held;

    /// The moment, in Unix microseconds.
    fn now_us(&self) -> i64;
}

/// What a call wants of one bucket.
#[derive(Clone, Debug)]
pub struct Part {
    /// The key of the bucket.
    pub key: Box<[u8]>,
    /// The limit that came with the call.
    pub limit: Limit,
    /// Micro-tokens. Of a hold it is all that is to be held.
    pub wanted_micro: i64,
    /// The id of the hold, if it is one: then what is held under it already is not lacking.
    pub id: Option<Box<[u8]>>,
}

/// A part of a call that waits.
#[derive(Clone, Debug)]
struct Want {
    bucket: BucketId,
    part: Part,
}

#[derive(Clone, Debug)]
struct Waiter {
    wants: Vec<Want>,
    parked_at: BucketId,
    deadline_us: i64,
}

/// The calls that wait in a server.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    names: BTreeMap<Db, HashMap<Box<[u8]>, Ids>>,
    buckets: BTreeMap<BucketId, Waited>,
    waiters: BTreeMap<Arrival, Waiter>,
    deadlines: BTreeSet<(i64, Arrival)>,
    /// When to look at a bucket although nobody changes it, in Unix microseconds.
    looks: BTreeSet<(i64, BucketId)>,
    /// The buckets to look at, by the first call that is parked there.
    marked: BTreeSet<(Arrival, BucketId)>,
    arrivals: Arrival,
    bucket_ids: BucketId,
}

impl Queue {
    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Lets a call wait until `deadline_us` Unix microseconds, behind all others.
    pub fn enter(&mut self, db: Db, parts: Vec<Part>, deadline_us: i64, levels: &mut impl Levels) -> Arrival {
        self.arrivals = self.arrivals.wrapping_add(1);
        let arrival = self.arrivals;
        let want = |part: Part| Want { bucket: self.name(db, &part), part };
        let wants: Vec<Want> = parts.into_iter().map(want).collect();
        for want in &wants {
            if let Some(bucket) = self.buckets.get_mut(&want.bucket) {
                bucket.add(arrival, &want.part);
            }
        }
        self.waiters.insert(arrival, Waiter { wants, parked_at: 0, deadline_us });
        self.deadlines.insert((deadline_us, arrival));
        match self.kept_at(arrival, levels) {
            Some((bucket, until_us)) => self.park(arrival, bucket, until_us),
            None => self.park_alone(db, arrival),
        }
        arrival
    }

    /// Takes a call out: it was served, its time is over, or its client has gone. Those that it kept may be served now.
    pub fn leave(&mut self, arrival: Arrival) {
        self.unpark(arrival);
        let Some(waiter) = self.waiters.remove(&arrival) else { return };
        self.deadlines.remove(&(waiter.deadline_us, arrival));
        for want in &waiter.wants {
            let Some(bucket) = self.buckets.get_mut(&want.bucket) else { continue };
            bucket.remove(arrival, &want.part);
            let db = bucket.db;
            self.mark(db, &want.part.key);
            self.forget_if_empty(want.bucket);
        }
    }

    /// Notes that a bucket may have more than before.
    pub fn mark(&mut self, db: Db, key: &[u8]) {
        self.find(db, key).into_iter().for_each(|bucket| self.mark_bucket(bucket));
    }

    /// Notes that a key has gone or has another bucket, in one database or in one that is not known.
    pub fn mark_gone(&mut self, db: Option<Db>, key: &[u8]) {
        let dbs: Vec<Db> = db.map_or_else(|| self.names.keys().copied().collect(), |db| vec![db]);
        let buckets: Vec<BucketId> = dbs.into_iter().flat_map(|db| self.find(db, key)).collect();
        buckets.into_iter().for_each(|bucket| self.mark_with_holds(bucket));
    }

    /// Notes that a hold of a bucket is set or ended under `id`.
    pub fn mark_hold(&mut self, db: Db, key: &[u8], id: &[u8]) {
        for bucket in self.find(db, key) {
            if let Some(waited) = self.buckets.get_mut(&bucket) {
                waited.mark_hold(id);
            }
            self.mark_bucket(bucket);
        }
    }

    /// Notes that all keys of one database, or of all databases, may have gone.
    pub fn mark_all(&mut self, db: Option<Db>) {
        let is_meant = |waited: &Waited| db.is_none_or(|db| waited.db == db);
        let meant = self.buckets.iter().filter(|(_, waited)| is_meant(waited));
        let meant: Vec<BucketId> = meant.map(|(bucket, _)| *bucket).collect();
        meant.into_iter().for_each(|bucket| self.mark_with_holds(bucket));
    }

    /// Notes the buckets into which enough has flowed by `now_us` Unix microseconds.
    pub fn mark_due(&mut self, now_us: i64) {
        while let Some(&(look_us, bucket)) = self.looks.first() {
            if look_us > now_us {
                break;
            }
            self.look_at(bucket, None);
            self.mark_bucket(bucket);
        }
    }

    /// Whether there is anything to look at.
    #[must_use]
    pub fn is_marked(&self, now_us: i64) -> bool {
        !self.marked.is_empty() || self.looks.first().is_some_and(|(look_us, _)| *look_us <= now_us)
    }

    /// The next call whose turn it is: it lacks nothing, and no earlier one lacks what it wants. It stays here until it
    /// [leaves](Self::leave), or is [postponed](Self::postpone).
    pub fn next_served(&mut self, levels: &mut impl Levels) -> Option<Arrival> {
        while let Some(&(candidate, bucket)) = self.marked.first() {
            if let Some(until_us) = self.kept_until_us(candidate, bucket, levels) {
                self.unmark(bucket);
                self.look_at(bucket, Some(until_us));
                continue;
            }
            // Nobody tells of a bucket that was renamed to a key that was not there.
            self.mark_claims(candidate);
            match self.kept_at(candidate, levels) {
                // Meanwhile an earlier one may have been found whose hold is large enough.
                None if self.marked.first().is_some_and(|(first, _)| *first == candidate) => {
                    return Some(candidate)
                }
                None => {}
                Some((other, until_us)) => {
                    self.unpark(candidate);
                    self.park(candidate, other, until_us);
                }
            }
        }
        None
    }

    /// Looks at a call whose turn it was, and which got nothing, again at `look_us`.
    pub fn postpone(&mut self, arrival: Arrival, look_us: i64) {
        if let Some(bucket) = self.waiters.get(&arrival).map(|waiter| waiter.parked_at) {
            self.unmark(bucket);
            self.look_at(bucket, Some(look_us));
        }
    }

    /// Of a call that comes now and does not wait: what those who wait want of the bucket together, in micro-tokens, if
    /// one of them lacks it. `None` if the call may take.
    pub fn wanted_before(&mut self, db: Db, key: &[u8], levels: &mut impl Levels) -> Option<i64> {
        let same_key = self.find(db, key);
        same_key.iter().for_each(|bucket| self.refresh(*bucket, levels));
        let waited = same_key.iter().filter_map(|bucket| self.buckets.get(bucket));
        let is_lacked = waited.clone().any(|waited| waited.is_lacked(levels));
        is_lacked.then(|| waited.map(Waited::wanted_micro).fold(0, i64::saturating_add))
    }

    /// A call whose time is over at `now_us` Unix microseconds.
    #[must_use]
    pub fn overdue(&self, now_us: i64) -> Option<Arrival> {
        self.deadlines.first().filter(|(deadline_us, _)| *deadline_us <= now_us).map(|(_, arrival)| *arrival)
    }

    /// When to ask again, in Unix microseconds, if nothing changes: who is served, or whose time is over.
    #[must_use]
    pub fn next_look_us(&self) -> Option<i64> {
        if !self.marked.is_empty() {
            return Some(i64::MIN);
        }
        let look_us = self.looks.first().map(|(look_us, _)| *look_us);
        let deadline_us = self.deadlines.first().map(|(deadline_us, _)| *deadline_us);
        look_us.into_iter().chain(deadline_us).min()
    }

    /// Those that wait, in order of arrival.
    pub fn arrivals(&self) -> impl Iterator<Item = Arrival> + '_ {
        self.waiters.keys().copied()
    }

    /// Moves all deadlines by as many microseconds as a clock was set back.
    pub fn set_back(&mut self, by_us: i64) {
        self.deadlines = BTreeSet::new();
        for (arrival, waiter) in &mut self.waiters {
            waiter.deadline_us = waiter.deadline_us.saturating_sub(by_us);
            self.deadlines.insert((waiter.deadline_us, *arrival));
        }
    }

    fn find(&self, db: Db, key: &[u8]) -> SmallVec<[BucketId; 2]> {
        let Some(ids) = self.names.get(&db).and_then(|names| names.get(key)) else { return SmallVec::new() };
        ids.wanted.into_iter().chain(ids.free.iter().map(|(_, bucket)| *bucket)).collect()
    }

    fn name(&mut self, db: Db, part: &Part) -> BucketId {
        let ids = self.names.entry(db).or_default().entry(part.key.clone()).or_default();
        let is_free = part.wanted_micro == 0 && part.id.is_none();
        let known = match is_free {
            false => ids.wanted,
            true => ids.free.iter().find(|(limit, _)| *limit == part.limit).map(|(_, bucket)| *bucket),
        };
        if let Some(bucket) = known {
            return bucket;
        }
        self.bucket_ids = self.bucket_ids.wrapping_add(1);
        let bucket = self.bucket_ids;
        match is_free {
            false => ids.wanted = Some(bucket),
            true => ids.free.push((part.limit, bucket)),
        }
        self.buckets.insert(bucket, Waited::new(db, part.key.clone(), is_free));
        bucket
    }

    fn forget_if_empty(&mut self, bucket: BucketId) {
        if !self.buckets.get(&bucket).is_some_and(Waited::is_empty) {
            return;
        }
        self.unmark(bucket);
        self.look_at(bucket, None);
        let Some(waited) = self.buckets.remove(&bucket) else { return };
        let Some(names) = self.names.get_mut(&waited.db) else { return };
        if let Some(ids) = names.get_mut(&waited.key) {
            ids.wanted = ids.wanted.filter(|wanted| *wanted != bucket);
            ids.free.retain(|(_, free)| *free != bucket);
            if ids.wanted.is_none() && ids.free.is_empty() {
                names.remove(&waited.key);
            }
        }
        if names.is_empty() {
            self.names.remove(&waited.db);
        }
    }

    /// A bucket that keeps a call, and until when; `None` if it is the call's turn.
    fn kept_at(&mut self, arrival: Arrival, levels: &mut impl Levels) -> Option<(BucketId, i64)> {
        let buckets: Vec<BucketId> =
            self.waiters.get(&arrival)?.wants.iter().map(|want| want.bucket).collect();
        let kept = |bucket| self.kept_until_us(arrival, bucket, levels).map(|until_us| (bucket, until_us));
        buckets.into_iter().find_map(kept)
    }

    fn kept_until_us(&mut self, arrival: Arrival, bucket: BucketId, levels: &mut impl Levels) -> Option<i64> {
        self.refresh(bucket, levels);
        let waited = self.buckets.get(&bucket).filter(|waited| waited.is_wanted_by(arrival))?;
        let same_key = self.find(waited.db, &waited.key);
        // A call of cost 0 is kept by its like alone.
        let keeping = same_key.iter().filter(|id| **id == bucket || !waited.is_free);
        let keeping = keeping.filter_map(|bucket| self.buckets.get(bucket));
        keeping.filter_map(|waited| waited.lacked_until_us(arrival, levels)).max()
    }

    /// Finds out what calls lack whose holds have changed. Those that a bucket no longer keeps are parked alone.
    fn refresh(&mut self, bucket: BucketId, levels: &mut impl Levels) {
        let Some(waited) = self.buckets.get_mut(&bucket) else { return };
        let (db, freed) = (waited.db, waited.refresh(levels));
        for arrival in freed {
            self.unpark(arrival);
            self.park_alone(db, arrival);
        }
    }

    fn mark_claims(&mut self, arrival: Arrival) {
        let wants = self.waiters.get(&arrival).into_iter().flat_map(|waiter| &waiter.wants);
        for Want { bucket, part } in wants {
            if let (Some(waited), Some(id)) = (self.buckets.get_mut(bucket), &part.id) {
                waited.mark_hold(id);
            }
        }
    }

    /// Parks a call where it is the only one, to be examined.
    fn park_alone(&mut self, db: Db, arrival: Arrival) {
        self.bucket_ids = self.bucket_ids.wrapping_add(1);
        self.buckets.insert(self.bucket_ids, Waited::new(db, Box::default(), true));
        self.park(arrival, self.bucket_ids, i64::MAX);
        self.mark_bucket(self.bucket_ids);
    }

    fn park(&mut self, arrival: Arrival, bucket: BucketId, until_us: i64) {
        if let Some(waiter) = self.waiters.get_mut(&arrival) {
            waiter.parked_at = bucket;
        }
        let Some(waited) = self.buckets.get_mut(&bucket) else { return };
        waited.parked.insert(arrival);
        if waited.parked.first() == Some(&arrival) {
            self.look_at(bucket, Some(until_us));
            if self.unmark(bucket) {
                self.mark_bucket(bucket);
            }
        }
    }

    fn unpark(&mut self, arrival: Arrival) {
        let Some(bucket) = self.waiters.get(&arrival).map(|waiter| waiter.parked_at) else { return };
        let Some(waited) = self.buckets.get_mut(&bucket) else { return };
        let was_first = waited.parked.first() == Some(&arrival);
        waited.parked.remove(&arrival);
        if was_first {
            self.look_at(bucket, None);
            self.unmark(bucket);
            self.mark_bucket(bucket);
        }
        self.forget_if_empty(bucket);
    }

    fn mark_with_holds(&mut self, bucket: BucketId) {
        if let Some(waited) = self.buckets.get_mut(&bucket) {
            waited.mark_holds();
        }
        self.mark_bucket(bucket);
    }

    fn mark_bucket(&mut self, bucket: BucketId) {
        let Some(waited) = self.buckets.get_mut(&bucket) else { return };
        if let (None, Some(first)) = (waited.marked, waited.parked.first()) {
            waited.marked = Some(*first);
            self.marked.insert((*first, bucket));
        }
    }

    /// Whether it was marked.
    fn unmark(&mut self, bucket: BucketId) -> bool {
        let marked = self.buckets.get_mut(&bucket).and_then(|waited| waited.marked.take());
        marked.is_some_and(|first| self.marked.remove(&(first, bucket)))
    }

    fn look_at(&mut self, bucket: BucketId, look_us: Option<i64>) {
        let Some(waited) = self.buckets.get_mut(&bucket) else { return };
        if let Some(before_us) = waited.look_us.take() {
            self.looks.remove(&(before_us, bucket));
        }
        if let Some(look_us) = look_us.filter(|look_us| *look_us != i64::MAX) {
            waited.look_us = Some(look_us);
            self.looks.insert((look_us, bucket));
        }
    }
}
