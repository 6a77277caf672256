//! The calls that name one key, in order of arrival, and what each lacks of its bucket.

use super::order::{Arrival, Name, Order};
use crate::bucket::decide::View;
use crate::bucket::{Bucket, Change, Expiring, Limit, MAX_TIME_US};
use crate::hold::{Holds, Override};
use crate::invariant::expected;
use crate::request::{Request, Share};
use std::collections::VecDeque;

/// The number of a database.
pub type Db = i32;

/// A bucket at one moment.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // Holds may be a hundred thousand.
pub struct Seen<'bucket> {
    bucket: Option<Bucket>,
    holds: Option<&'bucket Holds>,
    pub(super) now_us: i64,
}

/// Until when a call lacks tokens of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Nothing,
    /// It lacks tokens until that moment, in Unix microseconds, if no other call acts.
    Until(i64),
    /// It lacks tokens, and no wait helps.
    Always,
}

impl<'bucket> Seen<'bucket> {
    /// Sees a key at `now_us` Unix microseconds: `None` is a full bucket, or no holds.
    #[must_use]
    pub fn new(bucket: Option<Bucket>, holds: Option<&'bucket Holds>, now_us: i64) -> Self {
        Self { bucket, holds, now_us }
    }

    pub(super) fn has_holds(&self) -> bool {
        self.holds.is_some_and(|holds| !holds.is_empty())
    }

    /// Returns the level for a call that brings the limit `own`, refilled to now.
    fn level_micro(&self, own: &Limit) -> i64 {
        View::new(own, self.bucket, self.holds, self.now_us).current.level_micro
    }

    fn limit_override(&self) -> Option<&Override> {
        self.holds.and_then(|holds| holds.override_at(self.now_us))
    }

    /// Returns the least level under any limit with a rate and a larger capacity.
    fn least_micro(&self) -> i64 {
        if self.holds.is_some_and(|holds| holds.limit_override.is_some()) {
            return i64::MIN;
        }
        self.bucket.map_or(i64::MAX, |bucket| bucket.level_micro)
    }

    /// Returns until when a take of `micro` lacks tokens, by a call that brings the limit `own`.
    fn lack(&self, own: &Limit, micro: i64) -> Lack {
        let limit = self.holds.counting(own, None, self.now_us).limit;
        if micro > limit.capacity_micro() || (micro > 0 && self.holds.is_suspended(self.now_us)) {
            return self.limit_override().map_or(Lack::Always, |stored| Lack::Until(stored.ends_at_us));
        }
        if micro <= self.least_micro() && !limit.is_pool() {
            return Lack::Nothing;
        }
        let wait_us = own.wait_after_us(self.bucket, self.holds, Change::Keep, micro, self.now_us);
        match self.now_us.saturating_add(wait_us) {
            _ if wait_us <= 0 => Lack::Nothing,
            at_us if at_us > MAX_TIME_US && limit.is_pool() => Lack::Always,
            at_us => Lack::Until(at_us),
        }
    }
}

impl<N: Name> Request<N> {
    /// Returns the micro-tokens that it needs in addition to its hold, and when that hold ends.
    fn needs(&self, seen: &Seen<'_>) -> (i64, i64) {
        let held = || seen.holds?.outstanding_of(self.id()?.borrow(), seen.now_us);
        let (held_micro, ends_at_us) =
            held().map_or((0, i64::MAX), |hold| (hold.amount_micro, hold.ends_at_us));
        (self.wanted.micro().saturating_sub(held_micro), ends_at_us)
    }

    /// Returns what it wants of a level; the largest number for a pool, which has none.
    fn level_wanted(&self) -> i64 {
        if self.limit.is_pool() {
            i64::MAX
        } else {
            self.wanted.micro()
        }
    }

    /// Returns whether its hold is as large as wanted already.
    fn is_satisfied(&self, seen: &Seen<'_>) -> bool {
        self.id().is_some() && self.needs(seen).0 <= 0
    }

