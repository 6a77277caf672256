//! The holds themselves, numbered without gaps, and the hash table of their ids.

use super::item::{Hold, Place};
use super::memory::{heap_capacity, shrink};
use smallvec::SmallVec;
use std::hash::{BuildHasher, RandomState};
use std::mem::{replace, size_of};
use std::sync::LazyLock;

/// The holds in one page.
const PAGE: usize = 128;

/// Up to this many ids are compared one by one, which is cheaper than a table.
const FEW: usize = 8;

/// The number of no slot: where a chain of the hash table ends.
const NONE: u32 = u32::MAX;

/// Randomly seeded, so that clients cannot choose colliding ids.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The holds themselves, numbered without gaps, and the hash table of their ids.
#[derive(Clone, Default)]
pub(super) struct Slots {
    /// All but the last are full.
    pages: SmallVec<[Page; 1]>,
    pub(super) len: usize,
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
    pub(super) fn get(&self, slot: u32) -> Option<&Hold> {
        Some(&self.slot(slot)?.hold)
    }

    /// The number of the last slot.
    pub(super) fn last(&self) -> u32 {
        u32::try_from(self.len.wrapping_sub(1)).unwrap_or(NONE)
    }

    /// The hash of an id, where it is needed to find one.
    pub(super) fn hash(&self, id: &[u8]) -> u32 {
        if self.chains.is_empty() {
            return 0;
        }
        hash(id)
    }

    pub(super) fn find(&self, id: &[u8], hash: u32) -> Option<u32> {
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
    pub(super) fn put(&mut self, hold: Hold, hash: u32) -> Option<u32> {
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
    pub(super) fn change(&mut self, slot: u32, to: &Hold) {
        if let Some(Slot { hold, .. }) = self.slot_mut(slot) {
            hold.amount_micro = to.amount_micro;
            hold.ends_at_us = to.ends_at_us;
        }
    }

    /// Takes the hold out of a slot, into which the last one moves.
    pub(super) fn free(&mut self, slot: u32) -> Option<Hold> {
        let last = self.last();
        if !self.chains.is_empty() {
            self.repoint(slot, self.slot(slot)?.next);
            if slot != last {
                self.repoint(last, slot);
            }
        }
        let freed = self.pages.last_mut()?.pop()?;
        self.len = self.len.wrapping_sub(1);
        let freed = if slot == last { freed } else { replace(self.slot_mut(slot)?, freed) };
        self.shrink();
        Some(freed.hold)
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

    pub(super) fn bytes(&self) -> usize {
        let in_pages = match self.pages.as_slice() {
            [page] => heap_capacity(page),
            pages => pages.len().saturating_mul(PAGE),
        };
        let slots = in_pages.saturating_mul(size_of::<Slot>());
        let pages = heap_capacity(&self.pages).saturating_mul(size_of::<Page>());
        let chains = self.chains.capacity().saturating_mul(size_of::<u32>());
        slots.saturating_add(pages).saturating_add(chains)
    }

    #[inline]
    pub(super) fn ends_at_us(&self, slot: u32) -> i64 {
        self.get(slot).map_or(i64::MAX, |hold| hold.ends_at_us)
    }

    pub(super) fn is_before(&self, slot: u32, place: Place<'_>) -> bool {
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
