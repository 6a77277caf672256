//! The holds of one bucket: amounts under names, each of which comes back at a moment.
//!
//! # Why nobody has to sweep
//!
//! Between two writes everything only flows in: the refill, and the holds that end. What only grows and is cut off at
//! the capacity at each step is the same as what grows without bounds and is cut off once, at the end. So the level at
//! any moment is that of the last write, plus what flowed since, plus the amounts of all stored holds that have ended
//! by then, and never more than the capacity. A hold that has ended may lie there until the next write.
//!
//! # When a level is reached
//!
//! Below the capacity nothing is cut off, so the sum itself can be searched. In the order of their ends, let `S(k)` be
//! what the first `k` holds bring together. The first `k` for which level, `S(k)` and what flows until hold `k` ends
//! suffice tells the answer: it is that end, or the moment before it at which the flow alone completes `S(k - 1)`.
//!
//! # How it is found quickly
//!
//! The order is kept in chunks of up to `CHUNK` holds, with the sum of each. Names are found by a hash table, once
//! there are more than `FEW`. Holds that end in the same microsecond are ordered by name: so the order, and with it
//! what is saved and replied, does not depend on how it came about.

#![forbid(unsafe_code)]

use crate::bucket::{Bucket, Returns, MAX_TIME_US};
use crate::number::MAX_MICRO;
use crate::rate::Rate;
use hashbrown::HashTable;
use smallvec::{smallvec, Array, SmallVec};
use std::hash::{BuildHasher, RandomState};
use std::mem::size_of;
use std::sync::LazyLock;

/// The longest name of a hold, in bytes.
pub const MAX_ID_LEN: usize = 128;

/// The most holds in one chunk of the order.
const CHUNK: usize = 128;

/// Chunks that a search steps over at once.
const STRIDE: usize = 8;

/// Up to this many names are compared one by one, which is cheaper than a table.
const FEW: usize = 8;

/// What returns is told up to here: it fills any bucket from the deepest debt, and is small enough to be added to a
/// level.
const MOST_RETURNED: i64 = 1 << 61;

/// Nobody who chooses names may know which of them meet in the hash table.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Tokens that are taken until a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its name: 1 to [`MAX_ID_LEN`] bytes.
    pub id: Box<[u8]>,
    /// What is held, in micro-tokens: 1 to [`MAX_MICRO`].
    pub amount_micro: i64,
    /// When it comes back, in Unix microseconds: 0 to [`MAX_TIME_US`].
    pub ends_at_us: i64,
}

impl Hold {
    /// Takes over a hold from outside, or `None` if there can be no such hold.
    #[must_use]
    pub fn checked(id: &[u8], amount_micro: i64, ends_at_us: i64) -> Option<Self> {
        let is_one = (1..=MAX_ID_LEN).contains(&id.len())
            && (1..=MAX_MICRO).contains(&amount_micro)
            && (0..=MAX_TIME_US).contains(&ends_at_us);
        is_one.then(|| Self { id: id.into(), amount_micro, ends_at_us })
    }

    /// What the order goes by.
    fn place(&self) -> Place<'_> {
        (self.ends_at_us, &self.id)
    }
}

/// An end, and a name to tell apart what ends together.
type Place<'a> = (i64, &'a [u8]);

/// The holds of one bucket.
#[derive(Clone, Default)]
pub struct Holds {
    slots: Slots,
    order: Order,
    /// From names to slots: of all holds or of none, as long as they are few.
    index: HashTable<u32>,
    id_bytes: usize,
}

impl Holds {
    /// How many there are, those that have ended included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of them have not ended at `now_us`.
    #[must_use]
    pub fn outstanding(&self, now_us: i64) -> usize {
        let (ended, _) = self.order.until(&self.slots, now_us);
        self.len().saturating_sub(ended)
    }

    /// The hold of that name.
    #[must_use]
    pub fn get(&self, id: &[u8]) -> Option<&Hold> {
        self.slots.get(self.find(id, self.hash(id))?)
    }

    /// The hold of that name, unless it has ended at `now_us`.
    #[must_use]
    pub fn outstanding_of(&self, id: &[u8], now_us: i64) -> Option<&Hold> {
        self.get(id).filter(|hold| hold.ends_at_us > now_us)
    }

