//! The calls that name one key, in order of arrival, and what each of them lacks of its bucket.

use super::{Arrival, Db, Name, Part};
use crate::bucket::{Bucket, Change, Limit, MAX_TIME_US};
use crate::hold::Holds;
use crate::invariant::expected;
use std::collections::{BTreeSet, VecDeque};

/// A bucket at one moment.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations)] // Holds may be a hundred thousand.
pub struct Seen<'bucket> {
    bucket: Option<Bucket>,
    holds: Option<&'bucket Holds>,
    pub(super) now_us: i64,
}

/// What a call lacks of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    Nothing,
    /// Something until that moment, in Unix microseconds, if no other call acts.
    Until(i64),
    /// Something that no wait brings.
    Always,
}

impl<'bucket> Seen<'bucket> {
    /// Returns what a key holds at `now_us` Unix microseconds: `None` is a full bucket, or no holds.
    #[must_use]
    pub fn new(bucket: Option<Bucket>, holds: Option<&'bucket Holds>, now_us: i64) -> Self {
        Self { bucket, holds, now_us }
    }

    pub(super) fn has_holds(&self) -> bool {
        self.holds.is_some_and(|holds| !holds.is_empty())
    }

    /// Returns the least that the bucket has under every limit with a larger capacity.
    fn least_micro(&self) -> i64 {
        self.bucket.map_or(i64::MAX, |bucket| bucket.level_micro)
    }

    /// Returns what a taker of `micro` lacks under `limit`.
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

impl<N: Name> Part<N> {
    /// Returns micro-tokens that it wants in addition to its hold, and when that hold ends.
    fn needs(&self, seen: &Seen<'_>) -> (i64, i64) {
        let held = || seen.holds?.outstanding_of(self.id.as_ref()?.borrow(), seen.now_us);
        let (held_micro, ends_at_us) =
            held().map_or((0, i64::MAX), |hold| (hold.amount_micro, hold.ends_at_us));
        (self.wanted_micro.saturating_sub(held_micro), ends_at_us)
    }

    /// Returns whether it is a hold that is as large as wanted already.
    fn is_satisfied(&self, seen: &Seen<'_>) -> bool {
        self.id.is_some() && self.needs(seen).0 <= 0
    }

