//! Waiting calls, and which is next.
//!
//! # The order
//!
//! A call lacks a bucket while the bucket has less than the call wants. No later call may take what an earlier one lacks:
//! calls are in order of arrival, unless they have [shares](Share); then `order.rs` says which is earlier. A
//! call that waits for one bucket does not block others at its other buckets, and no call blocks a request that needs
//! nothing (of cost 0, or a hold that is large enough). A call that wants more than an override's capacity blocks no other
//! until the override ends, at any of its keys; nor does a call that no wait can help, which is next, to be denied.
//!
//! # How the next one is found
//!
//! The queue stores only which call waits where. Examining a call computes what it lacks, from the present content of its
//! buckets. Each call is *parked* at one key that blocks it: it lacks that bucket, or an earlier call does. If the first call
//! parked at a key is blocked, so are the rest. So when a bucket gains tokens ([`Queue::mark`]), or enough has flowed in, only
//! the first is examined: it stays; or it is parked at another key, or served, and the next one becomes the first.
//!
//! # A turn may end early
//!
//! One release may serve thousands of calls, and the server has other clients. So a turn stops when its time is over
//! ([`Levels::has_time`]), and the next one continues. The outcome is that of one long turn: calls are examined in order of
//! arrival, and nothing is decided against a call that is *due*, which means still to be examined. No new call takes what it
//! wants ([`Queue::wanted_before`]), and it does not time out ([`Queue::overdue`]). Only a hold that a waiting call wants may be
//! set by a new call meanwhile, and the waiting one then needs less.
//!
//! # What waiting calls cost others
//!
//! Nothing here looks through the calls that name a key, except one slice at a time. A new call at a key compares the level
//! with the sum of what waiting calls want, then with their largest claim (`calls.rs`). Then it asks the few that are due.
//! Where more than a few may be due, and the bucket has less than all of them want, it is denied.
//!
//! The queue has no clock, no server and no thread: it reads [`Levels`].

mod calls;
mod line;
mod order;

use crate::bucket::Limit;
use crate::invariant::expected;
use crate::request::{Request, Share};
use line::{Lack, Line, Place, MAX_ASKED};
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
    place: Place,
    /// Set while an override of any of its keys may have begun to deny it.
    is_suspect: bool,
    /// It wants more than a bucket can hold, as its hold has that already: when the hold ends, no wait helps.
    is_outgrown: bool,
    deadline_us: i64,
    /// When to examine it even if nothing changes, in Unix microseconds.
    look_us: Option<i64>,
}

/// Where a call is blocked, and until when in Unix microseconds.
struct Kept {
    at: LineId,
    place: Place,
    until_us: i64,
    is_outgrown: bool,
}

/// The changes of a bucket that are still to be looked at.
#[derive(Clone, Debug)]
struct Change<N> {
    /// The holds that may have grown.
    ids: HashSet<N>,
    /// The key may hold another bucket, or have another override: from which call on that is still to be looked at.
    replaced_from: Option<Arrival>,
}

