//! The slots in the order in which their holds end, with the sums of many.

use super::item::{Hold, Place};
use super::memory::{heap_capacity, shrink};
use super::slots::Slots;
use crate::rate::Rate;
use smallvec::{smallvec, SmallVec};
use std::mem::size_of;

/// The most holds in one chunk of the order.
const CHUNK: usize = 128;

/// Chunks that a search steps over at once.
const STRIDE: usize = 8;

/// The slots in the order in which their holds end.
#[derive(Clone, Default)]
pub(super) struct Order {
    /// None is empty.
    chunks: SmallVec<[Chunk; 1]>,
    pub(super) len: usize,
    /// How many entries fit into the chunks on the heap.
    heap_capacity: usize,
    /// The total of all holds.
    sum: Sum,
}

#[derive(Clone)]
struct Chunk {
    /// The total of its holds.
    sum: Sum,
    last_end_us: i64,
    entries: Entries,
}

type Entries = SmallVec<[Entry; 1]>;

#[derive(Clone, Copy)]
struct Entry {
    /// The amount of the hold in the slot: here too, because sums are formed of it.
    amount_micro: i64,
    slot: u32,
}

/// Micro-tokens of many holds, which may leave 64 bits. Aligned as 64 bits are, because servers align their blocks to no
/// more.
#[derive(Clone, Copy, Default)]
#[repr(C, packed(8))]
struct Sum(i128);

impl Sum {
    fn add(&mut self, amount_micro: i64) {
        *self = Self(self.micro().saturating_add(i128::from(amount_micro)));
    }

    fn subtract(&mut self, amount_micro: i64) {
        *self = Self(self.micro().saturating_sub(i128::from(amount_micro)));
    }

    fn micro(self) -> i128 {
        self.0
    }
}

impl Order {
    /// Changes the only entry there is.
    pub(super) fn change_only(&mut self, to: &Hold) {
        self.sum = Sum(to.amount_micro.into());
        if let Some(chunk) = self.chunks.first_mut() {
            chunk.sum = self.sum;
            chunk.last_end_us = to.ends_at_us;
            chunk.entries.iter_mut().for_each(|entry| entry.amount_micro = to.amount_micro);
        }
    }

    pub(super) fn insert(&mut self, slots: &Slots, slot: u32) {
        let Some(hold) = slots.get(slot) else {
            return;
        };
        let entry = Entry { amount_micro: hold.amount_micro, slot };
        let place = hold.place();
        let mut index = self.chunk_of(slots, place);
        let is_full = |chunk: &Chunk| chunk.entries.len() >= CHUNK;
        if index < self.chunks.len() {
            if self.chunks.get(index).is_some_and(is_full) {
                self.split(slots, index);
                index = self.chunk_of(slots, place);
            }
            let position = self.position_of(slots, index, place);
            return self.insert_at(index, position, entry);
        }
        // Behind all others, which is where nearly all go.
        let Some(last) = self.chunks.last_mut().filter(|last| !is_full(last)) else {
            return self.push(Chunk::new(slots, smallvec![entry]));
        };
        last.last_end_us = hold.ends_at_us;
        let position = last.entries.len();
        self.insert_at(self.chunks.len().wrapping_sub(1), position, entry);
    }

    fn insert_at(&mut self, index: usize, position: usize, entry: Entry) {
        let Some(chunk) = self.chunks.get_mut(index) else {
            return;
        };
        let before = heap_capacity(&chunk.entries);
        chunk.entries.insert(position.min(chunk.entries.len()), entry);
        self.heap_capacity =
            self.heap_capacity.wrapping_sub(before).wrapping_add(heap_capacity(&chunk.entries));
        chunk.sum.add(entry.amount_micro);
        self.sum.add(entry.amount_micro);
        self.len = self.len.wrapping_add(1);
    }

