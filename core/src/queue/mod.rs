//! Waiting calls, and which is next.
//!
//! # The order
//!
//! A call lacks a bucket while the bucket has less than the call wants. No later call may take what an earlier one lacks:
//! calls are in order of arrival, unless they have [shares](Share); then `order.rs` says which is earlier. A
//! call that waits for one bucket does not block others at its other buckets, and no call blocks a request that needs
//! nothing (of cost 0, or a hold that is large enough). A call that no wait can help blocks no other: it is next, to be
//! denied.
//!
//! # How the next one is found
//!
//! The queue stores only which call waits where. Examining a call computes what it lacks, from the present content of its
//! buckets. Each call is *parked* at one key that blocks it: it lacks that bucket, or an earlier call does. If the first call
//! parked at a key is blocked, so are the rest. So when a bucket changes ([`Queue::mark`]), or enough has flowed in, only
//! the first is examined: it stays; or it is parked at another key, or served, and the next one becomes the first.
//!
//! # A turn may end early
//!
//! One release may serve thousands of calls, and the server has other clients. So a turn stops when its time is over
//! ([`Levels::has_time`]), and the next one continues. The outcome is that of one long turn: calls are examined in order of
//! arrival, and nothing is decided against a call that is *due*, which means still to be examined. No new call takes what it
//! wants ([`Queue::wanted_before`]), and it does not time out ([`Queue::overdue`]).
//!
//! The queue has no clock, no server and no thread: it reads [`Levels`].

mod line;
mod order;

use crate::bucket::Limit;
use crate::invariant::expected;
use crate::request::{Request, Share};
use line::{Lack, Line};
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::iter::once;

pub use line::{Db, Seen};
pub use order::{Arrival, Name};

/// A key that waiting calls name.
type LineId = u64;

/// The buckets of a server at one moment.
pub trait Levels<N> {
    /// Looks at the bucket of a key; `None` if the key holds another type.
    fn look<T>(&mut self, db: Db, key: &N, look: impl FnOnce(Option<&Seen<'_>>) -> T) -> T;

    /// Returns whether the turn has time for another examination.
    fn has_time(&mut self) -> bool;
}

#[derive(Clone, Debug)]
struct Waiter {
    /// The keys that it names.
    lines: Box<[LineId]>,
    parked_at: LineId,
    deadline_us: i64,
    /// When to examine it even if nothing changes, in Unix microseconds.
    look_us: Option<i64>,
}

/// The reason why a call must be in the queue.
const WAITS: &str = "the call waits";
/// The reason why a key must be in the queue.
const NAMED: &str = "a call names the key";

/// A tenant, and how many of its calls wait.
type Counted<'queue, N> = (Option<&'queue N>, usize);

/// The calls that wait in a server.
#[derive(Clone, Debug)]
pub struct Queue<N> {
    names: BTreeMap<Db, HashMap<N, LineId>>,
    /// In boxes: half of a tree's places are empty.
    lines: BTreeMap<LineId, Box<Line<N>>>,
    waiters: BTreeMap<Arrival, Waiter>,
    /// The calls that want a hold, with its bucket, by its id.
    claims: HashMap<N, BTreeSet<(LineId, Arrival)>>,
    deadlines: BTreeSet<(i64, Arrival)>,
    looks: BTreeSet<(i64, Arrival)>,
    /// Keys whose buckets may have gained tokens, with the ids of holds that may have grown.
    changed: BTreeMap<LineId, HashSet<N>>,
    /// The changed keys that may hold another bucket.
    replaced: BTreeSet<LineId>,
    /// Calls to examine.
    due: BTreeSet<Arrival>,
    /// The calls of cost 0, with the key where each waits for the end of a debt: no other call blocks them.
    free: BTreeSet<(LineId, Arrival)>,
    /// What the next call needs in addition to its hold, in micro-tokens, at each of its keys where calls have shares.
    needs: Vec<(LineId, i64)>,
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
            free: BTreeSet::new(),
            needs: Vec::new(),
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

    /// Adds a call, which waits until `deadline_us` Unix microseconds. It is due: the next turn examines it. Only a call of
    /// one key has a share.
    pub fn enter(
        &mut self,
        db: Db,
        requests: Vec<Request<N>>,
        deadline_us: i64,
        share: Option<Share<N>>,
    ) -> Arrival {
        self.arrivals = self.arrivals.wrapping_add(1);
        let arrival = self.arrivals;
        let lines: Box<[LineId]> =
            requests.into_iter().map(|request| self.add(db, arrival, request, share.clone())).collect();
        let parked_at = lines.first().copied().unwrap_or_default();
        self.waiters.insert(arrival, Waiter { lines, parked_at, deadline_us, look_us: None });
        self.deadlines.insert((deadline_us, arrival));
        self.park(arrival, parked_at, None);
        self.due.insert(arrival);
        arrival
    }