    fn lack(&self, seen: &Seen<'_>) -> Lack {
        // Most calls that name a bucket do not lack its tokens, and many may be examined.
        let limit = &self.limit;
        if self.level_wanted() <= seen.least_micro().min(limit.capacity_micro()) {
            return Lack::Nothing;
        }
        let (needs_micro, ends_at_us) = self.needs(seen);
        if self.id().is_some() && needs_micro <= 0 {
            return Lack::Nothing;
        }
        match seen.lack(limit, needs_micro) {
            // The hold ends before that, so the whole amount is needed.
            Lack::Until(at_us) if at_us >= ends_at_us => seen.lack(limit, self.wanted.micro()),
            lack => lack,
        }
    }
}

/// Returns whether no other call blocks a request: it wants nothing.
fn is_free<N>(request: &Request<N>) -> bool {
    request.wanted.micro() == 0 && request.id().is_none()
}

/// The calls that name one key.
#[derive(Clone, Debug)]
pub(super) struct Line<N> {
    pub(super) db: Db,
    pub(super) key: N,
    /// In order of arrival. A deque, because most calls leave at the front, and a call may name a thousand keys alone.
    requests: VecDeque<(Arrival, Request<N>)>,
    /// The sum of what they want, whatever they hold.
    sum_micro: i128,
    /// The least capacity that any of them came with.
    smallest_micro: i64,
    /// The calls that wait here. If the first is blocked, so are the rest.
    pub(super) parked: Order<N>,
    /// The other calls, in order of arrival, and what each wants.
    aside: Vec<(Arrival, i64)>,
}

