//! The calls that name one key, in order of arrival, and what each lacks of its bucket.

use super::order::{Arrival, Name, Order};
use crate::bucket::{Bucket, Change, Limit, MAX_TIME_US};
use crate::hold::Holds;
use crate::invariant::expected;
use crate::request::{Request, Share};
use std::collections::{BTreeSet, VecDeque};

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

    /// Returns the least level under any limit with a larger capacity.
    fn least_micro(&self) -> i64 {
        self.bucket.map_or(i64::MAX, |bucket| bucket.level_micro)
    }

    /// Returns until when a take of `micro` lacks tokens under `limit`.
    fn lack(&self, limit: &Limit, micro: i64) -> Lack {
        if micro > limit.capacity_micro() {
            return Lack::Always;
        }
        if micro <= self.least_micro() {
            return Lack::Nothing;
        }
        let wait_us = limit.wait_after_us(self.bucket, self.holds, Change::Keep, micro, self.now_us);
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

    /// Returns whether its hold is as large as wanted already.
    fn is_satisfied(&self, seen: &Seen<'_>) -> bool {
        self.id().is_some() && self.needs(seen).0 <= 0
    }

    fn lack(&self, seen: &Seen<'_>) -> Lack {
        // Most calls that name a bucket do not lack its tokens, and many may be examined.
        if self.wanted.micro() <= seen.least_micro().min(self.limit.capacity_micro()) {
            return Lack::Nothing;
        }
        let (needs_micro, ends_at_us) = self.needs(seen);
        if self.id().is_some() && needs_micro <= 0 {
            return Lack::Nothing;
        }
        match seen.lack(&self.limit, needs_micro) {
            // The hold ends before that, so the whole amount is needed.
            Lack::Until(at_us) if at_us >= ends_at_us => seen.lack(&self.limit, self.wanted.micro()),
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
    /// The most that one call wants.
    most_micro: i64,
    /// The calls that wait here. If the first is blocked, so are the rest.
    pub(super) parked: Order<N>,
    /// The calls of cost 0 that wait here while the bucket is in debt: no other call blocks them.
    pub(super) free: BTreeSet<Arrival>,
}

impl<N: Name> Line<N> {
    pub(super) fn new(db: Db, key: N) -> Self {
        let (parked, free) = (Order::new(), BTreeSet::new());
        Self { db, key, requests: VecDeque::with_capacity(1), sum_micro: 0, most_micro: 0, parked, free }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Returns the sum of what all calls want, in micro-tokens.
    pub(super) fn wanted_micro(&self) -> i64 {
        i64::try_from(self.sum_micro).unwrap_or(i64::MAX)
    }

    /// Adds the latest call. A call of cost 0 needs no share.
    pub(super) fn add(&mut self, arrival: Arrival, request: Request<N>, share: Option<Share<N>>) {
        let share = share.filter(|_| !is_free(&request));
        share.into_iter().for_each(|share| self.parked.share(arrival, share));
        let wanted_micro = request.wanted.micro();
        self.sum_micro = self.sum_micro.saturating_add(wanted_micro.into());
        self.most_micro = self.most_micro.max(wanted_micro);
        self.requests.push_back((arrival, request));
    }

    /// Removes a call. Returns the id of its hold.
    pub(super) fn remove(&mut self, arrival: Arrival) -> Option<N> {
        let (_, request) = self.requests.remove(self.place(arrival)?)?;
        self.parked.forget(arrival);
        let wanted_micro = request.wanted.micro();
        self.sum_micro = self.sum_micro.saturating_sub(wanted_micro.into());
        let mut others = self.requests.iter().map(|(_, request)| request.wanted.micro());
        if wanted_micro == self.most_micro && !others.clone().any(|other| other == wanted_micro) {
            self.most_micro = others.by_ref().max().unwrap_or(0);
        }
        request.id().cloned()
    }

    /// Lets a call wait here.
    pub(super) fn park(&mut self, arrival: Arrival) {
        match self.request(arrival).is_some_and(is_free) {
            true => drop(self.free.insert(arrival)),
            false => self.parked.park(arrival),
        }
    }

    /// Ends the wait of a call here. Returns the call that is now the first, if this one was.
    pub(super) fn unpark(&mut self, arrival: Arrival) -> Option<Arrival> {
        let was_first = self.is_first(arrival);
        if !self.free.remove(&arrival) {
            self.parked.unpark(arrival);
        }
        self.parked.first().filter(|_| was_first)
    }

    /// Returns whether no call waits here: then changes of the bucket do not matter.
    pub(super) fn is_idle(&self) -> bool {
        self.parked.first().is_none() && self.free.is_empty()
    }

    /// Returns whether a call is the first that waits here.
    pub(super) fn is_first(&self, arrival: Arrival) -> bool {
        self.parked.first() == Some(arrival)
    }

    /// Returns until when a call is blocked here: it lacks tokens, or it needs tokens that an earlier call lacks. An earlier
    /// call that no wait helps blocks no other.
    pub(super) fn keeps(&self, arrival: Arrival, seen: &Seen<'_>) -> Lack {
        let request = expected(self.request(arrival), "the call names the key");
        let Some(request) = request else { return Lack::Nothing };
        let own = request.lack(seen);
        if own != Lack::Nothing || !self.may_be_lacked(seen) || request.needs(seen).0 <= 0 {
            return own;
        }
        let earlier = self.earlier(arrival).map(|request| request.lack(seen));
        earlier.into_iter().find(|lack| matches!(lack, Lack::Until(_))).unwrap_or(Lack::Nothing)
    }

    /// Returns the requests of the calls that precede one. With shares the next call comes first, which most often lacks.
    fn earlier(&self, arrival: Arrival) -> impl Iterator<Item = &Request<N>> {
        let order = &self.parked;
        let has_shares = order.has_shares();
        let first =
            order.first().filter(|_| has_shares).and_then(|first| Some((first, self.request(first)?)));
        let others = self.requests.iter().map(|(other, request)| (*other, request));
        // Before the next one are only calls that wait elsewhere, or for the end of a debt.
        let are_all_here = order.len() == self.requests.len();
        let is_behind = !(are_all_here && self.is_first(arrival));
        let others = others.take_while(move |(other, _)| is_behind && (has_shares || *other < arrival));
        let precedes = move |other: Arrival| order.precedes(other, arrival);
        first.into_iter().chain(others).filter(move |(other, _)| precedes(*other)).map(|(_, request)| request)
    }

    /// Returns whether a call lacks tokens of the bucket, and waiting helps.
    pub(super) fn is_lacked(&self, seen: &Seen<'_>) -> bool {
        self.may_be_lacked(seen)
            && self.requests.iter().any(|(_, request)| matches!(request.lack(seen), Lack::Until(_)))
    }

    /// Returns false, cheaply, for most buckets that no call lacks.
    fn may_be_lacked(&self, seen: &Seen<'_>) -> bool {
        self.most_micro > seen.least_micro()
    }

    /// Returns until when each waiting call of cost 0 lacks the bucket.
    pub(super) fn lacks_of_free(&self, seen: &Seen<'_>) -> Vec<(Arrival, Lack)> {
        let lack = |arrival: &Arrival| Some((*arrival, self.request(*arrival)?.lack(seen)));
        self.free.iter().filter_map(lack).collect()
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

    /// Returns the calls that name the key.
    pub(super) fn arrivals(&self) -> impl Iterator<Item = Arrival> + '_ {
        self.requests.iter().map(|(arrival, _)| *arrival)
    }

    fn place(&self, arrival: Arrival) -> Option<usize> {
        self.requests.binary_search_by_key(&arrival, |(of, _)| *of).ok()
    }

    fn request(&self, arrival: Arrival) -> Option<&Request<N>> {
        self.requests.get(self.place(arrival)?).map(|(_, request)| request)
    }
}