    /// Makes two chunks of one that is full.
    fn split(&mut self, slots: &Slots, index: usize) {
        let Some(chunk) = self.chunks.get_mut(index) else {
            return;
        };
        let before = heap_capacity(&chunk.entries);
        let back = Chunk::new(slots, chunk.entries.drain(CHUNK / 2..).collect());
        chunk.entries.shrink_to_fit();
        chunk.update(slots);
        let after = heap_capacity(&chunk.entries).wrapping_add(heap_capacity(&back.entries));
        self.heap_capacity = self.heap_capacity.wrapping_sub(before).wrapping_add(after);
        self.chunks.insert(index.wrapping_add(1), back);
    }

    pub(super) fn remove(&mut self, slots: &Slots, slot: u32) {
        let Some(hold) = slots.get(slot) else {
            return;
        };
        let index = self.chunk_of(slots, hold.place());
        let position = self.position_of(slots, index, hold.place());
        self.remove_at(slots, index, position);
        self.merge(slots, index);
    }

    /// Takes out the last entry, and returns its slot.
    pub(super) fn pop(&mut self, slots: &Slots) -> Option<u32> {
        let index = self.chunks.len().checked_sub(1)?;
        let position = self.chunks.last()?.entries.len().checked_sub(1)?;
        self.remove_at(slots, index, position)
    }

    fn remove_at(&mut self, slots: &Slots, index: usize, position: usize) -> Option<u32> {
        let chunk = self.chunks.get_mut(index).filter(|chunk| position < chunk.entries.len())?;
        let Entry { amount_micro, slot } = chunk.entries.remove(position);
        chunk.sum.subtract(amount_micro);
        self.sum.subtract(amount_micro);
        self.len = self.len.wrapping_sub(1);
        match chunk.entries.last() {
            Some(last) => chunk.last_end_us = slots.ends_at_us(last.slot),
            None => {
                self.heap_capacity = self.heap_capacity.wrapping_sub(heap_capacity(&chunk.entries));
                self.chunks.remove(index);
                shrink(&mut self.chunks);
            }
        }
        Some(slot)
    }

    /// Gives the entry of a slot another number. False if it has none here.
    pub(super) fn renumber(&mut self, slots: &Slots, slot: u32, number: u32) -> bool {
        let Some(place) = slots.get(slot).map(Hold::place) else {
            return false;
        };
        let index = self.chunk_of(slots, place);
        let position = self.position_of(slots, index, place);
        let entry = self.chunks.get_mut(index).and_then(|chunk| chunk.entries.get_mut(position));
        let Some(entry) = entry.filter(|entry| entry.slot == slot) else {
            return false;
        };
        entry.slot = number;
        true
    }

