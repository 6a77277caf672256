//! The holds of a bucket, in the order in which they end.

use super::item::Hold;
use crate::bucket::{Bucket, DEEPEST_DEBT_MICRO};
use crate::rate::Rate;
use std::collections::{HashMap, VecDeque};
use std::mem::size_of;
use std::sync::Arc;

/// The largest sum of returned holds: it fills any bucket from the deepest debt, and is small enough to be added to a level.
const MOST_RETURNED: i64 = 1 << 61;

/// The most ids that are compared one by one, which is cheaper than a table.
const FEW: usize = 8;

/// The number of holds that a search for a level sums at once.
const BLOCK: usize = 64;

/// The holds of one bucket, sorted by end, then by id.
///
/// New holds mostly end last, and holds that end or are renewed are near the front: both ends of the list are cheap to
/// change.
#[derive(Clone, Default)]
pub struct Holds {
    list: VecDeque<Hold>,
    /// The end of the hold with an id, by which it is found in the list; `None` while there are few holds.
    #[expect(clippy::box_collection, reason = "most buckets need no table, and pay a pointer for it")]
    ends_us: Option<Box<HashMap<Arc<[u8]>, i64>>>,
    total: Sum,
    /// The sum of the lengths of all ids.
    pub(super) id_bytes: usize,
}

/// Micro-tokens of many holds, which may exceed 64 bits. Aligned to 64 bits, because servers align their blocks to no more.
#[derive(Clone, Copy, Default)]
#[repr(C, packed(8))]
struct Sum(i128);

impl Sum {
    fn micro(self) -> i128 {
        self.0
    }

    fn add(&mut self, micro: i128) {
        *self = Self(self.micro().saturating_add(micro));
    }

    fn subtract(&mut self, micro: i128) {
        *self = Self(self.micro().saturating_sub(micro));
    }
}

impl Holds {
    /// No holds.
    pub(super) const NONE: Self = Self { list: VecDeque::new(), ends_us: None, total: Sum(0), id_bytes: 0 };

    /// Counts all holds, even ended ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether there are no holds.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Counts the holds that have ended at `now_us`.
    #[inline]
    #[must_use]
    pub fn ended(&self, now_us: i64) -> usize {
        if self.first_end_us() > now_us {
            return 0;
        }
        self.count_ended(now_us)
    }

    #[inline(never)]
    fn count_ended(&self, now_us: i64) -> usize {
        self.list.partition_point(|hold| hold.ends_at_us <= now_us)
    }

    /// Counts the holds that have not ended at `now_us`.
    #[must_use]
    pub fn outstanding(&self, now_us: i64) -> usize {
        self.len().saturating_sub(self.ended(now_us))
    }

    /// Returns the hold with that id.
    #[must_use]
    pub fn get(&self, id: &[u8]) -> Option<&Hold> {
        self.list.get(self.position(id)?)
    }

    /// Returns the hold with that id, unless it has ended at `now_us`.
    #[must_use]
    pub fn outstanding_of(&self, id: &[u8], now_us: i64) -> Option<&Hold> {
        self.get(id).filter(|hold| hold.ends_at_us > now_us)
    }

    /// Adds a hold, or replaces the one with its id.
    pub fn set(&mut self, hold: Hold) {
        if self.is_empty() {
            return self.insert(hold);
        }
        if let Some(position) = self.position(&hold.id) {
            if let ([only], []) = self.list.as_mut_slices() {
                // Most buckets have one hold at a time, which is renewed.
                self.total = Sum(hold.amount_micro.into());
                only.amount_micro = hold.amount_micro;
                only.ends_at_us = hold.ends_at_us;
                return;
            }
            self.remove_at(position);
        }
        self.insert(hold);
    }

    /// Adds a hold with a new id.
    fn insert(&mut self, hold: Hold) {
        self.total.add(hold.amount_micro.into());
        self.id_bytes = self.id_bytes.saturating_add(hold.id.len());
        if let Some(ends_us) = &mut self.ends_us {
            ends_us.insert(Arc::clone(&hold.id), hold.ends_at_us);
        }
        if self.list.capacity() == 0 {
            self.list = VecDeque::with_capacity(1);
        }
        if self.last().is_none_or(|last| last.is_before(&hold)) {
            self.list.push_back(hold);
        } else {
            let position = self.list.partition_point(|other| other.is_before(&hold));
            self.list.insert(position, hold);
        }
        if self.ends_us.is_none() && self.len() > FEW {
            self.index();
        }
    }