impl<N: Name> Line<N> {
    pub(super) fn new(db: Db, key: N) -> Self {
        let (requests, aside) = (VecDeque::with_capacity(1), Vec::with_capacity(1));
        Self { db, key, requests, sum_micro: 0, smallest_micro: i64::MAX, parked: Order::new(), aside }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the sum of what all calls want, in micro-tokens.
    pub(super) fn wanted_micro(&self) -> i64 {
        i64::try_from(self.sum_micro).unwrap_or(i64::MAX)
    }

    /// Returns whether the bucket has what all calls want after a new one took `micro` under `limit`.
    pub(super) fn is_plenty(&self, seen: &Seen<'_>, limit: &Limit, micro: i64) -> bool {
        // A smaller pool has less.
        let smaller = Limit::pool(limit.capacity_micro().min(self.smallest_micro));
        let level_micro = seen.level_micro(if limit.is_pool() { &smaller } else { limit });
        i128::from(level_micro.saturating_sub(micro)) >= self.sum_micro
    }

    /// Adds the latest call. A call of cost 0 needs no share.
    pub(super) fn add(&mut self, arrival: Arrival, request: Request<N>, share: Option<Share<N>>) {
        let share = share.filter(|_| !is_free(&request));
        share.into_iter().for_each(|share| self.parked.share(arrival, share));
        let wanted_micro = request.wanted.micro();
        self.sum_micro = self.sum_micro.saturating_add(wanted_micro.into());
        self.smallest_micro = self.smallest_micro.min(request.limit.capacity_micro());
        self.aside.push((arrival, request.level_wanted()));
        self.requests.push_back((arrival, request));
    }

    /// Removes a call. Returns the id of its hold.
    pub(super) fn remove(&mut self, arrival: Arrival) -> Option<N> {
        let (_, request) = self.requests.remove(self.place(arrival)?)?;
        self.parked.forget(arrival);
        self.sum_micro = self.sum_micro.saturating_sub(request.wanted.micro().into());
        if let Ok(place) = self.aside_place(arrival) {
            self.aside.remove(place);
        }
        request.id().cloned()
    }

    /// Lets a call wait here, which is not [free](Self::is_free).
    pub(super) fn park(&mut self, arrival: Arrival) {
        if let Ok(place) = self.aside_place(arrival) {
            self.aside.remove(place);
        }
        self.parked.park(arrival);
    }

    /// Ends the wait of a call here. Returns the call that is now the first, if this one was.
    pub(super) fn unpark(&mut self, arrival: Arrival) -> Option<Arrival> {
        let was_first = self.is_first(arrival);
        self.parked.unpark(arrival);
        if let Err(place) = self.aside_place(arrival) {
            let level_micro = self.request(arrival).map_or(0, Request::level_wanted);
            self.aside.insert(place, (arrival, level_micro));
        }
        self.parked.first().filter(|_| was_first)
    }

    /// Moves the virtual time of the next call's tenant as if it had been granted, if that is the call.
    pub(super) fn pass(&mut self, arrival: Arrival) {
        if self.parked.has_shares() && self.is_first(arrival) {
            self.parked.grant(arrival, self.wanted_by(arrival));
        }
    }

    /// Returns whether no other call blocks a call: it wants nothing, and waits for the end of a debt.
    pub(super) fn is_free(&self, arrival: Arrival) -> bool {
        self.request(arrival).is_some_and(is_free)
    }

    /// Returns whether a call is the first that waits here.
    pub(super) fn is_first(&self, arrival: Arrival) -> bool {
        self.parked.first() == Some(arrival)
    }

    /// Returns until when a call is blocked here: it lacks tokens, or it needs tokens that belong to an earlier call, which
    /// waits here or lacks them. An earlier call that no wait helps blocks no other.
    pub(super) fn keeps(&self, arrival: Arrival, seen: &Seen<'_>) -> Lack {
        let request = expected(self.request(arrival), "the call names the key");
        let Some(request) = request else { return Lack::Nothing };
        let own = request.lack(seen);
        if own != Lack::Nothing || request.needs(seen).0 <= 0 {
            return own;
        }
        // Whatever keeps the first from being served, it is served before those behind it.
        let is_before = |first| first != arrival && self.parked.precedes(first, arrival);
        if self.parked.first().is_some_and(is_before) {
            return Lack::Until(i64::MAX);
        }
        self.lack_aside(self.parked.unnamed_before(arrival), seen)
    }

    /// Returns until when a call that waits elsewhere lacks tokens of the bucket, if it came before `before`.
    fn lack_aside(&self, before: Arrival, seen: &Seen<'_>) -> Lack {
        let earlier = self.aside.iter().take_while(|(other, _)| *other < before);
        let may_lack = earlier.filter(|(_, wanted_micro)| *wanted_micro > seen.least_micro());
        let mut lacks = may_lack.map(|(other, _)| self.lack(*other, seen));
        lacks.find(|lack| matches!(lack, Lack::Until(_))).unwrap_or(Lack::Nothing)
    }

    /// Returns whether a waiting call lacks tokens of the bucket, and waiting helps, or waits here to be examined.
    pub(super) fn is_lacked(&self, seen: &Seen<'_>) -> bool {
        self.parked.first().is_some() || self.lack_aside(Arrival::MAX, seen) != Lack::Nothing
    }

    /// Returns until when a call lacks tokens of the bucket.
    pub(super) fn lack(&self, arrival: Arrival, seen: &Seen<'_>) -> Lack {
        self.request(arrival).map_or(Lack::Nothing, |request| request.lack(seen))
    }

    /// Returns whether a call waits here although its hold is as large as wanted, so that nothing blocks it.
    pub(super) fn waits_satisfied(&self, arrival: Arrival, seen: &Seen<'_>) -> bool {
        self.parked.contains(arrival)
            && self.request(arrival).is_some_and(|request| request.is_satisfied(seen))
    }

    /// Returns what a call needs in addition to its hold, in micro-tokens.
    pub(super) fn needs_micro(&self, arrival: Arrival, seen: &Seen<'_>) -> i64 {
        self.request(arrival).map_or(0, |request| request.needs(seen).0)
    }

    /// Returns the calls that name the key and wait elsewhere, or for the end of a debt.
    pub(super) fn aside(&self) -> impl Iterator<Item = Arrival> + '_ {
        self.aside.iter().map(|(arrival, _)| *arrival)
    }

    fn wanted_by(&self, arrival: Arrival) -> i64 {
        self.request(arrival).map_or(0, |request| request.wanted.micro())
    }

    fn aside_place(&self, arrival: Arrival) -> Result<usize, usize> {
        self.aside.binary_search_by_key(&arrival, |(of, _)| *of)
    }

    fn place(&self, arrival: Arrival) -> Option<usize> {
        self.requests.binary_search_by_key(&arrival, |(of, _)| *of).ok()
    }

    fn request(&self, arrival: Arrival) -> Option<&Request<N>> {
        self.requests.get(self.place(arrival)?).map(|(_, request)| request)
    }
}
