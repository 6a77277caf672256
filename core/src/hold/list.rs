//! The list of a bucket's holds.

use super::item::Hold;
use super::order::Order;
use super::slots::Slots;
use crate::bucket::{Bucket, Expiring};
use crate::rate::Rate;
use std::mem::size_of;

/// The most dropped holds that one call frees.
pub const FREED_A_CALL: usize = 512;

/// The most that is reported as returned: it fills any bucket from the deepest debt, and is small enough to be added
/// to a level.
const MOST_RETURNED: i64 = 1 << 61;

/// The holds of one bucket.
#[derive(Clone, Default)]
pub struct Holds {
    slots: Slots,
    order: Order,
    /// Those that were dropped and are not freed yet.
    dropped: Option<Box<Dropped>>,
    id_bytes: usize,
}

/// Holds that still occupy slots, and exist for nobody.
#[derive(Clone, Default)]
struct Dropped {
    order: Order,
    /// The latest end among them. All holds that exist end later, which tells them apart.
    until_us: i64,
}

impl Holds {
    /// How many there are, those that have ended included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many occupy memory: these, and those that were dropped and are not freed yet.
    #[must_use]
    pub fn stored(&self) -> usize {
        self.slots.len
    }

    /// How many of them have ended at `now_us`.
    #[must_use]
    pub fn ended(&self, now_us: i64) -> usize {
        self.order.until(&self.slots, now_us).0
    }

    /// How many of them have not ended at `now_us`.
    #[must_use]
    pub fn outstanding(&self, now_us: i64) -> usize {
        self.len().saturating_sub(self.ended(now_us))
    }

    /// The hold of that id.
    #[must_use]
    pub fn get(&self, id: &[u8]) -> Option<&Hold> {
        let hold = self.slots.get(self.find(id, self.slots.hash(id))?)?;
        (!self.is_dropped(hold)).then_some(hold)
    }

    /// The hold of that id, unless it has ended at `now_us`.
    #[must_use]
    pub fn outstanding_of(&self, id: &[u8], now_us: i64) -> Option<&Hold> {
        self.get(id).filter(|hold| hold.ends_at_us > now_us)
    }

    /// Sets a hold, whether or not there is one of its id.
    pub fn set(&mut self, hold: Hold) {
        if self.is_dropped(&hold) {
            // Only behind a clock that stepped back: it would be taken for one of them.
            self.free_dropped(usize::MAX);
        }
        let hash = self.slots.hash(&hold.id);
        if let Some(slot) = self.find(&hold.id, hash) {
            return self.change(slot, &hold);
        }
        let id_len = hold.id.len();
        let Some(slot) = self.slots.put(hold, hash) else {
            return;
        };
        self.id_bytes = self.id_bytes.saturating_add(id_len);
        self.order.insert(&self.slots, slot);
    }

    /// Changes the amount and the end of the hold in a slot, which may be one that was dropped.
    fn change(&mut self, slot: u32, to: &Hold) {
        if self.slots.len == 1 && self.order.len == 1 {
            // Most buckets have one hold at a time, and its holder renews it.
            self.slots.change(slot, to);
            return self.order.change_only(to);
        }
        match &mut self.dropped {
            Some(dropped) if self.slots.ends_at_us(slot) <= dropped.until_us => {
                dropped.order.remove(&self.slots, slot);
            }
            _ => self.order.remove(&self.slots, slot),
        }
        self.slots.change(slot, to);
        self.order.insert(&self.slots, slot);
    }

    /// Removes the hold of that id.
    pub fn remove(&mut self, id: &[u8]) -> Option<Hold> {
        let slot = self.find(id, self.slots.hash(id))?;
        if self.slots.get(slot).is_some_and(|hold| self.is_dropped(hold)) {
            return None;
        }
        self.order.remove(&self.slots, slot);
        self.free_slot(slot)
    }

    /// Drops all that have ended by `until_us`, and returns how many. [`free_dropped`](Self::free_dropped) gives their
    /// memory back.
    pub fn drop_ended(&mut self, until_us: i64) -> usize {
        let ended = self.ended(until_us);
        self.drop_first(ended);
        ended
    }