    /// Removes the hold with that id.
    pub fn remove(&mut self, id: &[u8]) -> Option<Hold> {
        let hold = self.remove_at(self.position(id)?);
        self.shrink();
        hold
    }

    fn remove_at(&mut self, position: usize) -> Option<Hold> {
        let hold = self.list.remove(position)?;
        self.total.subtract(hold.amount_micro.into());
        self.id_bytes = self.id_bytes.saturating_sub(hold.id.len());
        if let Some(ends_us) = &mut self.ends_us {
            ends_us.remove(&hold.id);
        }
        Some(hold)
    }

    /// Removes the holds that have ended by `until_us`, and counts them.
    pub fn drop_ended(&mut self, until_us: i64) -> usize {
        let ended = self.ended(until_us);
        self.drop_first(ended);
        ended
    }

    /// Removes the first `count` holds.
    pub fn drop_first(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let count = count.min(self.len());
        // Building a small table anew is cheaper than emptying a large one.
        let ends_us = self.ends_us.take().filter(|_| count <= self.len() / 2);
        self.total.subtract(self.first_micro(count));
        let dropped_bytes = self.list.iter().take(count).map(|hold| hold.id.len()).sum();
        self.id_bytes = self.id_bytes.saturating_sub(dropped_bytes);
        let dropped = self.list.drain(..count);
        match ends_us {
            Some(mut ends_us) => {
                for hold in dropped {
                    ends_us.remove(&hold.id);
                }
                self.ends_us = Some(ends_us);
            }
            None => {
                drop(dropped);
                if self.len() > FEW {
                    self.index();
                }
            }
        }
        self.shrink();
    }

    #[cold]
    fn index(&mut self) {
        let ends_us = self.list.iter().map(|hold| (Arc::clone(&hold.id), hold.ends_at_us));
        self.ends_us = Some(Box::new(ends_us.collect()));
    }

    /// Frees memory after most holds are gone.
    fn shrink(&mut self) {
        if self.len() < self.list.capacity() / 4 {
            self.list.shrink_to_fit();
        }
        self.shrink_index();
    }

    fn shrink_index(&mut self) {
        if self.len() <= FEW / 2 {
            self.ends_us = None;
        }
        if let Some(ends_us) = self.ends_us.as_mut().filter(|ends_us| ends_us.len() < ends_us.capacity() / 4)
        {
            ends_us.shrink_to_fit();
        }
    }