    /// Moves the first `count` entries behind all that are in another order.
    pub(super) fn move_first(&mut self, count: usize, slots: &Slots, to: &mut Self) {
        let mut left = count.min(self.len);
        let is_whole = |chunk: &&Chunk| {
            let rest = left.checked_sub(chunk.entries.len());
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        let whole = self.chunks.iter().take_while(is_whole).count();
        for chunk in self.chunks.drain(..whole) {
            self.heap_capacity = self.heap_capacity.wrapping_sub(heap_capacity(&chunk.entries));
            self.len = self.len.wrapping_sub(chunk.entries.len());
            self.sum = Sum(self.sum.micro().saturating_sub(chunk.sum.micro()));
            to.push(chunk);
        }
        shrink(&mut self.chunks);
        if let Some(chunk) = self.chunks.first_mut().filter(|_| left > 0) {
            let front: Entries = chunk.entries.drain(..left).collect();
            chunk.update(slots);
            let front = Chunk::new(slots, front);
            self.len = self.len.wrapping_sub(left);
            self.sum = Sum(self.sum.micro().saturating_sub(front.sum.micro()));
            to.push(front);
            self.merge(slots, 0);
        }
    }

    /// Appends a chunk behind all others.
    fn push(&mut self, chunk: Chunk) {
        self.heap_capacity = self.heap_capacity.wrapping_add(heap_capacity(&chunk.entries));
        self.len = self.len.wrapping_add(chunk.entries.len());
        self.sum = Sum(self.sum.micro().saturating_add(chunk.sum.micro()));
        self.chunks.push(chunk);
    }

    /// Joins a chunk with the next if both are nearly empty: chunks that nearly all holds have left cost memory.
    fn merge(&mut self, slots: &Slots, index: usize) {
        let next = index.wrapping_add(1);
        let len = |index: usize| self.chunks.get(index).map(|chunk| chunk.entries.len());
        let (Some(one), Some(other)) = (len(index), len(next)) else {
            return;
        };
        if one.saturating_add(other) > CHUNK / 4 {
            return;
        }
        let back = self.chunks.remove(next);
        shrink(&mut self.chunks);
        let Some(chunk) = self.chunks.get_mut(index) else {
            return;
        };
        let before = heap_capacity(&chunk.entries).wrapping_add(heap_capacity(&back.entries));
        chunk.entries.extend(back.entries);
        chunk.entries.shrink_to_fit();
        chunk.update(slots);
        self.heap_capacity =
            self.heap_capacity.wrapping_sub(before).wrapping_add(heap_capacity(&chunk.entries));
    }

    pub(super) fn bytes(&self) -> usize {
        let chunks = heap_capacity(&self.chunks).saturating_mul(size_of::<Chunk>());
        chunks.saturating_add(self.heap_capacity.saturating_mul(size_of::<Entry>()))
    }

    /// The chunk in which a place is, or would have to be.
    fn chunk_of(&self, slots: &Slots, place: Place<'_>) -> usize {
        let is_before = |chunk: &Chunk| match chunk.last_end_us.cmp(&place.0) {
            std::cmp::Ordering::Equal => {
                chunk.entries.last().is_some_and(|last| slots.is_before(last.slot, place))
            }
            other => other.is_lt(),
        };
        match self.chunks.last() {
            Some(last) if is_before(last) => self.chunks.len(),
            _ => self.chunks.partition_point(is_before),
        }
    }

    /// The slots in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.chunks.iter().flat_map(|chunk| &chunk.entries).map(|entry| entry.slot)
    }

    pub(super) fn last_slot(&self) -> Option<u32> {
        Some(self.chunks.last()?.entries.last()?.slot)
    }

    fn first(&self) -> Option<&Entry> {
        self.chunks.first()?.entries.first()
    }

    pub(super) fn first_end_us(&self, slots: &Slots) -> i64 {
        self.first().map_or(i64::MAX, |entry| slots.ends_at_us(entry.slot))
    }

    #[inline]
    pub(super) fn last_end_us(&self) -> i64 {
        self.chunks.last().map_or(i64::MIN, |chunk| chunk.last_end_us)
    }

    /// Where an entry is in a chunk, or would have to be.
    fn position_of(&self, slots: &Slots, index: usize, place: Place<'_>) -> usize {
        let entries = self.chunks.get(index).map_or(&[][..], |chunk| &chunk.entries);
        entries.partition_point(|other| slots.is_before(other.slot, place))
    }

    /// How many end by `until_us`, and what they bring together, in micro-tokens.
    pub(super) fn until(&self, slots: &Slots, until_us: i64) -> (usize, i128) {
        let (mut count, mut micro) = (0usize, 0i128);
        if self.first_end_us(slots) > until_us {
            return (count, micro);
        }
        for chunk in &self.chunks {
            if chunk.last_end_us <= until_us {
                count = count.saturating_add(chunk.entries.len());
                micro = micro.saturating_add(chunk.sum.micro());
                continue;
            }
            let ended = chunk.entries.iter().take_while(|entry| slots.ends_at_us(entry.slot) <= until_us);
            for entry in ended {
                count = count.saturating_add(1);
                micro = micro.saturating_add(i128::from(entry.amount_micro));
            }
            break;
        }
        (count, micro)
    }