    /// Puts a hold where there may be one of its name already.
    pub fn set(&mut self, hold: Hold) {
        let hash = self.hash(&hold.id);
        if let Some(slot) = self.find(&hold.id, hash) {
            return self.change(slot, &hold);
        }
        let id_len = hold.id.len();
        let Some(slot) = self.slots.put(hold) else {
            return;
        };
        self.id_bytes = self.id_bytes.saturating_add(id_len);
        self.order.insert(&self.slots, slot);
        let slots = &self.slots;
        let hash_of = |slot: &u32| slots.hash(*slot);
        if !self.index.is_empty() {
            self.index.insert_unique(hash, slot, hash_of);
        } else if slots.len() > FEW {
            for slot in slots.occupied() {
                self.index.insert_unique(slots.hash(slot), slot, hash_of);
            }
        }
    }

    /// Changes what is held in a slot, and until when.
    fn change(&mut self, slot: u32, to: &Hold) {
        if self.len() == 1 {
            // A bucket is mostly held once at a time, and its holder renews.
            self.slots.change(slot, to);
            return self.order.change_only(to);
        }
        self.order.remove(&self.slots, slot);
        self.slots.change(slot, to);
        self.order.insert(&self.slots, slot);
    }

    /// Takes out the hold of that name.
    pub fn remove(&mut self, id: &[u8]) -> Option<Hold> {
        self.remove_hashed(id, self.hash(id))
    }

    fn remove_hashed(&mut self, id: &[u8], hash: u64) -> Option<Hold> {
        let slot = self.find(id, hash)?;
        self.order.remove(&self.slots, slot);
        self.take(slot, hash)
    }

    /// Takes out all that have ended by `until_us`, and says how many.
    pub fn drop_ended(&mut self, until_us: i64) -> usize {
        let ended = self.order.take_until(&self.slots, until_us);
        for slot in &ended {
            let hash = if self.index.is_empty() { 0 } else { self.slots.hash(*slot) };
            self.take(*slot, hash);
        }
        ended.len()
    }

    /// All of them, the next to end first.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        let entries = self.order.chunks.iter().flat_map(|chunk| &chunk.entries);
        entries.filter_map(|entry| self.slots.get(entry.slot))
    }

    /// Bytes that they take, without what allocators add.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let slots = room(&self.slots.holds).saturating_mul(size_of::<Option<Hold>>());
        let free = self.slots.free.capacity().saturating_mul(size_of::<u32>());
        let chunks = room(&self.order.chunks).saturating_mul(size_of::<Chunk>());
        let entries = self.order.room.saturating_mul(size_of::<Entry>());
        let parts = [slots, free, chunks, entries, self.index.allocation_size(), self.id_bytes];
        parts.into_iter().fold(size_of::<Self>(), usize::saturating_add)
    }

    /// The hash of a name, where it is needed to find one.
    fn hash(&self, id: &[u8]) -> u64 {
        if self.index.is_empty() {
            return 0;
        }
        HASHER.hash_one(id)
    }

    #[inline]
    fn find(&self, id: &[u8], hash: u64) -> Option<u32> {
        // Most buckets are asked before anything is held of them.
        if self.slots.holds.is_empty() {
            return None;
        }
        self.find_among(id, hash)
    }

    fn find_among(&self, id: &[u8], hash: u64) -> Option<u32> {
        let is_it = |slot: &u32| self.slots.get(*slot).is_some_and(|hold| *hold.id == *id);
        if self.index.is_empty() {
            return self.slots.occupied().find(is_it);
        }
        self.index.find(hash, is_it).copied()
    }

    /// Takes out what is no longer in the order.
    fn take(&mut self, slot: u32, hash: u64) -> Option<Hold> {
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        let hold = self.slots.take(slot)?;
        self.id_bytes = self.id_bytes.saturating_sub(hold.id.len());
        Some(hold)
    }
}

impl Returns for &Holds {
    #[inline]
    fn ended_micro(self, now_us: i64) -> i64 {
        let (_, sum) = self.order.until(&self.slots, now_us);
        i64::try_from(sum).unwrap_or(MOST_RETURNED).min(MOST_RETURNED)
    }

    #[inline]
    fn last_end_us(self) -> i64 {
        self.order.chunks.last().map_or(i64::MIN, |chunk| chunk.last_end_us)
    }

    fn reaches_at_us(self, rate: &Rate, bucket: Bucket, counted_us: i64, level_micro: i64) -> i64 {
        let missing_micro = level_micro.wrapping_sub(bucket.level_micro);
        let alone_us = rate.reaches_at_us(bucket.refilled_at_us, missing_micro);
        let first_end_us = self.order.first_end_us(&self.slots);
        if alone_us <= counted_us.max(first_end_us) {
            return alone_us;
        }
        let (_, counted_micro) = self.order.until(&self.slots, counted_us);
        let missing_micro = counted_micro.saturating_add(i128::from(missing_micro));
        self.order.covers_at_us(&self.slots, rate, bucket.refilled_at_us, missing_micro)
    }
}