    /// Returns all holds, the next to end first.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.list.iter()
    }

    pub(super) fn last(&self) -> Option<&Hold> {
        self.list.back()
    }

    /// Returns the bytes of memory behind the list, without the allocator's overhead.
    #[must_use]
    pub fn bytes(&self) -> usize {
        // Each id has two reference counts in front of it.
        let ids = self.len().saturating_mul(size_of::<[usize; 2]>()).saturating_add(self.id_bytes);
        let list = self.list.capacity().saturating_mul(size_of::<Hold>());
        // A table of the standard library has one more byte for each entry, and is at most seven eighths full.
        let entry = size_of::<(Arc<[u8]>, i64)>().saturating_add(1);
        let table = self.ends_us.as_ref().map_or(0, |ends_us| ends_us.capacity().saturating_mul(entry));
        [list, ids, table, table / 7].into_iter().fold(0, usize::saturating_add)
    }

    #[inline]
    fn position(&self, id: &[u8]) -> Option<usize> {
        let Some(ends_us) = &self.ends_us else {
            return self.list.iter().position(|hold| *hold.id == *id);
        };
        let place = (*ends_us.get(id)?, id);
        self.list.binary_search_by(|hold| hold.place().cmp(&place)).ok()
    }

    /// Returns when the last hold ends, in Unix microseconds; the smallest number without.
    #[inline]
    pub(super) fn last_end_us(&self) -> i64 {
        self.last().map_or(i64::MIN, |hold| hold.ends_at_us)
    }

    #[inline]
    fn first_end_us(&self) -> i64 {
        self.list.front().map_or(i64::MAX, |hold| hold.ends_at_us)
    }

    /// Returns the micro-tokens of a pool of `capacity_micro` that are not held at `now_us`; negative if more is held, at least
    /// [`DEEPEST_DEBT_MICRO`].
    #[inline]
    #[must_use]
    pub fn free_micro(&self, capacity_micro: i64, now_us: i64) -> i64 {
        let held_micro = match self.ended(now_us) {
            0 => self.total.micro(),
            ended => self.total.micro().saturating_sub(self.first_micro(ended)),
        };
        let free_micro = i128::from(capacity_micro).saturating_sub(held_micro);
        i64::try_from(free_micro).unwrap_or(DEEPEST_DEBT_MICRO).max(DEEPEST_DEBT_MICRO)
    }

    /// Returns the micro-tokens of holds that ended after `since_us` and by `now_us`; saturates at 2^61.
    #[inline]
    #[must_use]
    pub fn returned_micro(&self, since_us: i64, now_us: i64) -> i64 {
        if self.first_end_us() > now_us || since_us >= now_us {
            return 0;
        }
        self.sum_returned(since_us, now_us)
    }

    #[inline(never)]
    fn sum_returned(&self, since_us: i64, now_us: i64) -> i64 {
        let micro = sum(self.list.range(self.ended(since_us)..self.ended(now_us)));
        i64::try_from(micro).unwrap_or(MOST_RETURNED).min(MOST_RETURNED)
    }

    /// Sums the amounts of the first `count` holds.
    fn first_micro(&self, count: usize) -> i128 {
        sum(self.list.iter().take(count))
    }

    /// Returns when a bucket reaches `level_micro`, as [`Expiring`](crate::bucket::Expiring) says.
    pub(super) fn reaches_at_us(
        &self,
        rate: &Rate,
        bucket: Bucket,
        included_until_us: i64,
        level_micro: i64,
    ) -> i64 {
        let missing_micro = level_micro.saturating_sub(bucket.level_micro);
        let alone_us = rate.reaches_at_us(bucket.refilled_at_us, missing_micro);
        if alone_us <= included_until_us.max(self.first_end_us()) {
            return alone_us;
        }
        let included_micro = self.first_micro(self.ended(included_until_us));
        let missing_micro = included_micro.saturating_add(missing_micro.into());
        self.covered_at_us(rate, bucket.refilled_at_us, missing_micro)
    }

    /// Returns when ended holds and the refill since `since_us` together cover `missing_micro`.
    fn covered_at_us(&self, rate: &Rate, since_us: i64, missing_micro: i128) -> i64 {
        let flown_at_us = |missing_micro: i128| {
            rate.reaches_at_us(since_us, i64::try_from(missing_micro).unwrap_or(i64::MAX))
        };
        let is_covered = |without_micro: i128, at_us: i64| {
            without_micro <= 0 || without_micro <= i128::from(rate.flow(since_us, at_us).micro)
        };
        let Some(last) = self.last() else {
            return flown_at_us(missing_micro);
        };
        // Filling the bucket nearly always needs all holds.
        let lacking = missing_micro.saturating_sub(self.total.micro());
        if !is_covered(lacking, last.ends_at_us) {
            return flown_at_us(lacking);
        }
        if !is_covered(lacking.saturating_add(last.amount_micro.into()), last.ends_at_us) {
            return last.ends_at_us;
        }
        let mut lacking = missing_micro;
        for first in (0..self.len()).step_by(BLOCK) {
            let block = self.list.range(first..first.saturating_add(BLOCK).min(self.len()));
            let after = lacking.saturating_sub(sum(block.clone()));
            if block.clone().next_back().is_some_and(|last| !is_covered(after, last.ends_at_us)) {
                lacking = after;
                continue;
            }
            for hold in block {
                let after = lacking.saturating_sub(hold.amount_micro.into());
                if is_covered(after, hold.ends_at_us) {
                    return hold.ends_at_us.min(flown_at_us(lacking));
                }
                lacking = after;
            }
        }
        debug_assert!(false, "all holds together were seen to cover it");
        last.ends_at_us
    }
}

fn sum<'a>(holds: impl Iterator<Item = &'a Hold>) -> i128 {
    holds.fold(0, |sum, hold| sum.saturating_add(hold.amount_micro.into()))
}
