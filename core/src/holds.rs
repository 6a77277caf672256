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
//! The order is kept in chunks of up to `CHUNK` holds, with the sum of each. Ids are found by a hash table, once
//! there are more than `FEW`. Holds that end in the same microsecond are ordered by id: so the order, and with it
//! what is saved and replied, does not depend on how it came about.
//!
//! # Why no call takes long
//!
//! A million holds may end at once, and freeing them all takes a few hundred milliseconds. So a hold that has ended is
//! dropped in two steps. [`Holds::drop_first`] moves whole chunks out of the order: from then on the hold does not
//! exist for anybody. [`Holds::free_dropped`] frees a bounded number of them, in this call and the next ones. Nothing
//! grows or shrinks in one go either: holds are stored in pages, and the hash table grows and shrinks by one chain at
//! a time (linear hashing: Litwin, "Linear Hashing: A New Tool for File and Table Addressing", 1980).

use crate::bucket::{Bucket, Returns, MAX_TIME_US};
use crate::number::MAX_MICRO;
use crate::rate::Rate;
use smallvec::{smallvec, Array, SmallVec};
use std::hash::{BuildHasher, RandomState};
use std::mem::{replace, size_of};
use std::sync::LazyLock;

/// The longest id of a hold, in bytes.
pub const MAX_ID_LEN: usize = 128;

/// The most dropped holds that one call frees.
pub const FREED_A_CALL: usize = 512;

/// The most holds in one chunk of the order.
const CHUNK: usize = 128;

/// Chunks that a search steps over at once.
const STRIDE: usize = 8;

/// The holds in one page.
const PAGE: usize = 128;

/// Up to this many ids are compared one by one, which is cheaper than a table.
const FEW: usize = 8;

/// The number of no slot: where a chain of the hash table ends.
const NONE: u32 = u32::MAX;

/// The most that is reported as returned: it fills any bucket from the deepest debt, and is small enough to be added
/// to a level.
const MOST_RETURNED: i64 = 1 << 61;

/// Randomly seeded, so that clients cannot choose colliding ids.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Tokens that are taken until a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its id: 1 to [`MAX_ID_LEN`] bytes.
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

    /// Whether it stands before another in the order of holds: by their ends, then by their ids.
    #[must_use]
    pub fn is_before(&self, other: &Self) -> bool {
        self.place() < other.place()
    }

    /// What the order goes by.
    fn place(&self) -> Place<'_> {
        (self.ends_at_us, &self.id)
    }
}

