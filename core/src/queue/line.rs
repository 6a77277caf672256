//! The calls that name one key, and what each lacks of its bucket.

use super::calls::Calls;
use super::order::{Arrival, Name, Order};
use crate::bucket::decide::View;
use crate::bucket::{Bucket, Change, Counting, Expiring, Limit, MAX_TIME_US};
use crate::hold::Extension;
use crate::invariant::expected;
use crate::number::MAX_MICRO;
use crate::plan::Needs;
use crate::rate::Rate;
use crate::request::{Request, Share};
use std::cell::{Cell, OnceCell};

/// The number of a database.
pub type Db = i32;

/// The most calls that are compared with a bucket before a new call is denied.
pub(super) const MAX_ASKED: usize = 16;

/// A bucket at one moment.
#[allow(missing_debug_implementations)] // Holds may be a hundred thousand.
pub struct Seen<'bucket> {
    bucket: Option<Bucket>,
    extension: &'bucket Extension,
    pub(super) now_us: i64,
    /// What is free of a pool of 0: summed once, because many calls may be compared with the bucket.
    free_micro: OnceCell<i64>,
    /// The level under the last limit that was asked for.
    level: Cell<Option<(Limit, i64)>>,
}

/// Until when a call lacks tokens of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Nothing,
    /// It lacks tokens until that moment, in Unix microseconds, if no other call acts.
    Until(i64),
    /// An override, which ends at that moment, has a smaller capacity than the call wants.
    Overridden(i64),
    /// It lacks tokens, and no wait helps.
    Always,
}

/// How a call waits at the key where it is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Nowhere: it is new, or about to be parked at another key.
    None,
    /// In the order of the key.
    InOrder,
    /// For the end of a debt, wanting nothing: no other call blocks it.
    Free,
    /// For the end of an override: it blocks no other call.
    Overridden,
}

impl Expiring for &Seen<'_> {
    fn returned_micro(self, since_us: i64, now_us: i64) -> i64 {
        self.extension.returned_micro(since_us, now_us)
    }

    fn last_end_us(self) -> i64 {
        self.extension.last_end_us()
    }

    fn counting<'limit>(self, own: &'limit Limit, stored: Option<Bucket>, now_us: i64) -> Counting<'limit>
    where
        Self: 'limit,
    {
        let limit = self.limit(own);
        if !limit.is_pool() {
            return self.extension.counting(own, stored, now_us);
        }
        let level_micro = limit.capacity_micro().saturating_add(self.free_micro());
        let free = Bucket { level_micro, refilled_at_us: now_us };
        Counting { limit, bucket: Some(free), included_until_us: now_us }
    }

    fn is_suspended(self, now_us: i64) -> bool {
        self.extension.is_suspended(now_us)
    }

    fn limit_until_us(self, now_us: i64) -> i64 {
        self.extension.limit_until_us(now_us)
    }

    fn reaches_at_us(self, rate: &Rate, bucket: Bucket, included_until_us: i64, level_micro: i64) -> i64 {
        self.extension.reaches_at_us(rate, bucket, included_until_us, level_micro)
    }
}

impl<'bucket> Seen<'bucket> {
    /// Sees a key at `now_us` Unix microseconds: `None` is a full bucket.
    #[must_use]
    pub fn new(bucket: Option<Bucket>, extension: &'bucket Extension, now_us: i64) -> Self {
        Self { bucket, extension, now_us, free_micro: OnceCell::new(), level: Cell::new(None) }
    }

    /// Returns the limit that counts for a call that brings `own`: that, or an override's.
    fn limit<'a>(&'a self, own: &'a Limit) -> &'a Limit {
        self.extension.limit_at(own, self.now_us)
    }

    /// Returns what a call needs in addition to its hold.
    fn needs<N: Name>(&self, request: &Request<N>) -> Needs {
        request.needs(self.extension, self.now_us)
    }

    /// Returns what is not held of a pool of capacity 0.
    fn free_micro(&self) -> i64 {
        *self.free_micro.get_or_init(|| self.extension.holds.free_micro(0, self.now_us))
    }

    /// Returns the level for a call that brings the limit `own`, refilled to now.
    fn level_micro(&self, own: &Limit) -> i64 {
        if let Some((_, level_micro)) = self.level.get().filter(|(of, _)| of == own) {
            return level_micro;
        }
        let level_micro = View::new(own, self.bucket, self, self.now_us).current.level_micro;
        self.level.set(Some((*own, level_micro)));
        level_micro
    }