    /// The first moment at which `missing_micro` are covered by holds that have ended and by what flows in from
    /// `since_us` on.
    pub(super) fn time_covered_us(
        &self,
        slots: &Slots,
        rate: &Rate,
        since_us: i64,
        missing_micro: i128,
    ) -> i64 {
        let covers = |micro: i128, at_us: i64| {
            let lacking = missing_micro.saturating_sub(micro);
            lacking <= 0 || lacking <= i128::from(rate.flow(since_us, at_us).micro)
        };
        // A full bucket nearly always needs all of them.
        let last = self.chunks.last().and_then(|chunk| Some((chunk.entries.last()?, chunk.last_end_us)));
        let (last_micro, last_end_us) =
            last.map_or((0, i64::MAX), |(last, end_us)| (last.amount_micro, end_us));
        let sum_micro = self.sum.micro();
        let without_last = sum_micro.saturating_sub(i128::from(last_micro));
        if !covers(sum_micro, last_end_us) {
            return flown_at_us(rate, since_us, missing_micro.saturating_sub(sum_micro));
        }
        if !covers(without_last, last_end_us) {
            return last_end_us;
        }
        let mut before = 0i128;
        for stride in self.chunks.chunks(STRIDE) {
            let sums = stride.iter().fold(0i128, |sum, chunk| sum.saturating_add(chunk.sum.micro()));
            let with_all = before.saturating_add(sums);
            if !stride.last().is_some_and(|last| covers(with_all, last.last_end_us)) {
                before = with_all;
                continue;
            }
            for chunk in stride {
                let with_it = before.saturating_add(chunk.sum.micro());
                if covers(with_it, chunk.last_end_us) {
                    let (before, end_us) = chunk.first_covering(slots, before, &covers);
                    return end_us.min(flown_at_us(rate, since_us, missing_micro.saturating_sub(before)));
                }
                before = with_it;
            }
        }
        flown_at_us(rate, since_us, missing_micro.saturating_sub(before))
    }
}

impl Chunk {
    fn new(slots: &Slots, entries: Entries) -> Self {
        let mut chunk = Self { sum: Sum::default(), last_end_us: i64::MIN, entries };
        chunk.update(slots);
        chunk
    }

    /// Follows a change of many entries.
    fn update(&mut self, slots: &Slots) {
        self.sum = Sum(sum(&self.entries));
        self.last_end_us = self.entries.last().map_or(i64::MIN, |last| slots.ends_at_us(last.slot));
    }

    /// The first hold whose end covers what is missing, given `before` and the holds in front of it: returns the sum of
    /// those, and its end.
    fn first_covering(
        &self,
        slots: &Slots,
        before: i128,
        covers: &impl Fn(i128, i64) -> bool,
    ) -> (i128, i64) {
        let mut before = before;
        let mut entries = self.entries.as_slice();
        while entries.len() > 1 {
            let (front, back) = entries.split_at_checked(entries.len() / 2).unwrap_or((entries, &[]));
            let with_front = before.saturating_add(sum(front));
            if front.last().is_some_and(|last| covers(with_front, slots.ends_at_us(last.slot))) {
                entries = front;
            } else {
                before = with_front;
                entries = back;
            }
        }
        (before, entries.first().map_or(i64::MAX, |entry| slots.ends_at_us(entry.slot)))
    }
}

fn sum(entries: &[Entry]) -> i128 {
    entries.iter().fold(0i128, |sum, entry| sum.wrapping_add(i128::from(entry.amount_micro)))
}

/// When `micro` have flowed since `since_us`.
fn flown_at_us(rate: &Rate, since_us: i64, micro: i128) -> i64 {
    rate.reaches_at_us(since_us, i64::try_from(micro).unwrap_or(i64::MAX))
}