/// An end, and an id to tell apart what ends together.
type Place<'a> = (i64, &'a [u8]);

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
        self.take(slot)
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
                self.take(slot);
            }
            self.dropped.take_if(|dropped| dropped.order.len == 0);
        }
    }

    /// All of them, the next to end first.
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        let entries = self.order.chunks.iter().flat_map(|chunk| &chunk.entries);
        entries.filter_map(|entry| self.slots.get(entry.slot))
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
    fn take(&mut self, slot: u32) -> Option<Hold> {
        let last = self.slots.last();
        if slot != last {
            self.renumber(last, slot);
        }
        let hold = self.slots.take(slot)?;
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

impl Returns for &Holds {
    #[inline]
    fn ended_micro(self, now_us: i64) -> i64 {
        let (_, sum) = self.order.until(&self.slots, now_us);
        i64::try_from(sum).unwrap_or(MOST_RETURNED).min(MOST_RETURNED)
    }

    #[inline]
    fn last_end_us(self) -> i64 {
        self.order.last_end_us()
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

/// The holds themselves, numbered without gaps, and the hash table of their ids.
#[derive(Clone, Default)]
struct Slots {
    /// All but the last are full.
    pages: SmallVec<[Page; 1]>,
    len: usize,
    /// The first slot of each chain. As many chains as slots, or none as long as there are few.
    chains: Vec<u32>,
}

type Page = SmallVec<[Slot; 1]>;

#[derive(Clone)]
struct Slot {
    hold: Hold,
    /// Of its id, if there are chains.
    hash: u32,
    /// The next in its chain.
    next: u32,
}

impl Slots {
    #[inline]
    fn slot(&self, slot: u32) -> Option<&Slot> {
        let (page, place) = place_of(slot);
        self.pages.get(page)?.get(place)
    }

    #[inline]
    fn slot_mut(&mut self, slot: u32) -> Option<&mut Slot> {
        let (page, place) = place_of(slot);
        self.pages.get_mut(page)?.get_mut(place)
    }

    #[inline]
    fn get(&self, slot: u32) -> Option<&Hold> {
        Some(&self.slot(slot)?.hold)
    }

    /// The number of the last slot.
    fn last(&self) -> u32 {
        u32::try_from(self.len.wrapping_sub(1)).unwrap_or(NONE)
    }

    /// The hash of an id, where it is needed to find one.
    fn hash(&self, id: &[u8]) -> u32 {
        if self.chains.is_empty() {
            return 0;
        }
        hash(id)
    }

    fn find(&self, id: &[u8], hash: u32) -> Option<u32> {
        if self.chains.is_empty() {
            let mut numbered = (0u32..).zip(self.pages.iter().flatten());
            return Some(numbered.find(|(_, slot)| *slot.hold.id == *id)?.0);
        }
        let mut number = *self.chains.get(self.chain_of(hash))?;
        while let Some(slot) = self.slot(number) {
            if slot.hash == hash && *slot.hold.id == *id {
                return Some(number);
            }
            number = slot.next;
        }
        None
    }

    /// `None` if there are more than can be numbered.
    fn put(&mut self, hold: Hold, hash: u32) -> Option<u32> {
        let slot = u32::try_from(self.len).ok().filter(|slot| *slot != NONE)?;
        if self.len > 0 && self.len % PAGE == 0 {
            self.pages.push(Page::with_capacity(PAGE));
        } else if self.pages.is_empty() {
            self.pages.push(Page::new());
        }
        self.pages.last_mut()?.push(Slot { hold, hash, next: NONE });
        self.len = self.len.wrapping_add(1);
        if !self.chains.is_empty() {
            self.split_chain();
            self.link(slot);
        } else if self.len > FEW {
            self.link_all();
        }
        Some(slot)
    }

    /// Keeps the id, and takes over all else.
    fn change(&mut self, slot: u32, to: &Hold) {
        if let Some(Slot { hold, .. }) = self.slot_mut(slot) {
            hold.amount_micro = to.amount_micro;
            hold.ends_at_us = to.ends_at_us;
        }
    }

    /// Takes the hold out of a slot, into which the last one moves.
    fn take(&mut self, slot: u32) -> Option<Hold> {
        let last = self.last();
        if !self.chains.is_empty() {
            self.repoint(slot, self.slot(slot)?.next);
            if slot != last {
                self.repoint(last, slot);
            }
        }
        let taken = self.pages.last_mut()?.pop()?;
        self.len = self.len.wrapping_sub(1);
        let taken = if slot == last { taken } else { replace(self.slot_mut(slot)?, taken) };
        self.shrink();
        Some(taken.hold)
    }

    /// Gives memory back that a slot less does not need.
    fn shrink(&mut self) {
        if self.pages.len() > 1 {
            if self.pages.last().is_some_and(SmallVec::is_empty) {
                self.pages.pop();
            }
        } else {
            self.pages.iter_mut().for_each(shrink);
        }
        shrink(&mut self.pages);
        if self.chains.is_empty() {
            return;
        }
        if self.len <= FEW / 2 {
            self.chains = Vec::new();
            return;
        }
        self.merge_chain();
        if self.chains.len() <= self.chains.capacity() / 4 {
            self.chains.shrink_to(self.chains.capacity() / 2);
        }
    }

    /// The chain of a hash: its lower bits, of which one fewer counts where the chain is not split yet.
    #[inline]
    fn chain_of(&self, hash: u32) -> usize {
        let mask = self.chains.len().next_power_of_two().wrapping_sub(1);
        let chain = hash as usize & mask;
        if chain < self.chains.len() {
            return chain;
        }
        chain & (mask >> 1)
    }

    /// Puts a slot in front of its chain.
    fn link(&mut self, slot: u32) {
        let Some(hash) = self.slot(slot).map(|slot| slot.hash) else {
            return;
        };
        let chain = self.chain_of(hash);
        let first = self.chains.get_mut(chain).map_or(NONE, |first| replace(first, slot));
        if let Some(slot) = self.slot_mut(slot) {
            slot.next = first;
        }
    }

    /// Makes what points to a slot in its chain point to another.
    fn repoint(&mut self, slot: u32, to: u32) {
        let Some(hash) = self.slot(slot).map(|slot| slot.hash) else {
            return;
        };
        let chain = self.chain_of(hash);
        let Some(first) = self.chains.get_mut(chain) else {
            return;
        };
        if *first == slot {
            *first = to;
            return;
        }
        let mut number = *first;
        while let Some(before) = self.slot_mut(number) {
            if before.next == slot {
                before.next = to;
                return;
            }
            number = before.next;
        }
    }

    /// Makes a chain for each slot.
    fn link_all(&mut self) {
        self.chains = vec![NONE; self.len];
        self.pages.iter_mut().flatten().for_each(|slot| slot.hash = hash(&slot.hold.id));
        (0..=self.last()).for_each(|slot| self.link(slot));
    }

    /// Adds a chain, and moves to it what belongs there from the one that had it until now.
    fn split_chain(&mut self) {
        let old = without_highest_bit(self.chains.len());
        self.chains.push(NONE);
        let mut number = self.chains.get_mut(old).map_or(NONE, |first| replace(first, NONE));
        while let Some(next) = self.slot(number).map(|slot| slot.next) {
            self.link(number);
            number = next;
        }
    }

    /// Removes the last chain, and moves what is in it to the one that has it from now on.
    fn merge_chain(&mut self) {
        let mut number = self.chains.pop().unwrap_or(NONE);
        while let Some(next) = self.slot(number).map(|slot| slot.next) {
            self.link(number);
            number = next;
        }
    }

    fn bytes(&self) -> usize {
        let in_pages = match self.pages.as_slice() {
            [page] => room(page),
            pages => pages.len().saturating_mul(PAGE),
        };
        let slots = in_pages.saturating_mul(size_of::<Slot>());
        let pages = room(&self.pages).saturating_mul(size_of::<Page>());
        let chains = self.chains.capacity().saturating_mul(size_of::<u32>());
        slots.saturating_add(pages).saturating_add(chains)
    }

    #[inline]
    fn ends_at_us(&self, slot: u32) -> i64 {
        self.get(slot).map_or(i64::MAX, |hold| hold.ends_at_us)
    }

    fn is_before(&self, slot: u32, place: Place<'_>) -> bool {
        self.get(slot).is_some_and(|hold| hold.place() < place)
    }
}

/// The page of a slot, and the place in it.
#[inline]
fn place_of(slot: u32) -> (usize, usize) {
    (slot as usize / PAGE, slot as usize % PAGE)
}

#[allow(clippy::cast_possible_truncation)] // The lower bits are what is wanted.
fn hash(id: &[u8]) -> u32 {
    HASHER.hash_one(id) as u32
}

/// The chain that had what a new one has, for the number of the new one.
fn without_highest_bit(chain: usize) -> usize {
    chain.checked_ilog2().map_or(0, |highest| chain ^ 1usize.wrapping_shl(highest))
}

/// The slots in the order in which their holds end.
#[derive(Clone, Default)]
struct Order {
    /// None is empty.
    chunks: SmallVec<[Chunk; 1]>,
    len: usize,
    /// How many entries the chunks have room for on the heap.
    room: usize,
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
    fn change_only(&mut self, to: &Hold) {
        self.sum = Sum(to.amount_micro.into());
        if let Some(chunk) = self.chunks.first_mut() {
            chunk.sum = self.sum;
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
        let before = room(&chunk.entries);
        chunk.entries.insert(position.min(chunk.entries.len()), entry);
        self.room = self.room.wrapping_sub(before).wrapping_add(room(&chunk.entries));
        chunk.sum.add(entry.amount_micro);
        self.sum.add(entry.amount_micro);
        self.len = self.len.wrapping_add(1);
    }

    /// Makes two chunks of one that is full.
    fn split(&mut self, slots: &Slots, index: usize) {
        let Some(chunk) = self.chunks.get_mut(index) else {
            return;
        };
        let before = room(&chunk.entries);
        let back = Chunk::new(slots, chunk.entries.drain(CHUNK / 2..).collect());
        chunk.entries.shrink_to_fit();
        chunk.update(slots);
        let after = room(&chunk.entries).wrapping_add(room(&back.entries));
        self.room = self.room.wrapping_sub(before).wrapping_add(after);
        self.chunks.insert(index.wrapping_add(1), back);
    }

    fn remove(&mut self, slots: &Slots, slot: u32) {
        let Some(hold) = slots.get(slot) else {
            return;
        };
        let index = self.chunk_of(slots, hold.place());
        let position = self.position_of(slots, index, hold.place());
        self.remove_at(slots, index, position);
        self.merge(slots, index);
    }

    /// Takes out the last entry, and returns its slot.
    fn pop(&mut self, slots: &Slots) -> Option<u32> {
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
                self.room = self.room.wrapping_sub(room(&chunk.entries));
                self.chunks.remove(index);
                shrink(&mut self.chunks);
            }
        }
        Some(slot)
    }

    /// Gives the entry of a slot another number. False if it has none here.
    fn renumber(&mut self, slots: &Slots, slot: u32, number: u32) -> bool {
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
    fn move_first(&mut self, count: usize, slots: &Slots, to: &mut Self) {
        let mut left = count.min(self.len);
        let is_whole = |chunk: &&Chunk| {
            let rest = left.checked_sub(chunk.entries.len());
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        let whole = self.chunks.iter().take_while(is_whole).count();
        for chunk in self.chunks.drain(..whole) {
            self.room = self.room.wrapping_sub(room(&chunk.entries));
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
        self.room = self.room.wrapping_add(room(&chunk.entries));
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
        let before = room(&chunk.entries).wrapping_add(room(&back.entries));
        chunk.entries.extend(back.entries);
        chunk.entries.shrink_to_fit();
        chunk.update(slots);
        self.room = self.room.wrapping_sub(before).wrapping_add(room(&chunk.entries));
    }

    fn bytes(&self) -> usize {
        let chunks = room(&self.chunks).saturating_mul(size_of::<Chunk>());
        chunks.saturating_add(self.room.saturating_mul(size_of::<Entry>()))
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

    #[inline]
    fn last_end_us(&self) -> i64 {
        self.chunks.last().map_or(i64::MIN, |chunk| chunk.last_end_us)
    }

    /// Where an entry is in a chunk, or would have to be.
    fn position_of(&self, slots: &Slots, index: usize, place: Place<'_>) -> usize {
        let entries = self.chunks.get(index).map_or(&[][..], |chunk| &chunk.entries);
        entries.partition_point(|other| slots.is_before(other.slot, place))
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
    fn covers_at_us(&self, slots: &Slots, rate: &Rate, since_us: i64, missing_micro: i128) -> i64 {
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

/// Gives the memory back of a list that is less than a quarter full. One that held a few keeps room for a few.
fn shrink<A: Array>(list: &mut SmallVec<A>) {
    if list.spilled() && list.len() < list.capacity() / 4 {
        list.shrink_to_fit();
    }
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

    /// Reads what [`encode`](Self::encode) wrote: the holds that there can be, and whether that is all of them. Holds
    /// that are not in the order of their ends and ids are left out: sorting them could take quadratic time.
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
                Some(hold) if holds.may_append(&hold) => holds.set(hold),
                _ => is_whole = false,
            }
        }
        (holds, is_whole)
    }

    /// Whether a hold is new, and ends behind all others.
    fn may_append(&self, hold: &Hold) -> bool {
        let last = self.order.chunks.last().and_then(|chunk| chunk.entries.last());
        let last = last.and_then(|last| self.slots.get(last.slot));
        last.is_none_or(|last| last.is_before(hold)) && self.get(&hold.id).is_none()
    }
}