    /// Returns when an override ends that denies `micro`, in Unix microseconds.
    fn overridden_until_us(&self, own: &Limit, micro: i64) -> Option<i64> {
        let limit_override = self.extension.override_at(self.now_us)?;
        let denies = micro > self.limit(own).capacity_micro() || self.is_suspended(self.now_us);
        (denies && micro > 0).then_some(limit_override.ends_at_us)
    }

    /// Returns until when a take of `micro` lacks tokens, by a call that brings the limit `own`.
    fn lack(&self, own: &Limit, micro: i64) -> Lack {
        if let Some(ends_at_us) = self.overridden_until_us(own, micro) {
            return Lack::Overridden(ends_at_us);
        }
        let limit = self.limit(own);
        if micro > limit.capacity_micro() {
            return Lack::Always;
        }
        if micro <= self.level_micro(own) {
            return Lack::Nothing;
        }
        let wait_us = own.wait_after_us(self.bucket, self, Change::Keep, micro, self.now_us);
        match self.now_us.saturating_add(wait_us) {
            _ if wait_us <= 0 => Lack::Nothing,
            at_us if at_us > MAX_TIME_US && limit.is_pool() => Lack::Always,
            at_us => Lack::Until(at_us),
        }
    }
}

impl<N: Name> Request<N> {
    /// Returns whether its hold is as large as wanted already.
    pub(super) fn is_satisfied(&self, seen: &Seen<'_>) -> bool {
        self.id().is_some() && seen.needs(self).micro <= 0
    }

    /// Returns until when it lacks tokens of the bucket.
    pub(super) fn lack(&self, seen: &Seen<'_>) -> Lack {
        // Most calls that name a bucket do not lack its tokens, and many may be examined.
        let limit = &self.limit;
        if self.wanted.micro() <= seen.level_micro(limit) && !seen.is_suspended(seen.now_us) {
            return Lack::Nothing;
        }
        let Needs { micro: needs_micro, hold_ends_at_us } = seen.needs(self);
        if self.id().is_some() && needs_micro <= 0 {
            return Lack::Nothing;
        }
        match seen.lack(limit, needs_micro) {
            // The hold ends before that, so the whole amount is needed.
            Lack::Until(at_us) if at_us >= hold_ends_at_us => match seen.lack(limit, self.wanted.micro()) {
                Lack::Overridden(_) => Lack::Until(hold_ends_at_us),
                lack => lack,
            },
            lack => lack,
        }
    }

    /// Returns whether it wants more than the bucket can hold, as its hold had it before, and when that hold ends.
    pub(super) fn outgrows(&self, seen: &Seen<'_>) -> Option<i64> {
        let wanted_micro = self.wanted.micro();
        let is_larger = wanted_micro > self.limit.capacity_micro();
        (is_larger || seen.overridden_until_us(&self.limit, wanted_micro).is_some())
            .then(|| seen.needs(self).hold_ends_at_us)
    }
}

/// Returns the claim of a request: it lacks tokens while that is more than [`Line::least_micro`].
fn claim_micro<N>(request: &Request<N>) -> i64 {
    let wanted_micro = request.wanted.micro();
    if request.limit.is_pool() {
        return wanted_micro.saturating_sub(request.limit.capacity_micro());
    }
    wanted_micro
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
    pub(super) calls: Calls<N>,
    /// The calls that wait here. If the first is blocked, so are the rest.
    pub(super) parked: Order<N>,
    /// The sum of what all calls want, whatever they hold, and of those that keep others out.
    all_micro: i128,
    sum_micro: i128,
    /// The limit with the largest capacity of any call, and the smallest capacity.
    loosest: Limit,
    smallest_micro: i64,
    /// Set once two calls have had different rates.
    pub(super) is_mixed: bool,
}

impl<N: Name> Line<N> {
    pub(super) fn new(db: Db, request: &Request<N>) -> Self {
        let (key, loosest) = (request.key.clone(), request.limit);
        let (calls, parked) = (Calls::new(), Order::new());
        let (all_micro, sum_micro) = (0, 0);
        let (smallest_micro, is_mixed) = (loosest.capacity_micro(), false);
        Self { db, key, calls, parked, all_micro, sum_micro, loosest, smallest_micro, is_mixed }
    }