    /// Removes the [next](Self::next_served) call, which is granted: its tenant's turn comes later now.
    pub fn grant(&mut self, arrival: Arrival) {
        for (line, micro) in std::mem::take(&mut self.needs) {
            self.lines.entry(line).and_modify(|line| line.parked.grant(arrival, micro));
        }
        self.remove(arrival);
    }

    /// Removes a call that is granted nothing: it timed out, its client disconnected, or no wait helps. If it was next where it
    /// waited, it passes its turn: otherwise its tenant could keep the others out by asking for too much, again and again.
    pub fn leave(&mut self, arrival: Arrival) {
        let parked_at = self.waiters.get(&arrival).map(|waiter| waiter.parked_at);
        parked_at.and_then(|at| self.lines.get_mut(&at)).into_iter().for_each(|line| line.pass(arrival));
        self.remove(arrival);
    }

    /// Removes a call. Calls that it blocked may be served now.
    fn remove(&mut self, arrival: Arrival) {
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
            // It may have been granted, and other calls may want that hold.
            let id = id.filter(|id| self.unclaim(id, line, arrival));
            self.mark_line(line, false, id);
            self.forget_if_empty(line);
        }
    }

    /// Notes that a bucket may have gained tokens.
    pub fn mark(&mut self, db: Db, key: &[u8]) {
        self.find(db, key).into_iter().for_each(|line| self.mark_line(line, false, None));
    }

    /// Notes that the hold `id` of a bucket was set or ended.
    pub fn mark_hold(&mut self, db: Db, key: &[u8], id: &[u8]) {
        let id = self.claims.get_key_value(id).map(|(id, _)| id.clone());
        self.find(db, key).into_iter().for_each(|line| self.mark_line(line, false, id.clone()));
    }

    /// Notes that a key (or every key) of one database (or of all) was removed, or holds another bucket.
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

    /// Returns the next call to serve: it lacks nothing, and no earlier one lacks what it wants; or no wait can help it, and
    /// it is to be denied. It stays until it [leaves](Self::leave) or is [postponed](Self::postpone). `None` if there is no
    /// such call, or if the turn has no time left; then [`is_marked`](Self::is_marked) returns true.
    pub fn next_served(&mut self, levels: &mut impl Levels<N>) -> Option<Arrival> {
        while levels.has_time() {
            if let Some((line, ids)) = self.changed.pop_first() {
                self.look_at_changed(line, &ids, levels);
                continue;
            }
            // Those that are earlier by their shares wait first at its key, and block it.
            let candidate = *self.due.first()?;
            match self.kept_at(candidate, levels) {
                None => {
                    self.note_needs(candidate, levels);
                    return Some(candidate);
                }
                Some((line, until_us)) => {
                    self.due.remove(&candidate);
                    self.park(candidate, line, Some(until_us));
                }
            }
        }
        None
    }

    /// Examines a call that was next and got nothing again at `look_us`. Until then it blocks the calls behind it.
    pub fn postpone(&mut self, arrival: Arrival, look_us: i64) {
        self.due.remove(&arrival);
        self.look_at(arrival, Some(look_us));
    }

    /// Returns the micro-tokens that all waiting calls want of a bucket, if a new call may not take `micro` of it under `limit`:
    /// a call lacks the bucket or is due, and the bucket has not enough for all. `None` if it may.
    #[must_use]
    pub fn wanted_before(
        &self,
        db: Db,
        key: &[u8],
        seen: &Seen<'_>,
        limit: &Limit,
        micro: i64,
    ) -> Option<i64> {
        let line = self.lines.get(&self.find(db, key)?)?;
        // Where there is enough for all, no call is asked.
        if line.is_plenty(seen, limit, micro) {
            return None;
        }
        let is_due =
            || self.is_marked(seen.now_us) && line.aside().any(|call| self.may_be_served(call, seen.now_us));
        (line.is_lacked(seen) || is_due()).then(|| line.wanted_micro())
    }