/// Where the holds themselves are. They stay in their place.
#[derive(Clone, Default)]
struct Slots {
    holds: SmallVec<[Option<Hold>; 1]>,
    free: Vec<u32>,
}

impl Slots {
    fn len(&self) -> usize {
        self.holds.len().saturating_sub(self.free.len())
    }

    #[inline]
    fn get(&self, slot: u32) -> Option<&Hold> {
        self.holds.get(slot as usize)?.as_ref()
    }

    /// The numbers of those in use.
    fn occupied(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.holds).filter_map(|(slot, hold)| hold.is_some().then_some(slot))
    }

    fn hash(&self, slot: u32) -> u64 {
        self.get(slot).map_or(0, |hold| HASHER.hash_one(&*hold.id))
    }

    /// `None` if there are more than can be numbered.
    fn put(&mut self, hold: Hold) -> Option<u32> {
        let Some(slot) = self.free.pop() else {
            let slot = u32::try_from(self.holds.len()).ok()?;
            self.holds.push(Some(hold));
            return Some(slot);
        };
        *self.holds.get_mut(slot as usize)? = Some(hold);
        Some(slot)
    }

    /// Keeps the name, and takes over all else.
    fn change(&mut self, slot: u32, to: &Hold) {
        if let Some(Some(hold)) = self.holds.get_mut(slot as usize) {
            hold.amount_micro = to.amount_micro;
            hold.ends_at_us = to.ends_at_us;
        }
    }

    fn take(&mut self, slot: u32) -> Option<Hold> {
        let hold = self.holds.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(hold)
    }

    #[inline]
    fn ends_at_us(&self, slot: u32) -> i64 {
        self.get(slot).map_or(i64::MAX, |hold| hold.ends_at_us)
    }

    fn is_before(&self, slot: u32, place: Place<'_>) -> bool {
        self.get(slot).is_some_and(|hold| hold.place() < place)
    }
}

/// The slots in the order in which their holds end.
#[derive(Clone, Default)]
struct Order {
    /// None is empty.
    chunks: SmallVec<[Chunk; 1]>,
    /// How many entries the chunks have room for on the heap.
    room: usize,
    /// What all holds bring together, in micro-tokens.
    sum_micro: i128,
}

#[derive(Clone)]
struct Chunk {
    /// What its holds bring together, in micro-tokens.
    sum_micro: i128,
    last_end_us: i64,
    entries: Entries,
}

type Entries = SmallVec<[Entry; 1]>;

#[derive(Clone, Copy)]
struct Entry {
    /// What the hold in the slot brings: here too, because sums are formed of it.
    amount_micro: i64,
    slot: u32,
}

impl Order {
    /// Changes the only entry there is.
    fn change_only(&mut self, to: &Hold) {
        self.sum_micro = i128::from(to.amount_micro);
        if let Some(chunk) = self.chunks.first_mut() {
            chunk.sum_micro = self.sum_micro;
            chunk.last_end_us = to.ends_at_us;
            chunk.entries.iter_mut().for_each(|entry| entry.amount_micro = to.amount_micro);
        }
    }

    fn insert(&mut self, slots: &Slots, slot: u32) {
        let Some(hold) = slots.get(slot) else {
            return;
        };
        let entry = Entry { amount_micro: hold.amount_micro, slot };
        let place = hold.place();
        let index = self.chunk_of(slots, place);
        if index < self.chunks.len() {
            self.insert_into(index, slots, entry, place);
            return;
        }
        // Behind all others, which is where nearly all go.
        match self.chunks.last_mut() {
            Some(last) if last.entries.len() < CHUNK => {
                let before = room(&last.entries);
                last.entries.push(entry);
                last.sum_micro = last.sum_micro.saturating_add(i128::from(entry.amount_micro));
                self.sum_micro = self.sum_micro.saturating_add(i128::from(entry.amount_micro));
                last.last_end_us = hold.ends_at_us;
                self.room = self.room.saturating_sub(before).saturating_add(room(&last.entries));
            }
            _ => self.add_chunk(self.chunks.len(), slots, smallvec![entry]),
        }
    }

    fn insert_into(&mut self, index: usize, slots: &Slots, entry: Entry, place: Place<'_>) {
        let Some(mut entries) = self.take_chunk(index) else {
            return;
        };
        let position = entries.partition_point(|other| slots.is_before(other.slot, place));
        entries.insert(position, entry);
        if entries.len() > CHUNK {
            let back = entries.drain(CHUNK / 2..).collect();
            entries.shrink_to_fit();
            self.add_chunk(index, slots, back);
        }
        self.add_chunk(index, slots, entries);
    }

