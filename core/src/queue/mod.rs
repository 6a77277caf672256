//! Calls that wait for what their buckets lack, and whose turn it is.
//!
//! # The order
//!
//! A call lacks a bucket while the bucket has less than the call wants of it. What an earlier call lacks, no later one
//! may take. A call that waits for one bucket does not keep others from its other buckets, and a part of a call that wants
//! nothing (of cost 0, or a hold that is large enough) is kept by no other call. A call that no wait can help any more
//! keeps no other: it is its turn, to be denied.
//!
//! # How the next one is found
//!
//! Only which call waits where is stored. What a call lacks is computed when the call is examined, from what its buckets hold
//! then. Each call is *parked* at one key that keeps it: it lacks that bucket, or an earlier call does. Whatever keeps the
//! first call parked at a key keeps the rest. So when a bucket changes ([`Queue::mark`]), or enough has flowed in, only the
//! first one is examined: it stays; or it is parked at another key, or served, and the next one is the first.
//!
//! # A turn may end early
//!
//! A release may serve thousands, and the server has other clients. So a turn stops when it has no time left
//! ([`Levels::has_time`]), and the next one goes on. The outcome is that of one long turn: calls are examined in order of
//! arrival, those that become free before any later one, and nothing is decided against a call that is *due*, which means
//! still to be examined. No newcomer takes what it wants ([`Queue::wanted_before`]), and its time is not over
//! ([`Queue::overdue`]).
//!
//! The queue has no clock, no server and no thread: it asks [`Levels`].

mod line;

use crate::bucket::Limit;
use crate::invariant::expected;
use crate::request::Request;
use line::{Lack, Line};
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::iter::once;

pub use line::Seen;

/// The number of a call that waits: a later call has a larger one.
pub type Arrival = u64;

/// The number of a database.
pub type Db = i32;

/// A key that waiting calls name.
type LineId = u64;

/// The bytes of a key or of the id of a hold, where their owner keeps them. A clone is the same bytes in the same place.
pub trait Name: Borrow<[u8]> + Clone + Eq + Hash {}
impl<N: Borrow<[u8]> + Clone + Eq + Hash> Name for N {}