    /// Drops the first `count` in the order of their ends.
    pub fn drop_first(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let dropped = self.dropped.get_or_insert_default();
        self.order.move_first(count, &self.slots, &mut dropped.order);
        dropped.until_us = dropped.order.last_end_us();
        if self.order.first_end_us(&self.slots) <= dropped.until_us {
            // Not all that end together were dropped, which no call does.
            self.free_dropped(usize::MAX);
        }
    }

    /// Frees dropped holds, as many as `at_most`.
    pub fn free_dropped(&mut self, at_most: usize) {
        for _ in 0..at_most {
            let Some(dropped) = &mut self.dropped else {
                return;
            };
            if let Some(slot) = dropped.order.pop(&self.slots) {
                self.free_slot(slot);
            }
            self.dropped.take_if(|dropped| dropped.order.len == 0);
        }
    }

    /// All of them, the next to end first.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        self.order.iter().filter_map(|slot| self.slots.get(slot))
    }

    /// The last to end.
    pub(super) fn last(&self) -> Option<&Hold> {
        self.slots.get(self.order.last_slot()?)
    }

    /// Bytes of all ids.
    pub(super) fn id_bytes(&self) -> usize {
        self.id_bytes
    }

    /// Bytes that they take, without what allocators add.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let dropped = self.dropped.as_ref();
        let dropped = dropped.map_or(0, |dropped| size_of::<Dropped>().saturating_add(dropped.order.bytes()));
        let parts = [self.slots.bytes(), self.order.bytes(), dropped, self.id_bytes];
        parts.into_iter().fold(size_of::<Self>(), usize::saturating_add)
    }

    #[inline]
    fn find(&self, id: &[u8], hash: u32) -> Option<u32> {
        // Most buckets are asked before anything is held of them.
        if self.slots.len == 0 {
            return None;
        }
        self.slots.find(id, hash)
    }

    #[inline]
    fn is_dropped(&self, hold: &Hold) -> bool {
        self.dropped.as_ref().is_some_and(|dropped| hold.ends_at_us <= dropped.until_us)
    }

    /// Takes a hold out of its slot that is in no order any more.
    fn free_slot(&mut self, slot: u32) -> Option<Hold> {
        let last = self.slots.last();
        if slot != last {
            self.renumber(last, slot);
        }
        let hold = self.slots.free(slot)?;
        self.id_bytes = self.id_bytes.saturating_sub(hold.id.len());
        Some(hold)
    }

    /// Tells the order that a hold is in that it moves to another slot.
    fn renumber(&mut self, slot: u32, to: u32) {
        let slots = &self.slots;
        let ends_at_us = slots.ends_at_us(slot);
        let may_be_dropped = self.dropped.as_mut().filter(|dropped| ends_at_us <= dropped.until_us);
        if !may_be_dropped.is_some_and(|dropped| dropped.order.renumber(slots, slot, to)) {
            self.order.renumber(slots, slot, to);
        }
    }
}

impl Expiring for &Holds {
    #[inline]
    fn ended_micro(self, now_us: i64) -> i64 {
        let (_, sum) = self.order.until(&self.slots, now_us);
        i64::try_from(sum).unwrap_or(MOST_RETURNED).min(MOST_RETURNED)
    }

    #[inline]
    fn last_end_us(self) -> i64 {
        self.order.last_end_us()
    }

    fn reaches_at_us(self, rate: &Rate, bucket: Bucket, included_until_us: i64, level_micro: i64) -> i64 {
        let missing_micro = level_micro.wrapping_sub(bucket.level_micro);
        let alone_us = rate.reaches_at_us(bucket.refilled_at_us, missing_micro);
        let first_end_us = self.order.first_end_us(&self.slots);
        if alone_us <= included_until_us.max(first_end_us) {
            return alone_us;
        }
        let (_, included_micro) = self.order.until(&self.slots, included_until_us);
        let missing_micro = included_micro.saturating_add(i128::from(missing_micro));
        self.order.time_covered_us(&self.slots, rate, bucket.refilled_at_us, missing_micro)
    }
}