/// How many calls of a replaced bucket are looked at in one examination.
const AT_ONCE: usize = 64;

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
    /// The calls whose deadline passed while they were due, with the key where each is parked.
    late: BTreeSet<(LineId, Arrival)>,
    looks: BTreeSet<(i64, Arrival)>,
    /// Keys whose buckets may have gained tokens.
    changed: BTreeMap<LineId, Change<N>>,
    /// Calls to examine.
    due: BTreeSet<Arrival>,
    /// The calls that are not in the order of the key where they wait.
    apart: BTreeSet<(LineId, Place, Arrival)>,
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
            late: BTreeSet::new(),
            looks: BTreeSet::new(),
            changed: BTreeMap::new(),
            due: BTreeSet::new(),
            apart: BTreeSet::new(),
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

    /// Adds a call, which waits until `deadline_us` Unix microseconds, and examines it: it is due if only other calls that are
    /// due keep it from being served. Only a call of one key has a share.
    pub fn enter(
        &mut self,
        db: Db,
        requests: Vec<Request<N>>,
        deadline_us: i64,
        share: Option<Share<N>>,
        levels: &mut impl Levels<N>,
    ) -> Arrival {
        self.arrivals = self.arrivals.wrapping_add(1);
        let arrival = self.arrivals;
        let lines: Box<[LineId]> =
            requests.into_iter().map(|request| self.add(db, arrival, request, share.clone())).collect();
        let parked_at = lines.first().copied().unwrap_or_default();
        let (place, is_suspect, is_outgrown, look_us) = (Place::None, true, false, None);
        let waiter = Waiter { lines, parked_at, place, is_suspect, is_outgrown, deadline_us, look_us };
        self.waiters.insert(arrival, waiter);
        self.deadlines.insert((deadline_us, arrival));
        let kept = self.kept_at(arrival, levels);
        if kept.is_none() {
            self.due.insert(arrival);
        }
        let place = self.lines.get(&parked_at).map_or(Place::InOrder, |line| line.place_of(arrival));
        let next = Kept { at: parked_at, place, until_us: i64::MAX, is_outgrown: false };
        self.park(arrival, kept.unwrap_or(next));
        arrival
    }

    /// Removes the [next](Self::next_served) call, which is granted: its tenant's turn comes later now.
    pub fn grant(&mut self, arrival: Arrival) {
        for (line, micro) in std::mem::take(&mut self.needs) {
            self.lines.entry(line).and_modify(|line| line.parked.grant(arrival, micro));
        }
        self.remove(arrival);
    }

    /// Removes a call that is granted nothing: it timed out, its client disconnected, or no wait helps. Where it was next, it
    /// passes its turn: otherwise its tenant could keep the others out by asking for too much, again and again.
    pub fn leave(&mut self, arrival: Arrival) {
        let lines = self.waiters.get(&arrival).into_iter().flat_map(|waiter| &waiter.lines);
        for line in lines {
            self.lines.entry(*line).and_modify(|line| line.pass(arrival));
        }
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

    /// Notes that a call under `limit` took tokens of a bucket. Other limits may find more there than before.
    pub fn mark_taken(&mut self, db: Db, key: &[u8], limit: &Limit) {
        let has_others = |line: &LineId| self.lines.get(line).is_some_and(|line| line.has_other_rates(limit));
        let line = self.find(db, key).filter(has_others);
        line.into_iter().for_each(|line| self.mark_line(line, false, None));
    }

    /// Notes that the hold `id` of a bucket was set or ended.
    pub fn mark_hold(&mut self, db: Db, key: &[u8], id: &[u8]) {
        let Some(id) = self.claims.get_key_value(id).map(|(id, _)| id.clone()) else { return };
        self.find(db, key).into_iter().for_each(|line| self.mark_line(line, false, Some(id.clone())));
    }

    /// Notes that a key (or every key) of one database (or of all) was removed, or holds another bucket.
    pub fn mark_gone(&mut self, db: Option<Db>, key: Option<&[u8]>) {
        let dbs = self.names.iter().filter(|(of, _)| db.is_none_or(|db| db == **of));
        let lines = dbs.flat_map(|(_, names)| match key {
            Some(key) => names.get(key).copied().into_iter().collect(),
            None => names.values().copied().collect::<Vec<_>>(),
        });
        for line in lines.collect::<Vec<_>>() {
            self.mark_line(line, true, None);
            if key.is_some() || db.is_some() {
                // It may have an override that denies a call which waits elsewhere.
                self.change(line).replaced_from = Some(0);
            }
        }
    }

    /// Returns whether a call is due.
    #[must_use]
    pub fn is_marked(&self, now_us: i64) -> bool {
        !self.due.is_empty() || !self.changed.is_empty() || self.first_look(now_us).is_some()
    }

    /// Returns the next call to serve: it lacks nothing, and no earlier one lacks what it wants; or no wait can help it, and
    /// it is to be denied. It stays until it [leaves](Self::leave) or is [postponed](Self::postpone). `None` if there is no
    /// such call, or if the turn has no time left; then [`is_marked`](Self::is_marked) returns true.
    pub fn next_served(&mut self, now_us: i64, levels: &mut impl Levels<N>) -> Option<Arrival> {
        while levels.has_time() {
            if let Some((line, change)) = self.changed.pop_first() {
                self.look_at_changed(line, change, levels);
                continue;
            }
            if let Some(arrival) = self.first_look(now_us) {
                self.look_at(arrival, None);
                self.due.insert(arrival);
                continue;
            }
            // Those that are earlier by their shares wait first at its key, and block it, or are due elsewhere.
            let first = *self.due.first()?;
            let candidate = self.due_before(first).unwrap_or(first);
            match self.kept_at(candidate, levels) {
                None => {
                    self.note_needs(candidate, levels);
                    return Some(candidate);
                }
                Some(kept) => {
                    self.due.remove(&candidate);
                    self.park(candidate, kept);
                }
            }
        }
        None
    }

    /// Returns the first call without a share that is due, if one is due elsewhere and before a call by its tenant's virtual time.
    fn due_before(&self, call: Arrival) -> Option<Arrival> {
        let later = || self.due.iter().skip(1).take(MAX_ASKED);
        let lines = self.waiters.get(&call)?.lines.iter().filter_map(|id| self.lines.get(id));
        let mut lines = lines.filter(|line| line.parked.has_shares());
        let is_before = lines.any(|line| {
            let mut before = later().take_while(|other| **other < line.parked.unnamed_before(call));
            before.any(|other| line.calls.is_aside(*other))
        });
        is_before.then(|| later().find(|other| !self.has_share(**other)).copied())?
    }

    /// Returns whether a call has a share, which only calls of one key have.
    fn has_share(&self, call: Arrival) -> bool {
        let lines = self.waiters.get(&call).map_or(&[][..], |waiter| &waiter.lines);
        matches!(lines, [line] if self.lines.get(line).is_some_and(|line| line.parked.is_named(call)))
    }

    /// Examines a call that was next and got nothing again at `look_us`. Until then it blocks the calls behind it.
    pub fn postpone(&mut self, arrival: Arrival, look_us: i64) {
        self.due.remove(&arrival);
        self.look_at(arrival, Some(look_us));
        if let Some(at) = self.waiters.get(&arrival).map(|waiter| waiter.parked_at) {
            self.miss_late(Some(at));
        }
    }

    /// Returns the micro-tokens that waiting calls want of a bucket, if a new call may not take `micro` of it under `limit`: a
    /// call lacks the bucket, or calls that are due want what would be left. `None` if it may.
    #[must_use]
    pub fn wanted_before(
        &self,
        db: Db,
        key: &[u8],
        seen: &Seen<'_>,
        limit: &Limit,
        micro: i64,
    ) -> Option<i64> {
        let id = self.find(db, key)?;
        let line = self.lines.get(&id)?;
        // An override may deny those no longer that are due.
        let wanted_micro = line.wanted_micro(self.is_marked(seen.now_us));
        let left_micro = line.left_micro(seen, limit, micro);
        // Where there is enough for all, no call is asked.
        let is_kept = wanted_micro > left_micro
            && (line.parked.first().is_some()
                || line.is_lacked_aside(seen)
                || self.is_wanted_aside(id, line, left_micro, seen, micro));
        is_kept.then_some(wanted_micro)
    }

    /// Returns whether calls that are due and parked at other keys want more than `left_micro` of a key, or would be blocked by
    /// one that lacks it after a take of `micro`. If too many may be due, they are not asked.
    fn is_wanted_aside(
        &self,
        id: LineId,
        line: &Line<N>,
        left_micro: i64,
        seen: &Seen<'_>,
        micro: i64,
    ) -> bool {
        let now_us = seen.now_us;
        if !self.is_marked(now_us) {
            return false;
        }
        let is_short = |wanted: &mut dyn Iterator<Item = i64>| {
            let wanted: Vec<_> = wanted.filter(|wanted_micro| *wanted_micro > 0).collect();
            let sum_micro = wanted.iter().copied().fold(0, i64::saturating_add);
            // What is taken before the last of them: the new call's, and the others'.
            let before_micro = |least: &i64| micro.saturating_add(sum_micro).saturating_sub(*least);
            let is_blocked = |least| line.would_be_lacked(seen, before_micro(least));
            sum_micro > left_micro || wanted.iter().min().is_some_and(is_blocked)
        };
        let due: Vec<_> = self.pending(now_us).collect();
        if due.len() >= MAX_ASKED || due.iter().any(|(_, may_unblock)| *may_unblock) {
            return true;
        }
        if line.calls.len() <= MAX_ASKED {
            let others = line.calls.from(0).filter(|(call, _)| !line.parked.contains(*call));
            let due = others.filter(|(call, _)| self.may_be_served(*call, now_us));
            return is_short(&mut due.map(|(_, request)| request.wanted.micro()));
        }
        let at: BTreeSet<_> = due.into_iter().map(|(at, _)| at).filter(|at| *at != id).collect();
        let calls: Vec<_> = at.iter().flat_map(|at| self.calls_at(*at)).take(MAX_ASKED).collect();
        let mut wanted = calls.iter().map(|call| line.wanted_by(*call));
        calls.len() >= MAX_ASKED || is_short(&mut wanted)
    }

    /// Returns the first keys where calls are due, and whether these may have ceased to block others: an override denies one of
    /// them, or its hold has ended or shrunk, and no wait brings as much again.
    fn pending(&self, now_us: i64) -> impl Iterator<Item = (LineId, bool)> + '_ {
        let looks = self.looks.iter().take_while(move |(look_us, _)| *look_us <= now_us);
        let due =
            self.due.iter().chain(looks.map(|(_, call)| call)).filter_map(|call| self.waiters.get(call));
        let due = due.map(|waiter| (waiter.parked_at, waiter.is_suspect || waiter.is_outgrown));
        let changed =
            self.changed.iter().map(|(at, it)| (*at, it.replaced_from.is_some() || !it.ids.is_empty()));
        changed.chain(due).take(MAX_ASKED)
    }

    fn may_unblock_others(&self, now_us: i64) -> bool {
        self.pending(now_us).any(|(_, may_unblock)| may_unblock)
    }

    /// Returns the calls that wait at a key.
    fn calls_at(&self, at: LineId) -> impl Iterator<Item = Arrival> + '_ {
        let parked = self.lines.get(&at).into_iter().flat_map(|line| line.parked.tenants());
        let apart = self.apart.range((at, Place::None, 0)..=(at, Place::Overridden, Arrival::MAX));
        parked.flat_map(|(_, calls)| calls.iter().copied()).chain(apart.map(|(_, _, call)| *call))
    }

    /// Returns a call that has timed out at `now_us` Unix microseconds. While calls are being served, none that may be next;
    /// `None` also if the turn has no time left to find one.
    #[must_use]
    pub fn overdue(&mut self, now_us: i64, are_served: bool, levels: &mut impl Levels<N>) -> Option<Arrival> {
        if !are_served || !self.is_marked(now_us) {
            self.miss_late(None);
        }
        while let Some(&(deadline_us, arrival)) = self.deadlines.first().filter(|(at_us, _)| *at_us <= now_us)
        {
            let may_be_served = || self.may_be_served(arrival, now_us) || self.may_unblock_others(now_us);
            if !are_served || !may_be_served() {
                return Some(arrival);
            }
            // Each is passed over once, however long it is due.
            let at = self.waiters.get(&arrival).map_or(0, |waiter| waiter.parked_at);
            self.deadlines.remove(&(deadline_us, arrival));
            self.late.insert((at, arrival));
            if !levels.has_time() {
                break;
            }
        }
        None
    }

    /// Returns when to look again if nothing changes, in Unix microseconds: a call may be served, or times out.
    #[must_use]
    pub fn next_look_us(&self) -> Option<i64> {
        if self.is_marked(i64::MIN) || !self.late.is_empty() {
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

    /// Moves all deadlines back, like the clock. Overrides that had ended may count again.
    pub fn set_back(&mut self, by_us: i64) {
        let moved = self.waiters.iter_mut().map(|(arrival, waiter)| {
            waiter.deadline_us = waiter.deadline_us.saturating_sub(by_us);
            (waiter.deadline_us, *arrival)
        });
        self.deadlines = moved.collect();
        self.late.clear();
        for line in self.lines.keys().copied().collect::<Vec<_>>() {
            self.change(line).replaced_from = Some(0);
        }
    }

    fn find(&self, db: Db, key: &[u8]) -> Option<LineId> {
        self.names.get(&db)?.get(key).copied()
    }

    fn first_look(&self, now_us: i64) -> Option<Arrival> {
        self.looks.first().filter(|(look_us, _)| *look_us <= now_us).map(|(_, arrival)| *arrival)
    }

    fn add(&mut self, db: Db, arrival: Arrival, request: Request<N>, share: Option<Share<N>>) -> LineId {
        let key = &request.key;
        let line = self.find(db, key.borrow()).unwrap_or_else(|| {
            self.line_ids = self.line_ids.wrapping_add(1);
            self.names.entry(db).or_default().insert(key.clone(), self.line_ids);
            self.lines.insert(self.line_ids, Box::new(Line::new(db, &request)));
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
        let Some(line) = self.lines.get(&id).filter(|line| line.calls.len() == 0) else { return };
        if let Some(names) = self.names.get_mut(&line.db) {
            names.remove(line.key.borrow());
            shrink(names);
        }
        self.names.retain(|_, names| !names.is_empty());
        self.lines.remove(&id);
        self.changed.remove(&id);
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

    /// Returns where a call is blocked; `None` if it is next.
    fn kept_at(&self, arrival: Arrival, levels: &mut impl Levels<N>) -> Option<Kept> {
        let Waiter { lines, parked_at, is_suspect, place, is_outgrown, .. } =
            expected(self.waiters.get(&arrival), WAITS)?;
        let is_quick = !is_suspect && !is_outgrown && *place != Place::Overridden;
        let mut kept: Option<Kept> = None;
        let mut outgrown_us = i64::MAX;
        // Most calls stay blocked where they are parked.
        let others = lines.iter().filter(|line| *line != parked_at);
        for id in once(parked_at).chain(others) {
            let Some(line) = expected(self.lines.get(id), NAMED) else { continue };
            // A key of another type blocks no call, which is served and gets the error.
            let (lack, ends_at_us) = levels.look(line.db, &line.key, |seen| {
                seen.map_or((Lack::Nothing, i64::MAX), |seen| line.keeps(arrival, seen))
            });
            outgrown_us = outgrown_us.min(ends_at_us);
            match lack {
                Lack::Nothing => {}
                Lack::Always => return None,
                Lack::Overridden(until_us) => {
                    return Some(Kept { at: *id, place: Place::Overridden, until_us, is_outgrown: false })
                }
                Lack::Until(until_us) => {
                    let place = line.place_of(arrival);
                    kept = kept.or(Some(Kept { at: *id, place, until_us, is_outgrown: false }));
                }
            }
            // An earlier examination has seen the overrides of its other keys.
            if kept.is_some() && is_quick {
                break;
            }
        }
        let (until_us, is_outgrown) = (outgrown_us, outgrown_us != i64::MAX);
        kept.map(|kept| Kept { until_us: kept.until_us.min(until_us), is_outgrown, ..kept })
    }

    /// Finds the calls that a changed bucket may no longer block.
    fn look_at_changed(&mut self, id: LineId, change: Change<N>, levels: &mut impl Levels<N>) {
        let Some(line) = expected(self.lines.get(&id), NAMED) else { return };
        self.due.extend(line.parked.first());
        // If the first one is in debt, so are all under the same rate.
        let free: Vec<_> = self.free_at(id).take(if line.is_mixed { usize::MAX } else { 1 }).collect();
        self.due.extend(free);
        if change.ids.is_empty() && change.replaced_from.is_none() {
            return;
        }
        let (due, claims, waiters) = (&mut self.due, &self.claims, &mut self.waiters);
        let rest = levels.look(line.db, &line.key, |seen| {
            let claims = change.ids.iter().filter_map(|of| claims.get(of.borrow()));
            let claimants = claims.flat_map(|claims| claims.range((id, 0)..=(id, Arrival::MAX)));
            let claimants = claimants.filter_map(|(_, call)| Some((*call, line.calls.get(*call)?)));
            let from = change.replaced_from.unwrap_or(Arrival::MAX);
            let mut rest = line.calls.from(from);
            for (arrival, request) in claimants.chain(rest.by_ref().take(AT_ONCE)) {
                let waiter = waiters.get_mut(&arrival);
                if waiter.is_some_and(|waiter| waiter.is_changed(id, request, seen)) {
                    due.insert(arrival);
                }
            }
            rest.next().map(|(arrival, _)| arrival)
        });
        if let Some(rest) = rest {
            self.changed.insert(id, Change { ids: HashSet::new(), replaced_from: Some(rest) });
        }
    }

    /// Returns whether a call may be next, or become so, until it is examined: it is due, or the first call parked with it is.
    fn may_be_served(&self, arrival: Arrival, now_us: i64) -> bool {
        let Some(Waiter { parked_at, place, .. }) = expected(self.waiters.get(&arrival), WAITS) else {
            return false;
        };
        let first = match place {
            Place::InOrder => self.lines.get(parked_at).and_then(|line| line.parked.first()),
            Place::Free => self.free_at(*parked_at).next(),
            Place::None | Place::Overridden => None,
        };
        self.changed.contains_key(parked_at)
            || once(arrival).chain(first).any(|call| self.is_due(&call, now_us))
    }

    /// Returns the calls that wait at a key for the end of a debt.
    fn free_at(&self, line: LineId) -> impl Iterator<Item = Arrival> + '_ {
        let free = self.apart.range((line, Place::Free, 0)..=(line, Place::Free, Arrival::MAX));
        free.map(|(_, _, arrival)| *arrival)
    }

    fn is_due(&self, arrival: &Arrival, now_us: i64) -> bool {
        let is_look_due = |waiter: &Waiter| waiter.look_us.is_some_and(|look_us| look_us <= now_us);
        self.due.contains(arrival) || self.waiters.get(arrival).is_some_and(is_look_due)
    }

    /// Parks a call where it is blocked. Of those in the order of a key only the first is examined when its time has come.
    fn park(&mut self, arrival: Arrival, Kept { at, place, until_us, is_outgrown }: Kept) {
        if self.waiters.get(&arrival).is_some_and(|waiter| (waiter.parked_at, waiter.place) != (at, place)) {
            self.unpark(arrival);
            self.park_anew(arrival, at, place);
        }
        let Some(waiter) = expected(self.waiters.get_mut(&arrival), WAITS) else { return };
        waiter.is_suspect = false;
        waiter.is_outgrown |= is_outgrown;
        let is_first = self.lines.get(&at).is_some_and(|line| line.is_first(arrival));
        let is_examined = place != Place::InOrder || is_first || waiter.is_outgrown;
        self.look_at(arrival, (is_examined && until_us != i64::MAX).then_some(until_us));
        self.miss_late(Some(at));
    }

    fn park_anew(&mut self, arrival: Arrival, at: LineId, place: Place) {
        let waiter = expected(self.waiters.get_mut(&arrival), WAITS);
        let (Some(waiter), Some(line)) = (waiter, expected(self.lines.get_mut(&at), NAMED)) else { return };
        (waiter.parked_at, waiter.place) = (at, place);
        match place {
            Place::InOrder => return line.park(arrival),
            _ => self.apart.insert((at, place, arrival)),
        };
        if place == Place::Overridden {
            for id in waiter.lines.clone() {
                self.lines.entry(id).and_modify(|line| line.hush(arrival));
                self.mark_line(id, false, None);
            }
        }
    }

    /// Takes a call out of the place where it waits.
    fn unpark(&mut self, arrival: Arrival) {
        let Some(waiter) = expected(self.waiters.get_mut(&arrival), WAITS) else { return };
        let (at, place) = (waiter.parked_at, std::mem::replace(&mut waiter.place, Place::None));
        if self.late.remove(&(at, arrival)) {
            self.deadlines.insert((waiter.deadline_us, arrival));
        }
        let next = match place {
            Place::None => None,
            Place::InOrder => self.lines.get_mut(&at).and_then(|line| line.unpark(arrival)),
            Place::Free | Place::Overridden => {
                self.apart.remove(&(at, place, arrival));
                self.free_at(at).next().filter(|_| place == Place::Free)
            }
        };
        self.due.extend(next);
        if place == Place::Overridden {
            let lines = self.waiters.get(&arrival).into_iter().flat_map(|waiter| &waiter.lines);
            for id in lines {
                self.lines.entry(*id).and_modify(|line| line.speak(arrival));
            }
        }
    }

    /// Lets the calls time out whose deadline passed while they were due at a key (or at any), unless they still are.
    fn miss_late(&mut self, at: Option<LineId>) {
        let first = at.and_then(|at| self.lines.get(&at)?.parked.first());
        if first.is_some_and(|first| self.may_be_served(first, i64::MIN)) {
            return;
        }
        let (from, to) = at.map_or((0, LineId::MAX), |at| (at, at));
        while let Some(&late) = self.late.range((from, 0)..=(to, Arrival::MAX)).next() {
            self.late.remove(&late);
            let deadline_us = self.waiters.get(&late.1).map(|waiter| waiter.deadline_us);
            self.deadlines.extend(deadline_us.map(|deadline_us| (deadline_us, late.1)));
        }
    }

    fn mark_line(&mut self, line: LineId, is_replaced: bool, id: Option<N>) {
        let first = self.lines.get(&line).and_then(|line| line.parked.first());
        let last = if is_replaced { Place::Overridden } else { Place::Free };
        let mut apart = self.apart.range((line, Place::Free, 0)..=(line, last, Arrival::MAX));
        // If no call waits there, changes of the bucket do not matter.
        if first.is_some() || apart.next().is_some() || id.is_some() {
            let change = self.change(line);
            change.ids.extend(id);
            change.replaced_from = is_replaced.then_some(0).or(change.replaced_from);
        }
    }

    fn change(&mut self, line: LineId) -> &mut Change<N> {
        let new = || Change { ids: HashSet::new(), replaced_from: None };
        self.changed.entry(line).or_insert_with(new)
    }

    fn look_at(&mut self, arrival: Arrival, look_us: Option<i64>) {
        let Some(waiter) = expected(self.waiters.get_mut(&arrival), WAITS) else { return };
        if let Some(before_us) = std::mem::replace(&mut waiter.look_us, look_us) {
            self.looks.remove(&(before_us, arrival));
        }
        self.looks.extend(look_us.map(|look_us| (look_us, arrival)));
    }
}

impl Waiter {
    /// Returns whether the changed bucket of a key may block the call no longer, or in another way.
    fn is_changed<N: Name>(&mut self, line: LineId, request: &Request<N>, seen: Option<&Seen<'_>>) -> bool {
        let is_parked = self.parked_at == line;
        let Some(seen) = seen else { return is_parked && self.place != Place::InOrder };
        let is_outgrown = request.outgrows(seen).is_some();
        self.is_suspect |= is_outgrown;
        is_outgrown || (is_parked && (self.place == Place::Overridden || request.is_satisfied(seen)))
    }
}

/// Frees memory of a map that was much larger: a call may name a thousand keys.
fn shrink<N: Name, V>(map: &mut HashMap<N, V>) {
    if map.capacity() > 64 && map.len() < map.capacity() / 4 {
        map.shrink_to_fit();
    }
}