    fn lack(&self, seen: &Seen<'_>) -> Lack {
        // Most calls that name a bucket do not lack it, and many may be looked at.
        if self.wanted_micro <= seen.least_micro().min(self.limit.capacity_micro()) {
            return Lack::Nothing;
        }
        let (needs_micro, ends_at_us) = self.needs(seen);
        if self.id.is_some() && needs_micro <= 0 {
            return Lack::Nothing;
        }
        match seen.lack(&self.limit, needs_micro) {
            // The hold ends before that, and all of it has to be had anew.
            Lack::Until(at_us) if at_us >= ends_at_us => seen.lack(&self.limit, self.wanted_micro),
            lack => lack,
        }
    }
}

/// The calls that name one key.
#[derive(Clone, Debug)]
pub(super) struct Line<N> {
    pub(super) db: Db,
    pub(super) key: N,
    /// In order of arrival. A deque, because most calls leave at the front, and a call may name a thousand keys of its own.
    parts: VecDeque<(Arrival, Part<N>)>,
    /// What all of them want, whatever they hold.
    sum_micro: i128,
    /// The most that one of them wants.
    most_micro: i64,
    /// Those that wait here. Whatever keeps the first of them keeps all of them.
    pub(super) parked: BTreeSet<Arrival>,
    /// Those of cost 0 that wait here while the bucket is in debt: no other call keeps them.
    pub(super) free: BTreeSet<Arrival>,
}

impl<N: Name> Line<N> {
    pub(super) fn new(db: Db, key: N) -> Self {
        let (parked, free) = (BTreeSet::new(), BTreeSet::new());
        Self { db, key, parts: VecDeque::with_capacity(1), sum_micro: 0, most_micro: 0, parked, free }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns what all calls want together, in micro-tokens.
    pub(super) fn wanted_micro(&self) -> i64 {
        i64::try_from(self.sum_micro).unwrap_or(i64::MAX)
    }

    /// Adds a call that came later than all others.
    pub(super) fn add(&mut self, arrival: Arrival, part: Part<N>) {
        self.sum_micro = self.sum_micro.saturating_add(part.wanted_micro.into());
        self.most_micro = self.most_micro.max(part.wanted_micro);
        self.parts.push_back((arrival, part));
    }

    /// Removes a call. Returns the id of its hold.
    pub(super) fn remove(&mut self, arrival: Arrival) -> Option<N> {
        let (_, Part { wanted_micro, id, .. }) = self.parts.remove(self.place(arrival)?)?;
        self.sum_micro = self.sum_micro.saturating_sub(wanted_micro.into());
        let mut others = self.parts.iter().map(|(_, part)| part.wanted_micro);
        if wanted_micro == self.most_micro && !others.clone().any(|other| other == wanted_micro) {
            self.most_micro = others.by_ref().max().unwrap_or(0);
        }
        id
    }

    /// Lets a call wait here.
    pub(super) fn park(&mut self, arrival: Arrival) {
        match self.part(arrival).is_some_and(|part| part.wanted_micro == 0 && part.id.is_none()) {
            true => self.free.insert(arrival),
            false => self.parked.insert(arrival),
        };
    }

    /// Lets a call wait here no longer. Returns the one that is the first in its place.
    pub(super) fn unpark(&mut self, arrival: Arrival) -> Option<Arrival> {
        let was_first = self.is_first(arrival);
        self.parked.remove(&arrival);
        self.free.remove(&arrival);
        self.parked.first().copied().filter(|_| was_first)
    }

    /// Returns whether no call waits here: then it does not matter what the bucket holds.
    pub(super) fn is_idle(&self) -> bool {
        self.parked.is_empty() && self.free.is_empty()
    }

    /// Returns whether a call is the first of those that wait here.
    pub(super) fn is_first(&self, arrival: Arrival) -> bool {
        self.parked.first() == Some(&arrival)
    }

    /// Returns what keeps a call here: what it lacks, or what an earlier call lacks if it wants something too. A call
    /// that lacks something for ever keeps no other.
    pub(super) fn keeps(&self, arrival: Arrival, seen: &Seen<'_>) -> Lack {
        let Some(part) = expected(self.part(arrival), "the call names the key") else { return Lack::Nothing };
        let own = part.lack(seen);
        if own != Lack::Nothing || !self.may_be_lacked(seen) || part.needs(seen).0 <= 0 {
            return own;
        }
        let earlier = self.parts.iter().take_while(|(earlier, _)| *earlier < arrival);
        let lacks = earlier.map(|(_, part)| part.lack(seen));
        lacks.into_iter().find(|lack| matches!(lack, Lack::Until(_))).unwrap_or(Lack::Nothing)
    }

    /// Returns whether a call lacks the bucket, and waiting helps it.
    pub(super) fn is_lacked(&self, seen: &Seen<'_>) -> bool {
        self.may_be_lacked(seen)
            && self.parts.iter().any(|(_, part)| matches!(part.lack(seen), Lack::Until(_)))
    }

    /// Returns false for most buckets that waiting calls name but none of them lacks.
    fn may_be_lacked(&self, seen: &Seen<'_>) -> bool {
        self.most_micro > seen.least_micro()
    }

    /// Returns what each of the calls of cost 0 lacks that wait here.
    pub(super) fn lacks_of_free(&self, seen: &Seen<'_>) -> Vec<(Arrival, Lack)> {
        let lack = |arrival: &Arrival| Some((*arrival, self.part(*arrival)?.lack(seen)));
        self.free.iter().filter_map(lack).collect()
    }

    /// Returns whether a call waits here whose hold is as large as wanted, so that nothing keeps it.
    pub(super) fn waits_satisfied(&self, arrival: Arrival, seen: &Seen<'_>) -> bool {
        self.parked.contains(&arrival) && self.part(arrival).is_some_and(|part| part.is_satisfied(seen))
    }

    /// Returns the calls that name the key.
    pub(super) fn arrivals(&self) -> impl Iterator<Item = Arrival> + '_ {
        self.parts.iter().map(|(arrival, _)| *arrival)
    }

    fn place(&self, arrival: Arrival) -> Option<usize> {
        self.parts.binary_search_by_key(&arrival, |(of, _)| *of).ok()
    }

    fn part(&self, arrival: Arrival) -> Option<&Part<N>> {
        self.parts.get(self.place(arrival)?).map(|(_, part)| part)
    }
}