    /// Returns the sum of what the calls want that keep others out, or of all, in micro-tokens.
    pub(super) fn wanted_micro(&self, of_all: bool) -> i64 {
        i64::try_from(if of_all { self.all_micro } else { self.sum_micro }).unwrap_or(i64::MAX)
    }

    /// Adds the latest call. A call of cost 0 needs no share.
    pub(super) fn add(&mut self, arrival: Arrival, request: Request<N>, share: Option<Share<N>>) {
        let share = share.filter(|_| !is_free(&request));
        share.into_iter().for_each(|share| self.parked.share(arrival, share));
        self.smallest_micro = self.smallest_micro.min(request.limit.capacity_micro());
        self.is_mixed |= request.limit.rate() != self.loosest.rate();
        if request.limit.capacity_micro() > self.loosest.capacity_micro() {
            self.loosest = request.limit;
        }
        self.all_micro = self.all_micro.saturating_add(request.wanted.micro().into());
        self.calls.add(arrival, request);
        self.speak(arrival);
    }

    /// Removes a call, which does not wait here. Returns the id of its hold.
    pub(super) fn remove(&mut self, arrival: Arrival) -> Option<N> {
        self.hush(arrival);
        self.parked.forget(arrival);
        let request = self.calls.remove(arrival)?;
        self.all_micro = self.all_micro.saturating_sub(request.wanted.micro().into());
        request.id().cloned()
    }

    /// Lets a call that waits elsewhere keep later ones out.
    pub(super) fn speak(&mut self, arrival: Arrival) {
        let Some(request) = self.calls.get(arrival) else { return };
        let (wanted_micro, claim_micro) = (request.wanted.micro(), claim_micro(request));
        let is_free = is_free(request);
        if self.calls.claim(arrival, Some(claim_micro)) && !is_free {
            self.sum_micro = self.sum_micro.saturating_add(wanted_micro.into());
            self.parked.begin_aside(arrival);
        }
    }

    /// Lets a call that waits elsewhere keep no other out.
    pub(super) fn hush(&mut self, arrival: Arrival) {
        let Some(request) = self.calls.get(arrival) else { return };
        let (wanted_micro, is_free) = (request.wanted.micro(), is_free(request));
        if self.calls.claim(arrival, None) && !is_free {
            self.sum_micro = self.sum_micro.saturating_sub(wanted_micro.into());
            self.parked.end_aside(arrival);
        }
    }

    /// Lets a call wait here, in order.
    pub(super) fn park(&mut self, arrival: Arrival) {
        // First, because its tenant may wait by this call alone.
        self.parked.park(arrival);
        self.hush(arrival);
        let wanted_micro = self.wanted_by(arrival);
        self.sum_micro = self.sum_micro.saturating_add(wanted_micro.into());
    }

    /// Ends the wait of a call here. Returns the call that is now the first, if this one was.
    pub(super) fn unpark(&mut self, arrival: Arrival) -> Option<Arrival> {
        let was_first = self.is_first(arrival);
        let wanted_micro = self.wanted_by(arrival);
        self.sum_micro = self.sum_micro.saturating_sub(wanted_micro.into());
        self.speak(arrival);
        self.parked.unpark(arrival);
        self.parked.first().filter(|_| was_first)
    }

    /// Moves the virtual time of a call's tenant as if the call had been granted, if it is next here.
    pub(super) fn pass(&mut self, arrival: Arrival) {
        if !self.parked.has_shares() {
            return;
        }
        let is_before = |first| first != arrival && self.parked.precedes(first, arrival);
        let aside = self.calls.aside(self.parked.unnamed_before(arrival));
        let mut aside = aside.filter(|(call, request)| *call != arrival && !is_free(request));
        let is_kept = self.parked.first().is_some_and(is_before) || aside.next().is_some();
        let waits = self.parked.contains(arrival) || self.calls.is_aside(arrival);
        if waits && !is_kept && self.place_of(arrival) != Place::Free {
            self.parked.grant(arrival, self.wanted_by(arrival));
        }
    }

    /// Returns how a call waits here that lacks tokens, or that an earlier one blocks.
    pub(super) fn place_of(&self, arrival: Arrival) -> Place {
        match self.calls.get(arrival).is_some_and(is_free) {
            true => Place::Free,
            false => Place::InOrder,
        }
    }

