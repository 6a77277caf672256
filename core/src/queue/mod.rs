//! Calls that wait for what their buckets lack, and whose turn it is.
//!
//! # The order
//!
//! A call lacks a bucket while the bucket has less than the call wants of it. What an earlier call lacks, no later one
//! may take. A call that waits for one bucket does not keep others from its other buckets.
//!
//! # How the next one is found
//!
//! Each call is *parked* at one bucket that keeps it: one that it lacks, or that an earlier call lacks which wants it too.
//! Whatever keeps the first of those parked at a bucket keeps all of them. So a bucket is looked at only when it has
//! changed ([`Queue::mark`]) or when enough has flowed in for the first one parked there ([`Queue::next_look_us`]), and
//! then only the first one is examined: it stays, is parked at another bucket that keeps it, or it is its turn.
//!
//! No clock, no server, no thread: levels and time are asked of [`Levels`]. Whoever owns the queue marks the buckets that
//! change, and asks [`Queue::next_served`] until nobody is left whose turn it is.

mod waited;
mod wants;

use crate::bucket::Limit;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use waited::Waited;

/// The number of a call that waits: a later call has a larger one.
pub type Arrival = u64;

/// A bucket that calls wait for.
type BucketId = u64;

/// The number of a database.
pub type Db = i32;

/// What the queue asks of the buckets, all of it at one moment.
pub trait Levels {
    /// Until when the bucket has less than `wanted_micro` under `limit`, in Unix microseconds, if nobody takes;
    /// [`i64::MAX`] if that cannot be foreseen. `None` if it has as much.
    fn lacks_until_us(&mut self, db: Db, key: &[u8], limit: &Limit, wanted_micro: i64) -> Option<i64>;

    /// Micro-tokens that are held of the bucket under `id`.
    fn held_micro(&mut self, db: Db, key: &[u8], id: &[u8]) -> i64;
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
#[derive(Debug)]
struct Want {
    bucket: BucketId,
    part: Part,
}

#[derive(Debug)]
struct Waiter {
    wants: Vec<Want>,
    parked_at: BucketId,
    deadline_us: i64,
}

/// The calls that wait in a server.
#[derive(Debug, Default)]
pub struct Queue {
    names: BTreeMap<Db, HashMap<Box<[u8]>, BucketId>>,
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
        let want = |part: Part| Want { bucket: self.name(db, &part.key), part };
        let wants: Vec<Want> = parts.into_iter().map(want).collect();
        for want in &wants {
            if let Some(bucket) = self.buckets.get_mut(&want.bucket) {
                bucket.add(arrival, &want.part, levels);
            }
        }
        let first = wants.first().map_or(0, |want| want.bucket);
        self.waiters.insert(arrival, Waiter { wants, parked_at: first, deadline_us });
        self.deadlines.insert((deadline_us, arrival));
        match self.kept_at(arrival, levels) {
            Some((bucket, until_us)) => self.park(arrival, bucket, until_us),
            None => {
                self.park(arrival, first, i64::MAX);
                self.mark_bucket(first);
            }
        }
        arrival
    }

    /// Takes a call out: it was served, its time is over, or its client has gone. Those that it kept may be served now.
    pub fn leave(&mut self, arrival: Arrival) {
        let Some(waiter) = self.waiters.remove(&arrival) else { return };
        self.deadlines.remove(&(waiter.deadline_us, arrival));
        self.unpark(arrival, waiter.parked_at);
        for want in &waiter.wants {
            let Some(bucket) = self.buckets.get_mut(&want.bucket) else { continue };
            bucket.remove(arrival, &want.part);
            if bucket.is_empty() {
                self.forget(want.bucket);
            } else {
                self.mark_bucket(want.bucket);
            }
        }
    }

    /// Notes that a bucket may have more than before, or is another one.
    pub fn mark(&mut self, db: Db, key: &[u8]) {
        if let Some(bucket) = self.find(db, key) {
            self.mark_bucket(bucket);
        }
    }

    /// The same where it is not known in which database the key is.
    pub fn mark_in_all(&mut self, key: &[u8]) {
        let dbs: Vec<Db> = self.names.keys().copied().collect();
        dbs.into_iter().for_each(|db| self.mark(db, key));
    }

    /// The same of a bucket of which a hold is set or ended under `id`.
    pub fn mark_hold(&mut self, db: Db, key: &[u8], id: &[u8]) {
        let Some(bucket) = self.find(db, key) else { return };
        if let Some(waited) = self.buckets.get_mut(&bucket) {
            waited.mark_hold(id);
        }
        self.mark_bucket(bucket);
    }

    /// The same of all buckets of one database, or of all databases.
    pub fn mark_all(&mut self, db: Option<Db>) {
        let is_meant = |waited: &Waited| db.is_none_or(|db| waited.db == db);
        let meant = self.buckets.iter().filter(|(_, waited)| is_meant(waited));
        let meant: Vec<BucketId> = meant.map(|(bucket, _)| *bucket).collect();
        meant.into_iter().for_each(|bucket| self.mark_bucket(bucket));
    }

    /// The same of the buckets into which enough has flowed by `now_us` Unix microseconds.
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
            self.refresh(candidate, levels);
            if let Some(until_us) = self.kept_until_us(candidate, bucket, levels) {
                self.unmark(bucket);
                self.look_at(bucket, Some(until_us));
                continue;
            }
            match self.kept_at(candidate, levels) {
                None => return Some(candidate),
                Some((other, until_us)) => {
                    self.unpark(candidate, bucket);
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
        let bucket = self.find(db, key)?;
        self.buckets.get_mut(&bucket)?.wanted_before(levels)
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

    fn find(&self, db: Db, key: &[u8]) -> Option<BucketId> {
        self.names.get(&db)?.get(key).copied()
    }

    fn name(&mut self, db: Db, key: &[u8]) -> BucketId {
        if let Some(bucket) = self.find(db, key) {
            return bucket;
        }
        self.bucket_ids = self.bucket_ids.wrapping_add(1);
        let bucket = self.bucket_ids;
        self.names.entry(db).or_default().insert(key.into(), bucket);
        self.buckets.insert(bucket, Waited::new(db, key.into()));
        bucket
    }

    fn forget(&mut self, bucket: BucketId) {
        self.unmark(bucket);
        self.look_at(bucket, None);
        let Some(waited) = self.buckets.remove(&bucket) else { return };
        if let Some(names) = self.names.get_mut(&waited.db) {
            names.remove(&waited.key);
            if names.is_empty() {
                self.names.remove(&waited.db);
            }
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
        self.buckets.get_mut(&bucket)?.kept_until_us(arrival, levels)
    }

    /// Finds out anew what a call wants of the buckets of which it holds something.
    fn refresh(&mut self, arrival: Arrival, levels: &mut impl Levels) {
        let Some(waiter) = self.waiters.get(&arrival) else { return };
        for want in &waiter.wants {
            if let Some(bucket) = self.buckets.get_mut(&want.bucket) {
                bucket.refresh(arrival, &want.part, levels);
            }
        }
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

    fn unpark(&mut self, arrival: Arrival, bucket: BucketId) {
        let Some(waited) = self.buckets.get_mut(&bucket) else { return };
        let was_first = waited.parked.first() == Some(&arrival);
        waited.parked.remove(&arrival);
        if was_first {
            self.look_at(bucket, None);
            if self.unmark(bucket) {
                self.mark_bucket(bucket);
            }
        }
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