    /// Returns a call that has timed out at `now_us` Unix microseconds. While calls are being served, none that may be next.
    #[must_use]
    pub fn overdue(&self, now_us: i64, are_served: bool) -> Option<Arrival> {
        let overdue = self.deadlines.iter().take_while(|(deadline_us, _)| *deadline_us <= now_us);
        overdue
            .map(|(_, arrival)| *arrival)
            .find(|arrival| !are_served || !self.may_be_served(*arrival, now_us))
    }

    /// Returns when to look again if nothing changes, in Unix microseconds: a call may be served, or times out.
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

    /// Returns how many calls of each tenant wait, the largest number first: at one key, or at all where calls have shares. At
    /// most `most` tenants. Calls without a share have no tenant.
    #[must_use]
    pub fn tenants<'a>(&'a self, key: Option<(Db, &[u8])>, most: usize) -> Vec<Counted<'a, N>> {
        let ids: BTreeSet<LineId> = match key {
            Some((db, key)) => self.find(db, key).into_iter().collect(),
            // A call with a share is parked at its only key.
            None => self.waiters.values().map(|waiter| waiter.parked_at).collect(),
        };
        let lines = ids.iter().filter_map(|id| self.lines.get(id));
        let lines = lines.filter(|line| line.parked.tenants().any(|(tenant, _)| tenant.is_some()));
        let mut calls: HashMap<_, usize> = HashMap::new();
        for (tenant, parked) in lines.flat_map(|line| line.parked.tenants()) {
            let calls = calls.entry(tenant).or_default();
            *calls = calls.saturating_add(parked.len());
        }
        let mut tenants: Vec<_> = calls.into_iter().collect();
        let name = |tenant: Option<&'a N>| -> Option<&'a [u8]> { tenant.map(Borrow::borrow) };
        let order = |one: &Counted<'a, N>, other: &Counted<'a, N>| {
            other.1.cmp(&one.1).then_with(|| name(one.0).cmp(&name(other.0)))
        };
        if tenants.len() > most {
            tenants.select_nth_unstable_by(most, order);
            tenants.truncate(most);
        }
        tenants.sort_unstable_by(order);
        tenants
    }

    /// Moves all deadlines back, like the clock.
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

    fn add(&mut self, db: Db, arrival: Arrival, request: Request<N>, share: Option<Share<N>>) -> LineId {
        let key = &request.key;
        let line = self.find(db, key.borrow()).unwrap_or_else(|| {
            self.line_ids = self.line_ids.wrapping_add(1);
            self.names.entry(db).or_default().insert(key.clone(), self.line_ids);
            self.lines.insert(self.line_ids, Box::new(Line::new(db, key.clone())));
            self.line_ids
        });
        if let Some(id) = request.id().cloned() {
            self.claims.entry(id).or_default().insert((line, arrival));
        }
        self.lines.entry(line).and_modify(|line| line.add(arrival, request, share));
        line
    }

    /// Removes a call's claim to a hold. Returns whether other calls want a hold with that id.
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

    /// Notes what the next call needs at each key where calls have shares.
    fn note_needs(&mut self, arrival: Arrival, levels: &mut impl Levels<N>) {
        let Some(waiter) = expected(self.waiters.get(&arrival), WAITS) else { return };
        let needs = waiter.lines.iter().filter_map(|id| {
            let line = self.lines.get(id).filter(|line| line.parked.has_shares())?;
            let needs = |seen: Option<&Seen<'_>>| seen.map_or(0, |seen| line.needs_micro(arrival, seen));
            Some((*id, levels.look(line.db, &line.key, needs)))
        });
        self.needs = needs.collect();
    }

    /// Returns a key that blocks a call, and until when in Unix microseconds; `None` if the call is next.
    fn kept_at(&self, arrival: Arrival, levels: &mut impl Levels<N>) -> Option<(LineId, i64)> {
        let Waiter { lines, parked_at, .. } = expected(self.waiters.get(&arrival), WAITS)?;
        // Most calls stay blocked where they are parked.
        let others = lines.iter().filter(|line| *line != parked_at);
        let lacks = once(parked_at).chain(others).filter_map(|id| {
            let line = expected(self.lines.get(id), NAMED)?;
            // A key of another type blocks no call, which is served and gets the error.
            let keeps =
                |seen: Option<&Seen<'_>>| seen.map_or(Lack::Nothing, |seen| line.keeps(arrival, seen));
            Some((*id, levels.look(line.db, &line.key, keeps)))
        });
        match lacks.into_iter().find(|(_, lack)| *lack != Lack::Nothing)? {
            (line, Lack::Until(until_us)) => Some((line, until_us)),
            _ => None,
        }
    }

    /// Finds the calls that a changed bucket may no longer block.
    fn look_at_changed(&mut self, id: LineId, ids: &HashSet<N>, levels: &mut impl Levels<N>) {
        let is_replaced = self.replaced.remove(&id);
        let Some(line) = expected(self.lines.get(&id), NAMED) else { return };
        self.due.extend(line.parked.first());
        let free: Vec<_> = self.free_at(id).collect();
        if free.is_empty() && ids.is_empty() && !is_replaced {
            return;
        }
        let (due, claims) = (&mut self.due, &self.claims);
        let lacks = levels.look(line.db, &line.key, |seen| {
            let Some(seen) = seen else {
                return free.iter().map(|call| (*call, Lack::Nothing)).collect::<Vec<_>>();
            };
            let claims = ids.iter().filter_map(|of| claims.get(of.borrow()));
            let claimants =
                claims.flat_map(|claims| claims.range((id, 0)..=(id, Arrival::MAX)).map(|(_, call)| *call));
            due.extend(claimants.filter(|call| line.waits_satisfied(*call, seen)));
            if is_replaced && seen.has_holds() {
                let parked = line.parked.tenants().flat_map(|(_, calls)| calls);
                due.extend(parked.filter(|call| line.waits_satisfied(**call, seen)));
            }
            free.iter().map(|call| (*call, line.lack(*call, seen))).collect()
        });
        for (arrival, lack) in lacks {
            match lack {
                Lack::Until(until_us) => self.look_at(arrival, Some(until_us)),
                Lack::Nothing | Lack::Always => drop(self.due.insert(arrival)),
            }
        }
    }

    /// Returns whether a call may be next, or become so, until it is examined: it is due, or the first call parked with it is.
    fn may_be_served(&self, arrival: Arrival, now_us: i64) -> bool {
        let Some(Waiter { parked_at, .. }) = expected(self.waiters.get(&arrival), WAITS) else {
            return false;
        };
        let first = self.lines.get(parked_at).and_then(|line| line.parked.first());
        self.changed.contains_key(parked_at)
            || once(arrival).chain(first).any(|call| self.is_due(&call, now_us))
    }

    fn is_due(&self, arrival: &Arrival, now_us: i64) -> bool {
        let is_look_due = |waiter: &Waiter| waiter.look_us.is_some_and(|look_us| look_us <= now_us);
        self.due.contains(arrival) || self.waiters.get(arrival).is_some_and(is_look_due)
    }

    /// Parks a call at a key that blocks it until `until_us`. Only the first call there is examined at that moment.
    fn park(&mut self, arrival: Arrival, at: LineId, until_us: Option<i64>) {
        if self.waiters.get(&arrival).is_some_and(|waiter| waiter.parked_at != at) {
            self.unpark(arrival);
        }
        let waiter = expected(self.waiters.get_mut(&arrival), WAITS);
        let (Some(waiter), Some(line)) = (waiter, expected(self.lines.get_mut(&at), NAMED)) else { return };
        waiter.parked_at = at;
        let is_free = line.is_free(arrival);
        match is_free {
            true => drop(self.free.insert((at, arrival))),
            false => line.park(arrival),
        }
        let is_examined = is_free || line.is_first(arrival);
        self.look_at(arrival, until_us.filter(|until_us| is_examined && *until_us != i64::MAX));
    }

    fn unpark(&mut self, arrival: Arrival) {
        let Some(waiter) = expected(self.waiters.get(&arrival), WAITS) else { return };
        if !self.free.remove(&(waiter.parked_at, arrival)) {
            let next = self.lines.get_mut(&waiter.parked_at).and_then(|line| line.unpark(arrival));
            self.due.extend(next);
        }
    }

    fn free_at(&self, line: LineId) -> impl Iterator<Item = Arrival> + '_ {
        self.free.range((line, 0)..=(line, Arrival::MAX)).map(|(_, arrival)| *arrival)
    }

    fn mark_line(&mut self, line: LineId, is_replaced: bool, id: Option<N>) {
        let is_first = self.lines.get(&line).and_then(|line| line.parked.first());
        // If no call waits there, changes of the bucket do not matter.
        if is_first.or_else(|| self.free_at(line).next()).is_some() {
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

/// Frees memory of a map that was much larger: a call may name a thousand keys.
fn shrink<N: Name, V>(map: &mut HashMap<N, V>) {
    if map.capacity() > 64 && map.len() < map.capacity() / 4 {
        map.shrink_to_fit();
    }
}