/// What the queue asks of the server, all of it at one moment.
pub trait Levels<N> {
    /// Looks at what a key holds; `None` if that is not a bucket.
    fn look<T>(&mut self, db: Db, key: &N, look: impl FnOnce(Option<&Seen<'_>>) -> T) -> T;

    /// Returns whether the turn has time for another examination.
    fn has_time(&mut self) -> bool;
}

/// What a call wants of one bucket.
#[derive(Clone, Debug)]
pub struct Part<N> {
    /// The key of the bucket.
    pub key: N,
    /// The limit that came with the call.
    pub limit: Limit,
    /// Micro-tokens. For a hold, its whole amount.
    pub wanted_micro: i64,
    /// The id of the hold, if it is one: what is held under it already is not lacking.
    pub id: Option<N>,
}

impl<N: Name> Part<N> {
    /// Returns what a request wants.
    pub fn of(request: &Request<N>) -> Self {
        let Request { key, limit, wanted } = request;
        Self { key: key.clone(), limit: *limit, wanted_micro: wanted.micro(), id: request.id().cloned() }
    }
}

#[derive(Clone, Debug)]
struct Waiter {
    /// The keys that it names.
    lines: Box<[LineId]>,
    parked_at: LineId,
    deadline_us: i64,
    /// When to examine it although nothing changes, in Unix microseconds.
    look_us: Option<i64>,
}

/// Why a call that is asked about must be there.
const WAITS: &str = "the call waits";
/// Why a key that is asked about must be there.
const NAMED: &str = "a call names the key";

/// The calls that wait in a server.
#[derive(Clone, Debug)]
pub struct Queue<N> {
    names: BTreeMap<Db, HashMap<N, LineId>>,
    /// In boxes: half of a tree's places are empty.
    lines: BTreeMap<LineId, Box<Line<N>>>,
    waiters: BTreeMap<Arrival, Waiter>,
    /// Which calls want a hold, and of which buckets, by its id.
    claims: HashMap<N, BTreeSet<(LineId, Arrival)>>,
    deadlines: BTreeSet<(i64, Arrival)>,
    looks: BTreeSet<(i64, Arrival)>,
    /// Keys whose buckets may have more than before, with the ids of holds that may be larger.
    changed: BTreeMap<LineId, HashSet<N>>,
    /// Those of them that may hold another bucket.
    replaced: BTreeSet<LineId>,
    /// Calls to examine.
    due: BTreeSet<Arrival>,
    arrivals: Arrival,
    line_ids: LineId,
}

impl<N: Name> Default for Queue<N> {
    fn default() -> Self {
        Self {
            names: BTreeMap::new(),
            lines: BTreeMap::new(),
            waiters: BTreeMap::new(),
            claims: HashMap::new(),
            deadlines: BTreeSet::new(),
            looks: BTreeSet::new(),
            changed: BTreeMap::new(),
            replaced: BTreeSet::new(),
            due: BTreeSet::new(),
            arrivals: 0,
            line_ids: 0,
        }
    }
}

impl<N: Name> Queue<N> {
    /// Returns the number of calls that wait.
    #[must_use]
    pub fn count(&self) -> usize {
        self.waiters.len()
    }

    /// Lets a call wait until `deadline_us` Unix microseconds, behind all others. It is due: the next turn examines it.
    pub fn enter(&mut self, db: Db, parts: Vec<Part<N>>, deadline_us: i64) -> Arrival {
        self.arrivals = self.arrivals.wrapping_add(1);
        let arrival = self.arrivals;
        let lines: Box<[LineId]> = parts.into_iter().map(|part| self.add(db, arrival, part)).collect();
        let parked_at = lines.first().copied().unwrap_or_default();
        self.waiters.insert(arrival, Waiter { lines, parked_at, deadline_us, look_us: None });
        self.deadlines.insert((deadline_us, arrival));
        self.park(arrival, parked_at, None);
        self.due.insert(arrival);
        arrival
    }

    /// Takes a call out: it was served, its time is over, or its client has gone. Those that it kept may be served now.
    pub fn leave(&mut self, arrival: Arrival) {
        if !self.waiters.contains_key(&arrival) {
            return;
        }
        self.unpark(arrival);
        self.look_at(arrival, None);
        self.due.remove(&arrival);
        let Some(waiter) = expected(self.waiters.remove(&arrival), WAITS) else { return };
        self.deadlines.remove(&(waiter.deadline_us, arrival));
        for line in waiter.lines {
            let id = self.lines.get_mut(&line).and_then(|line| line.remove(arrival));
            // It may have been granted, and others may want that hold too.
            let id = id.filter(|id| self.unclaim(id, line, arrival));
            self.mark_line(line, false, id);
            self.forget_if_empty(line);
        }
    }

    /// Notes that a bucket may have more than before.
    pub fn mark(&mut self, db: Db, key: &[u8]) {
        self.find(db, key).into_iter().for_each(|line| self.mark_line(line, false, None));
    }

    /// Notes that a hold of a bucket is set or ended under `id`.
    pub fn mark_hold(&mut self, db: Db, key: &[u8], id: &[u8]) {
        let id = self.claims.get_key_value(id).map(|(id, _)| id.clone());
        self.find(db, key).into_iter().for_each(|line| self.mark_line(line, false, id.clone()));
    }

    /// Notes that a key (or every key) of one database (or of any) has gone, or holds another bucket.
    pub fn mark_gone(&mut self, db: Option<Db>, key: Option<&[u8]>) {
        let dbs = self.names.iter().filter(|(of, _)| db.is_none_or(|db| db == **of));
        let lines = dbs.flat_map(|(_, names)| match key {
            Some(key) => names.get(key).copied().into_iter().collect(),
            None => names.values().copied().collect::<Vec<_>>(),
        });
        lines.collect::<Vec<_>>().into_iter().for_each(|line| self.mark_line(line, true, None));
    }

    /// Notes the calls for which enough has flowed in by `now_us` Unix microseconds.
    pub fn mark_due(&mut self, now_us: i64) {
        while let Some(&(_, arrival)) = self.looks.first().filter(|(look_us, _)| *look_us <= now_us) {
            self.look_at(arrival, None);
            self.due.insert(arrival);
        }
    }

    /// Returns whether a call is due.
    #[must_use]
    pub fn is_marked(&self, now_us: i64) -> bool {
        let is_look_due = || self.looks.first().is_some_and(|(look_us, _)| *look_us <= now_us);
        !self.due.is_empty() || !self.changed.is_empty() || is_look_due()
    }

    /// Returns the next call whose turn it is: it lacks nothing, and no earlier one lacks what it wants; or no wait
    /// can help it, and it is to be denied. It stays here until it [leaves](Self::leave), or is
    /// [postponed](Self::postpone). `None` if there is no such call, or if the turn has no time left; then
    /// [`is_marked`](Self::is_marked) returns true.
    pub fn next_served(&mut self, levels: &mut impl Levels<N>) -> Option<Arrival> {
        while levels.has_time() {
            if let Some((line, ids)) = self.changed.pop_first() {
                self.look_at_changed(line, &ids, levels);
                continue;
            }
            let candidate = *self.due.first()?;
            match self.kept_at(candidate, levels) {
                None => return Some(candidate),
                Some((line, until_us)) => {
                    self.due.remove(&candidate);
                    self.park(candidate, line, Some(until_us));
                }
            }
        }
        None
    }

    /// Examines a call whose turn it was, and which got nothing, again at `look_us`. Meanwhile it keeps those behind it.
    pub fn postpone(&mut self, arrival: Arrival, look_us: i64) {
        self.due.remove(&arrival);
        self.look_at(arrival, Some(look_us));
    }

    /// Returns micro-tokens that the waiting calls want of a bucket together, if one of them lacks it or is due: then
    /// a newcomer may not take it. `None` if it may.
    #[must_use]
    pub fn wanted_before(&self, db: Db, key: &[u8], seen: &Seen<'_>) -> Option<i64> {
        let line = self.lines.get(&self.find(db, key)?)?;
        let is_due = || {
            self.is_marked(seen.now_us) && line.arrivals().any(|call| self.may_be_served(call, seen.now_us))
        };
        (line.is_lacked(seen) || is_due()).then(|| line.wanted_micro())
    }

    /// Returns a call whose time is over at `now_us` Unix microseconds. While calls are being served, none that may be
    /// next.
    #[must_use]
    pub fn overdue(&self, now_us: i64, are_served: bool) -> Option<Arrival> {
        let overdue = self.deadlines.iter().take_while(|(deadline_us, _)| *deadline_us <= now_us);
        overdue
            .map(|(_, arrival)| *arrival)
            .find(|arrival| !are_served || !self.may_be_served(*arrival, now_us))
    }

    /// Returns when to ask again, in Unix microseconds, if nothing changes: a call is served, or its time is over.
    #[must_use]
    pub fn next_look_us(&self) -> Option<i64> {
        if self.is_marked(i64::MIN) {
            return Some(i64::MIN);
        }
        let firsts = [self.looks.first(), self.deadlines.first()];
        firsts.into_iter().flatten().map(|(at_us, _)| *at_us).min()
    }

    /// Returns the calls that wait, in order of arrival.
    pub fn arrivals(&self) -> impl Iterator<Item = Arrival> + '_ {
        self.waiters.keys().copied()
    }

    /// Moves all deadlines by as many microseconds as a clock was set back.
    pub fn set_back(&mut self, by_us: i64) {
        let moved = self.waiters.iter_mut().map(|(arrival, waiter)| {
            waiter.deadline_us = waiter.deadline_us.saturating_sub(by_us);
            (waiter.deadline_us, *arrival)
        });
        self.deadlines = moved.collect();
    }

    fn find(&self, db: Db, key: &[u8]) -> Option<LineId> {
        self.names.get(&db)?.get(key).copied()
    }

    fn add(&mut self, db: Db, arrival: Arrival, part: Part<N>) -> LineId {
        let line = self.find(db, part.key.borrow()).unwrap_or_else(|| {
            self.line_ids = self.line_ids.wrapping_add(1);
            self.names.entry(db).or_default().insert(part.key.clone(), self.line_ids);
            self.lines.insert(self.line_ids, Box::new(Line::new(db, part.key.clone())));
            self.line_ids
        });
        if let Some(id) = part.id.clone() {
            self.claims.entry(id).or_default().insert((line, arrival));
        }
        self.lines.entry(line).and_modify(|line| line.add(arrival, part));
        line
    }

    /// Returns whether other calls want that hold of some bucket.
    fn unclaim(&mut self, id: &N, line: LineId, arrival: Arrival) -> bool {
        let claims = expected(self.claims.get_mut(id.borrow()), "a call that wants a hold claims it");
        let Some(claims) = claims else { return false };
        claims.remove(&(line, arrival));
        if claims.is_empty() {
            self.claims.remove(id.borrow());
            shrink(&mut self.claims);
        }
        self.claims.contains_key(id.borrow())
    }

    fn forget_if_empty(&mut self, id: LineId) {
        let Some(line) = self.lines.get(&id).filter(|line| line.is_empty()) else { return };
        if let Some(names) = self.names.get_mut(&line.db) {
            names.remove(line.key.borrow());
            shrink(names);
        }
        self.names.retain(|_, names| !names.is_empty());
        self.lines.remove(&id);
        self.changed.remove(&id);
        self.replaced.remove(&id);
    }

    /// Returns a key that keeps a call, and until when in Unix microseconds; `None` if it is the call's turn.
    fn kept_at(&self, arrival: Arrival, levels: &mut impl Levels<N>) -> Option<(LineId, i64)> {
        let Waiter { lines, parked_at, .. } = expected(self.waiters.get(&arrival), WAITS)?;
        // Most calls go on waiting where they wait.
        let others = lines.iter().filter(|line| *line != parked_at);
        let lacks = once(parked_at).chain(others).filter_map(|id| {
            let line = expected(self.lines.get(id), NAMED)?;
            // A key of another type keeps no call: it is tried, and gets its error.
            let keeps =
                |seen: Option<&Seen<'_>>| seen.map_or(Lack::Nothing, |seen| line.keeps(arrival, seen));
            Some((*id, levels.look(line.db, &line.key, keeps)))
        });
        match lacks.into_iter().find(|(_, lack)| *lack != Lack::Nothing)? {
            (line, Lack::Until(until_us)) => Some((line, until_us)),
            _ => None,
        }
    }

    /// Finds the calls that a changed bucket may keep no longer.
    fn look_at_changed(&mut self, id: LineId, ids: &HashSet<N>, levels: &mut impl Levels<N>) {
        let is_replaced = self.replaced.remove(&id);
        let Some(line) = expected(self.lines.get(&id), NAMED) else { return };
        self.due.extend(line.parked.first());
        if line.free.is_empty() && ids.is_empty() && !is_replaced {
            return;
        }
        let (due, claims) = (&mut self.due, &self.claims);
        let lacks = levels.look(line.db, &line.key, |seen| {
            let Some(seen) = seen else {
                return line.free.iter().map(|call| (*call, Lack::Nothing)).collect();
            };
            let claims = ids.iter().filter_map(|of| claims.get(of.borrow()));
            let claimants =
                claims.flat_map(|claims| claims.range((id, 0)..=(id, Arrival::MAX)).map(|(_, call)| *call));
            due.extend(claimants.filter(|call| line.waits_satisfied(*call, seen)));
            if is_replaced && seen.has_holds() {
                due.extend(line.parked.iter().filter(|call| line.waits_satisfied(**call, seen)));
            }
            line.lacks_of_free(seen)
        });
        for (arrival, lack) in lacks {
            match lack {
                Lack::Until(until_us) => self.look_at(arrival, Some(until_us)),
                Lack::Nothing | Lack::Always => drop(self.due.insert(arrival)),
            }
        }
    }

    /// Returns whether it may be a call's turn, or become it, before it was examined: it is due, or the first of those
    /// parked with it is.
    fn may_be_served(&self, arrival: Arrival, now_us: i64) -> bool {
        let Some(Waiter { parked_at, .. }) = expected(self.waiters.get(&arrival), WAITS) else {
            return false;
        };
        let first = self.lines.get(parked_at).and_then(|line| line.parked.first());
        self.changed.contains_key(parked_at)
            || once(&arrival).chain(first).any(|call| self.is_due(call, now_us))
    }

    fn is_due(&self, arrival: &Arrival, now_us: i64) -> bool {
        let is_look_due = |waiter: &Waiter| waiter.look_us.is_some_and(|look_us| look_us <= now_us);
        self.due.contains(arrival) || self.waiters.get(arrival).is_some_and(is_look_due)
    }

    /// Lets a call wait at a key that keeps it until then. Only the first one there is examined at that moment.
    fn park(&mut self, arrival: Arrival, at: LineId, until_us: Option<i64>) {
        if self.waiters.get(&arrival).is_some_and(|waiter| waiter.parked_at != at) {
            self.unpark(arrival);
        }
        let waiter = expected(self.waiters.get_mut(&arrival), WAITS);
        let (Some(waiter), Some(line)) = (waiter, expected(self.lines.get_mut(&at), NAMED)) else { return };
        waiter.parked_at = at;
        line.park(arrival);
        let is_examined = line.is_first(arrival) || line.free.contains(&arrival);
        self.look_at(arrival, until_us.filter(|until_us| is_examined && *until_us != i64::MAX));
    }

    fn unpark(&mut self, arrival: Arrival) {
        let Some(waiter) = expected(self.waiters.get(&arrival), WAITS) else { return };
        let next = self.lines.get_mut(&waiter.parked_at).and_then(|line| line.unpark(arrival));
        self.due.extend(next);
    }

    fn mark_line(&mut self, line: LineId, is_replaced: bool, id: Option<N>) {
        if self.lines.get(&line).is_some_and(|line| !line.is_idle()) {
            self.changed.entry(line).or_default().extend(id);
            self.replaced.extend(is_replaced.then_some(line));
        }
    }

    fn look_at(&mut self, arrival: Arrival, look_us: Option<i64>) {
        let Some(waiter) = expected(self.waiters.get_mut(&arrival), WAITS) else { return };
        if let Some(before_us) = std::mem::replace(&mut waiter.look_us, look_us) {
            self.looks.remove(&(before_us, arrival));
        }
        self.looks.extend(look_us.map(|look_us| (look_us, arrival)));
    }
}

/// Frees the memory of a map that was much larger: a call may name a thousand keys.
fn shrink<N: Name, V>(map: &mut HashMap<N, V>) {
    if map.capacity() > 64 && map.len() < map.capacity() / 4 {
        map.shrink_to_fit();
    }
}