    /// Returns whether a call has another rate than `limit`.
    pub(super) fn has_other_rates(&self, limit: &Limit) -> bool {
        self.is_mixed || self.loosest.rate() != limit.rate()
    }

    /// Returns whether a call is the first that waits here.
    pub(super) fn is_first(&self, arrival: Arrival) -> bool {
        self.parked.first() == Some(arrival)
    }

    /// Returns until when a call is blocked here: it lacks tokens, or it needs tokens that belong to an earlier call, which
    /// waits here or lacks them. Also returns when its hold ends, if it wants more than the bucket can hold.
    pub(super) fn keeps(&self, arrival: Arrival, seen: &Seen<'_>) -> (Lack, i64) {
        let request = expected(self.calls.get(arrival), "the call names the key");
        let Some(request) = request else { return (Lack::Nothing, i64::MAX) };
        let lack = match request.lack(seen) {
            Lack::Nothing if seen.needs(request).micro > 0 => self.keeps_behind(arrival, seen),
            own => own,
        };
        (lack, request.outgrows(seen).unwrap_or(i64::MAX))
    }

    fn keeps_behind(&self, arrival: Arrival, seen: &Seen<'_>) -> Lack {
        // Whatever keeps the first from being served, it is served before those behind it.
        let is_before = |first| first != arrival && self.parked.precedes(first, arrival);
        if self.parked.first().is_some_and(is_before) {
            return Lack::Until(i64::MAX);
        }
        let aside = self.calls.claiming(self.least_micro(seen), self.parked.unnamed_before(arrival));
        let mut lacks = aside.filter(|(call, _)| *call != arrival).map(|(_, request)| request.lack(seen));
        lacks.find(|lack| matches!(lack, Lack::Until(_))).unwrap_or(Lack::Nothing)
    }

    /// Returns the largest claim with which no call lacks tokens.
    fn least_micro(&self, seen: &Seen<'_>) -> i64 {
        let largest = Limit::pool(self.loosest.capacity_micro());
        let of_pools = || seen.level_micro(&largest).saturating_sub(largest.capacity_micro());
        match self.loosest.is_pool() {
            _ if self.is_mixed => seen.level_micro(&Limit::stopped(MAX_MICRO)).min(of_pools()),
            true => of_pools(),
            false => seen.level_micro(&self.loosest),
        }
    }

    /// Returns what is left for the calls that wait after a call under `limit` took `micro`.
    pub(super) fn left_micro(&self, seen: &Seen<'_>, limit: &Limit, micro: i64) -> i64 {
        // A smaller pool has less, and so has a bucket into which nothing flows.
        let smaller = Limit::pool(limit.capacity_micro().min(self.smallest_micro));
        let of_pool = || seen.level_micro(&smaller);
        let level_micro = match limit.is_pool() {
            _ if self.has_other_rates(limit) => {
                seen.level_micro(limit).min(seen.level_micro(&Limit::stopped(MAX_MICRO))).min(of_pool())
            }
            true => of_pool(),
            false => seen.level_micro(limit),
        };
        level_micro.saturating_sub(micro)
    }

    /// Returns whether a call that waits elsewhere lacks tokens of the bucket. If too many may, they are not asked.
    pub(super) fn is_lacked_aside(&self, seen: &Seen<'_>) -> bool {
        let may_lack = self.calls.claiming(self.least_micro(seen), Arrival::MAX);
        let mut asked = may_lack.enumerate();
        asked.any(|(asked, (_, request))| asked >= MAX_ASKED || matches!(request.lack(seen), Lack::Until(_)))
    }

    /// Returns whether a call that waits elsewhere may lack tokens after a take of `micro`.
    pub(super) fn would_be_lacked(&self, seen: &Seen<'_>, micro: i64) -> bool {
        let left_micro = self.least_micro(seen).saturating_sub(micro);
        self.calls.claiming(left_micro, Arrival::MAX).next().is_some()
    }

    /// Returns what a call needs in addition to its hold, in micro-tokens.
    pub(super) fn needs_micro(&self, arrival: Arrival, seen: &Seen<'_>) -> i64 {
        self.calls.get(arrival).map_or(0, |request| seen.needs(request).micro)
    }

    pub(super) fn wanted_by(&self, arrival: Arrival) -> i64 {
        self.calls.get(arrival).map_or(0, |request| request.wanted.micro())
    }
}
