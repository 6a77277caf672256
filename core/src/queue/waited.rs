//! One bucket that calls wait for.

use super::wants::{Wanted, Wants};
use super::{Arrival, Db, Levels, Part};
use crate::bucket::Limit;
use std::collections::{BTreeSet, HashMap};

#[derive(Debug)]
pub(super) struct Waited {
    pub(super) db: Db,
    pub(super) key: Box<[u8]>,
    /// What is wanted, by limit: nearly always there is one.
    wants: Vec<(Limit, Wants)>,
    /// Those that this bucket keeps.
    pub(super) parked: BTreeSet<Arrival>,
    /// The first of them, if the bucket is to be looked at.
    pub(super) marked: Option<Arrival>,
    /// When to look at it, in Unix microseconds.
    pub(super) look_us: Option<i64>,
    /// Those that want a hold, by its id.
    holds: HashMap<Box<[u8]>, Vec<(Arrival, Part)>>,
    /// The ids of those holds that are there already, and are to be larger. What they lack changes when they end.
    held: BTreeSet<Box<[u8]>>,
    /// The ids of those that may have been set or ended since.
    stale: Vec<Box<[u8]>>,
}

impl Waited {
    pub(super) fn new(db: Db, key: Box<[u8]>) -> Self {
        Self {
            db,
            key,
            wants: Vec::new(),
            parked: BTreeSet::new(),
            marked: None,
            look_us: None,
            holds: HashMap::new(),
            held: BTreeSet::new(),
            stale: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wants.is_empty()
    }

    pub(super) fn add(&mut self, arrival: Arrival, part: &Part, levels: &mut impl Levels) {
        match self.wants_under(&part.limit) {
            Some(wants) => wants.add(arrival, Some(part.wanted_micro)),
            None => {
                let mut wants = Wants::default();
                wants.add(arrival, Some(part.wanted_micro));
                self.wants.push((part.limit, wants));
            }
        }
        if let Some(id) = &part.id {
            self.holds.entry(id.clone()).or_default().push((arrival, part.clone()));
            self.refresh(arrival, part, levels);
        }
    }

    pub(super) fn remove(&mut self, arrival: Arrival, part: &Part) {
        if let Some(wants) = self.wants_under(&part.limit) {
            wants.remove(arrival);
        }
        self.wants.retain(|(_, wants)| !wants.is_empty());
        let Some(id) = &part.id else { return };
        let Some(waiters) = self.holds.get_mut(id) else { return };
        waiters.retain(|(waiter, _)| *waiter != arrival);
        if waiters.is_empty() {
            self.holds.remove(id);
            self.held.remove(id);
        }
    }

    /// Finds out anew what a call wants, if it wants a hold.
    pub(super) fn refresh(&mut self, arrival: Arrival, part: &Part, levels: &mut impl Levels) {
        let Some(id) = &part.id else { return };
        let held_micro = levels.held_micro(self.db, &self.key, id);
        if held_micro > 0 {
            self.held.insert(id.clone());
        } else {
            self.held.remove(id);
        }
        if let Some(wants) = self.wants_under(&part.limit) {
            let lacking_micro = part.wanted_micro.saturating_sub(held_micro);
            wants.set(arrival, (lacking_micro > 0).then_some(lacking_micro));
        }
    }

    /// Notes that a hold may have been set or ended.
    pub(super) fn mark_hold(&mut self, id: &[u8]) {
        if self.holds.contains_key(id) {
            self.stale.push(id.into());
        }
    }

    fn refresh_holds(&mut self, levels: &mut impl Levels) {
        let stale = std::mem::take(&mut self.stale);
        for id in self.held.clone().into_iter().chain(stale) {
            for (arrival, part) in self.holds.get(&id).cloned().into_iter().flatten() {
                self.refresh(arrival, &part, levels);
            }
        }
    }

    /// Until when a call has to wait here, in Unix microseconds; `None` if neither it nor an earlier one lacks anything.
    pub(super) fn kept_until_us(&mut self, arrival: Arrival, levels: &mut impl Levels) -> Option<i64> {
        self.refresh_holds(levels);
        let until = |wants: &Wants| wants.until(arrival);
        self.lacking(until, levels).max()
    }

    /// What all calls want of it together, in micro-tokens, if one of them lacks it.
    pub(super) fn wanted_before(&mut self, levels: &mut impl Levels) -> Option<i64> {
        self.refresh_holds(levels);
        let is_lacked = self.lacking(Wants::all, levels).next().is_some();
        let sum_micro =
            self.wants.iter().map(|(_, wants)| wants.all().sum_micro).fold(0, i64::saturating_add);
        is_lacked.then_some(sum_micro)
    }

    /// Until when something lacks, of each limit.
    fn lacking<'a>(
        &'a self,
        wanted: impl Fn(&Wants) -> Wanted + 'a,
        levels: &'a mut impl Levels,
    ) -> impl Iterator<Item = i64> + 'a {
        self.wants.iter().filter_map(move |(limit, wants)| {
            let most_micro = wanted(wants).most_micro;
            let is_any = most_micro >= 0;
            is_any.then(|| levels.lacks_until_us(self.db, &self.key, limit, most_micro)).flatten()
        })
    }

    fn wants_under(&mut self, limit: &Limit) -> Option<&mut Wants> {
        self.wants.iter_mut().find(|(own, _)| own == limit).map(|(_, wants)| wants)
    }
}
