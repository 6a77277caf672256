//! One bucket that calls wait for.

use super::wants::{Wanted, Wants};
use super::{Arrival, Db, Levels, Part};
use crate::bucket::Limit;
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Clone, Debug)]
pub(super) struct Waited {
    pub(super) db: Db,
    pub(super) key: Box<[u8]>,
    /// Whether it is for calls of cost 0.
    pub(super) is_free: bool,
    /// What is wanted, by limit: nearly always there is one.
    wants: Vec<(Limit, Wants)>,
    /// Those that this bucket keeps.
    pub(super) parked: BTreeSet<Arrival>,
    /// The first of them, if the bucket is to be looked at.
    pub(super) marked: Option<Arrival>,
    /// When to look at it, in Unix microseconds.
    pub(super) look_us: Option<i64>,
    /// Those that want a hold, by its id.
    claims: HashMap<Box<[u8]>, Claims>,
    /// When the holds end that are there already and are to be larger: then those who claim them lack more.
    ends: BTreeSet<(i64, Box<[u8]>)>,
    /// The ids of those that may have been set or ended since.
    stale: BTreeSet<Box<[u8]>>,
}

/// The calls that want a hold of the same id.
#[derive(Clone, Debug, Default)]
struct Claims {
    /// Under which limit, and how large in micro-tokens.
    by: BTreeMap<Arrival, (Limit, i64)>,
    held: Held,
}

/// What is held under an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Micro-tokens; 0 if there is no such hold.
    pub micro: i64,
    /// Until when, in Unix microseconds.
    pub until_us: i64,
}

impl Held {
    /// What a hold lacks that is to be so large; `None` if that is nothing, or more than there can ever be.
    fn lacking_micro(self, wanted_micro: i64, limit: &Limit) -> Option<i64> {
        let lacking_micro = wanted_micro.saturating_sub(self.micro);
        (1..=limit.capacity_micro()).contains(&lacking_micro).then_some(lacking_micro)
    }
}

impl Waited {
    pub(super) fn new(db: Db, key: Box<[u8]>, is_free: bool) -> Self {
        Self {
            db,
            key,
            is_free,
            wants: Vec::new(),
            parked: BTreeSet::new(),
            marked: None,
            look_us: None,
            claims: HashMap::new(),
            ends: BTreeSet::new(),
            stale: BTreeSet::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.wants.is_empty() && self.parked.is_empty()
    }

    pub(super) fn add(&mut self, arrival: Arrival, part: &Part) {
        let mut wanted_micro = Some(part.wanted_micro);
        if let Some(id) = &part.id {
            let claims = self.claims.entry(id.clone()).or_default();
            claims.by.insert(arrival, (part.limit, part.wanted_micro));
            wanted_micro = claims.held.lacking_micro(part.wanted_micro, &part.limit);
            self.stale.insert(id.clone());
        }
        match self.wants_under(&part.limit) {
            Some(wants) => wants.add(arrival, wanted_micro),
            None => {
                let mut wants = Wants::default();
                wants.add(arrival, wanted_micro);
                self.wants.push((part.limit, wants));
            }
        }
    }

    pub(super) fn remove(&mut self, arrival: Arrival, part: &Part) {
        if let Some(wants) = self.wants_under(&part.limit) {
            wants.remove(arrival);
        }
        self.wants.retain(|(_, wants)| !wants.is_empty());
        let Some(id) = &part.id else { return };
        let Some(claims) = self.claims.get_mut(id) else { return };
        claims.by.remove(&arrival);
        if !claims.by.is_empty() {
            // It may have been granted.
            self.stale.insert(id.clone());
        } else if let Some(claims) = self.claims.remove(id) {
            self.ends.remove(&(claims.held.until_us, id.clone()));
            self.stale.remove(id);
        }
    }

    /// Notes that a hold may have been set or ended.
    pub(super) fn mark_hold(&mut self, id: &[u8]) {
        if self.claims.contains_key(id) {
            self.stale.insert(id.into());
        }
    }

    /// The same of all holds.
    pub(super) fn mark_holds(&mut self) {
        self.stale.extend(self.claims.keys().cloned());
    }

    /// Finds out anew what those lack who claim a hold that has changed. Returns those that are parked here and want
    /// nothing more of the bucket.
    pub(super) fn refresh(&mut self, levels: &mut impl Levels) -> Vec<Arrival> {
        if self.claims.is_empty() {
            return Vec::new();
        }
        while let Some((_, id)) = self.ends.first().filter(|(end_us, _)| *end_us <= levels.now_us()) {
            let id = id.clone();
            self.ends.pop_first();
            self.stale.insert(id);
        }
        let mut freed = Vec::new();
        for id in std::mem::take(&mut self.stale) {
            self.refresh_claims(id, levels, &mut freed);
        }
        freed
    }

    fn refresh_claims(&mut self, id: Box<[u8]>, levels: &mut impl Levels, freed: &mut Vec<Arrival>) {
        let held = levels.held(self.db, &self.key, &id);
        let Some(claims) = self.claims.get_mut(&id) else { return };
        let before = std::mem::replace(&mut claims.held, held);
        let changed = claims.by.iter().filter(|_| held.micro != before.micro);
        for (arrival, (limit, wanted_micro)) in changed {
            let lacking_micro = held.lacking_micro(*wanted_micro, limit);
            if let Some((_, wants)) = self.wants.iter_mut().find(|(own, _)| own == limit) {
                wants.set(*arrival, lacking_micro);
            }
            if lacking_micro.is_none() && self.parked.contains(arrival) {
                freed.push(*arrival);
            }
        }
        self.ends.remove(&(before.until_us, id.clone()));
        if held.micro > 0 {
            self.ends.insert((held.until_us, id));
        }
    }

    /// Whether a call wants anything of it at present.
    pub(super) fn is_wanted_by(&self, arrival: Arrival) -> bool {
        self.wants.iter().any(|(_, wants)| wants.is_wanted_by(arrival))
    }

    /// Until when a call or an earlier one lacks it, in Unix microseconds; `None` if none of them does.
    pub(super) fn lacked_until_us(&self, arrival: Arrival, levels: &mut impl Levels) -> Option<i64> {
        let until = |wants: &Wants| wants.until(arrival);
        self.lacking(until, levels).max()
    }

    /// Whether one of all calls lacks it.
    pub(super) fn is_lacked(&self, levels: &mut impl Levels) -> bool {
        self.lacking(Wants::all, levels).next().is_some()
    }

    /// What all calls want of it together, in micro-tokens.
    pub(super) fn wanted_micro(&self) -> i64 {
        self.wants.iter().map(|(_, wants)| wants.all().sum_micro).fold(0, i64::saturating_add)
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