    fn remove(&mut self, slots: &Slots, slot: u32) {
        let Some(hold) = slots.get(slot) else {
            return;
        };
        let place = hold.place();
        let index = self.chunk_of(slots, place);
        let Some(chunk) = self.chunks.get_mut(index) else {
            return;
        };
        let position = chunk.entries.partition_point(|other| slots.is_before(other.slot, place));
        if position < chunk.entries.len() {
            chunk.entries.remove(position);
            chunk.sum_micro = chunk.sum_micro.saturating_sub(i128::from(hold.amount_micro));
            self.sum_micro = self.sum_micro.saturating_sub(i128::from(hold.amount_micro));
        }
        match chunk.entries.last() {
            Some(last) => chunk.last_end_us = slots.ends_at_us(last.slot),
            None => drop(self.take_chunk(index)),
        }
        self.merge(index, slots);
    }

    /// Joins a chunk with the next if both are nearly empty: chunks that nearly all holds have left cost memory.
    fn merge(&mut self, index: usize, slots: &Slots) {
        let next = index.saturating_add(1);
        let len = |index: usize| self.chunks.get(index).map(|chunk| chunk.entries.len());
        let (Some(one), Some(other)) = (len(index), len(next)) else {
            return;
        };
        if one.saturating_add(other) > CHUNK / 4 {
            return;
        }
        let back = self.take_chunk(next).unwrap_or_default();
        let mut entries = self.take_chunk(index).unwrap_or_default();
        entries.extend(back);
        entries.shrink_to_fit();
        self.add_chunk(index, slots, entries);
    }

    fn add_chunk(&mut self, index: usize, slots: &Slots, entries: Entries) {
        self.room = self.room.saturating_add(room(&entries));
        let last_end_us = entries.last().map_or(i64::MIN, |last| slots.ends_at_us(last.slot));
        let chunk = Chunk { sum_micro: sum(&entries), last_end_us, entries };
        self.sum_micro = self.sum_micro.saturating_add(chunk.sum_micro);
        self.chunks.insert(index.min(self.chunks.len()), chunk);
    }

    fn take_chunk(&mut self, index: usize) -> Option<Entries> {
        if index >= self.chunks.len() {
            return None;
        }
        let Chunk { sum_micro, entries, .. } = self.chunks.remove(index);
        self.sum_micro = self.sum_micro.saturating_sub(sum_micro);
        self.room = self.room.saturating_sub(room(&entries));
        Some(entries)
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

    fn first(&self) -> Option<&Entry> {
        self.chunks.first()?.entries.first()
    }

    fn first_end_us(&self, slots: &Slots) -> i64 {
        self.first().map_or(i64::MAX, |entry| slots.ends_at_us(entry.slot))
    }

    /// Takes out all that end by `until_us`.
    fn take_until(&mut self, slots: &Slots, until_us: i64) -> Vec<u32> {
        let mut ended = Vec::new();
        if self.first_end_us(slots) > until_us {
            return ended;
        }
        let whole = self.chunks.partition_point(|chunk| chunk.last_end_us <= until_us);
        for chunk in self.chunks.drain(..whole) {
            self.room = self.room.saturating_sub(room(&chunk.entries));
            self.sum_micro = self.sum_micro.saturating_sub(chunk.sum_micro);
            ended.extend(chunk.entries.iter().map(|entry| entry.slot));
        }
        if let Some(chunk) = self.chunks.first_mut() {
            let part = chunk.entries.partition_point(|entry| slots.ends_at_us(entry.slot) <= until_us);
            let front = chunk.entries.drain(..part);
            for entry in front {
                chunk.sum_micro = chunk.sum_micro.saturating_sub(i128::from(entry.amount_micro));
                self.sum_micro = self.sum_micro.saturating_sub(i128::from(entry.amount_micro));
                ended.push(entry.slot);
            }
            self.merge(0, slots);
        }
        ended
    }

    /// How many end by `until_us`, and what they bring together, in micro-tokens.
    fn until(&self, slots: &Slots, until_us: i64) -> (usize, i128) {
        let (mut count, mut micro) = (0usize, 0i128);
        if self.first_end_us(slots) > until_us {
            return (count, micro);
        }
        for chunk in &self.chunks {
            if chunk.last_end_us <= until_us {
                count = count.saturating_add(chunk.entries.len());
                micro = micro.saturating_add(chunk.sum_micro);
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
    fn covers_at_us(&self, slots: &Slots, rate: &Rate, since_us: i64, missing_micro: i128) -> i64 {
        let covers = |micro: i128, at_us: i64| {
            let lacking = missing_micro.saturating_sub(micro);
            lacking <= 0 || lacking <= i128::from(rate.flow(since_us, at_us).micro)
        };
        // A full bucket nearly always needs all of them.
        let last = self.chunks.last().and_then(|chunk| Some((chunk.entries.last()?, chunk.last_end_us)));
        let (last_micro, last_end_us) =
            last.map_or((0, i64::MAX), |(last, end_us)| (last.amount_micro, end_us));
        let without_last = self.sum_micro.saturating_sub(i128::from(last_micro));
        if !covers(self.sum_micro, last_end_us) {
            return flown_at_us(rate, since_us, missing_micro.saturating_sub(self.sum_micro));
        }
        if !covers(without_last, last_end_us) {
            return last_end_us;
        }
        let mut before = 0i128;
        for stride in self.chunks.chunks(STRIDE) {
            let sums = stride.iter().fold(0i128, |sum, chunk| sum.saturating_add(chunk.sum_micro));
            let with_all = before.saturating_add(sums);
            if !stride.last().is_some_and(|last| covers(with_all, last.last_end_us)) {
                before = with_all;
                continue;
            }
            for chunk in stride {
                let with_it = before.saturating_add(chunk.sum_micro);
                if covers(with_it, chunk.last_end_us) {
                    let (before, end_us) = chunk.first_that(slots, before, &covers);
                    return end_us.min(flown_at_us(rate, since_us, missing_micro.saturating_sub(before)));
                }
                before = with_it;
            }
        }
        flown_at_us(rate, since_us, missing_micro.saturating_sub(before))
    }
}

impl Chunk {
    /// The first hold whose end completes what is asked for, with `before` and the holds in front of it: what those
    /// bring together, and its end.
    fn first_that(&self, slots: &Slots, before: i128, covers: &impl Fn(i128, i64) -> bool) -> (i128, i64) {
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

/// How many a list has room for on the heap. Lists here hold one in place: most buckets are held once at a time.
fn room<A: Array>(list: &SmallVec<A>) -> usize {
    if list.spilled() {
        return list.capacity();
    }
    0
}

fn sum(entries: &[Entry]) -> i128 {
    entries.iter().fold(0i128, |sum, entry| sum.wrapping_add(i128::from(entry.amount_micro)))
}

/// When `micro` have flowed since `since_us`.
fn flown_at_us(rate: &Rate, since_us: i64, micro: i128) -> i64 {
    rate.reaches_at_us(since_us, i64::try_from(micro).unwrap_or(i64::MAX))
}

/// Bytes of an encoded hold in front of its name: end, amount, length of the name.
const HEADER: usize = 17;

impl Hold {
    /// Appends the bytes of a hold: its end in Unix microseconds and its amount in micro-tokens, both signed 64-bit
    /// little-endian, the length of its name in one byte, and its name.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.ends_at_us.to_le_bytes());
        bytes.extend(self.amount_micro.to_le_bytes());
        bytes.push(u8::try_from(self.id.len()).unwrap_or(u8::MAX));
        bytes.extend(&self.id);
    }

    /// Reads the hold with which `bytes` begin, and what follows it. The hold is `None` if there can be none like it;
    /// all is `None` if the bytes are too few.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Option<Self>, &[u8])> {
        let (end, rest) = bytes.split_first_chunk::<8>()?;
        let (amount, rest) = rest.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first()?;
        let (id, rest) = rest.split_at_checked(usize::from(*len))?;
        let hold = Self::checked(id, i64::from_le_bytes(*amount), i64::from_le_bytes(*end));
        Some((hold, rest))
    }
}

impl Holds {
    /// The bytes of all of them, one after the other.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len().saturating_mul(HEADER).saturating_add(self.id_bytes));
        self.iter().for_each(|hold| hold.encode(&mut bytes));
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote: the holds that there can be, and whether that is all of them.
    #[must_use]
    pub fn decode(mut bytes: &[u8]) -> (Self, bool) {
        let mut holds = Self::default();
        let mut is_whole = true;
        while !bytes.is_empty() {
            let Some((hold, rest)) = Hold::decode(bytes) else {
                return (holds, false);
            };
            bytes = rest;
            match hold {
                Some(hold) if holds.get(&hold.id).is_none() => holds.set(hold),
                _ => is_whole = false,
            }
        }
        (holds, is_whole)
    }
}
