//! The most denied of any number of keys, in a fixed number of counters.
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams",
//! 2005). A key without a counter takes over the smallest counter and continues from its count. So a count
//! is never too low. The sum of all counts is the number of denials, so the smallest count is at most that number over the
//! number of counters. No count is too high by more than that, and every key denied more often has a counter.

use crate::invariant::expected;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// Longer keys are cut to this many bytes.
pub const MAX_KEY_LEN: usize = 1024;

/// The counters of one server.
pub struct Top {
    max_counters: usize,
    /// Quick, not secure: colliding keys cost at most one comparison with every counter.
    hasher: DefaultHashBuilder,
    counters: Vec<Counter>,
    /// The numbers of the counters, by the hashes of their keys.
    numbers: HashTable<u32>,
    /// The counters by count, the largest first.
    order: Vec<Place>,
    /// The first place in the order whose count equals the last.
    smallest: usize,
}

/// The reason why a counter must exist.
const IN_USE: &str = "the counter is in use";

struct Counter {
    key: Vec<u8>,
    hash: u64,
    /// Its place in the order.
    place: u32,
    last_denied_ms: i64,
}

#[derive(Clone, Copy)]
struct Place {
    denied: u64,
    counter: u32,
}

/// A key, and how often it was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied<'top> {
    /// The key, or its first [`MAX_KEY_LEN`] bytes.
    pub key: &'top [u8],
    /// The number of its denials, or more: too high by at most all denials over the number of counters.
    pub denied: u64,
    /// Time of the last denial, in Unix milliseconds.
    pub last_denied_ms: i64,
}

impl Top {
    /// Makes room for up to `max_counters` counters, none of which is used yet.
    #[must_use]
    pub fn new(max_counters: usize) -> Self {
        Self {
            max_counters,
            hasher: DefaultHashBuilder::default(),
            counters: Vec::new(),
            numbers: HashTable::with_capacity(max_counters),
            order: Vec::new(),
            smallest: 0,
        }
    }

    /// Returns the most counters that there may be.
    #[must_use]
    pub fn max_counters(&self) -> usize {
        self.max_counters
    }

    /// Counts a denial of `key` at `now_ms`, in Unix milliseconds.
    pub fn count(&mut self, key: &[u8], now_ms: i64) {
        let key = key.get(..MAX_KEY_LEN).unwrap_or(key);
        let hash = self.hasher.hash_one(key);
        let number = self.find(key, hash).unwrap_or_else(|| self.add(key, hash));
        if let Some(counter) = expected(self.counters.get_mut(number as usize), IN_USE) {
            counter.last_denied_ms = now_ms;
            let place = counter.place as usize;
            self.raise(place);
        }
    }

    /// Returns the counted keys, the most denied first.
    pub fn iter(&self) -> impl Iterator<Item = Denied<'_>> {
        self.order.iter().filter_map(|place| {
            let Counter { key, last_denied_ms, .. } = self.counters.get(place.counter as usize)?;
            Some(Denied { key, denied: place.denied, last_denied_ms: *last_denied_ms })
        })
    }

    fn find(&self, key: &[u8], hash: u64) -> Option<u32> {
        let is_of_key = |number: &u32| self.counter(*number).is_some_and(|counter| counter.key == key);
        self.numbers.find(hash, is_of_key).copied()
    }

    fn counter(&self, number: u32) -> Option<&Counter> {
        expected(self.counters.get(number as usize), IN_USE)
    }

    /// Gives `key` a counter: a new one, or the smallest.
    fn add(&mut self, key: &[u8], hash: u64) -> u32 {
        let number = if self.counters.len() < self.max_counters {
            self.add_counter()
        } else {
            self.release_smallest()
        };
        if let Some(counter) = expected(self.counters.get_mut(number as usize), IN_USE) {
            // Reuses the bytes: a stream of new keys allocates nothing.
            counter.key.clear();
            counter.key.extend_from_slice(key);
            counter.hash = hash;
        }
        let hash_of = |number: &u32| self.counters.get(*number as usize).map_or(0, |counter| counter.hash);
        self.numbers.insert_unique(hash, number, hash_of);
        number
    }

    fn add_counter(&mut self) -> u32 {
        let number = u32::try_from(self.counters.len()).unwrap_or(u32::MAX);
        self.counters.push(Counter { key: Vec::new(), hash: 0, place: number, last_denied_ms: 0 });
        self.smallest = self.order.len();
        self.order.push(Place { denied: 0, counter: number });
        number
    }

    /// Takes the first of the smallest counters from its key.
    fn release_smallest(&mut self) -> u32 {
        let number = self.order.get(self.smallest).map_or(0, |smallest| smallest.counter);
        let hash = self.counter(number).map_or(0, |counter| counter.hash);
        if let Some(entry) = expected(self.numbers.find_entry(hash, |of| *of == number).ok(), IN_USE) {
            entry.remove();
        }
        number
    }

    /// Counts one more at a place in the order, and swaps it with the first place of equal count.
    fn raise(&mut self, place: usize) {
        let counted = expected(self.order.get(place).copied(), "each counter has a place");
        let Some(Place { denied, .. }) = counted else { return };
        let is_smallest = place >= self.smallest;
        let first = if is_smallest { self.smallest } else { self.first_with(denied, place) };
        if first != place {
            self.order.swap(first, place);
            self.update_position(first);
            self.update_position(place);
        }
        if let Some(raised) = self.order.get_mut(first) {
            raised.denied = denied.saturating_add(1);
        }
        if is_smallest {
            self.smallest = self.smallest.saturating_add(1);
        }
        if let (Some(last), true) = (self.order.last(), self.smallest == self.order.len()) {
            self.smallest = self.first_with(last.denied, self.order.len());
        }
    }

    /// Returns the first place with that count, at the latest `place`.
    fn first_with(&self, denied: u64, place: usize) -> usize {
        let before = self.order.get(..place).unwrap_or_default();
        match before.last() {
            Some(last) if last.denied == denied => before.partition_point(|other| other.denied > denied),
            _ => place,
        }
    }

    /// Stores the place in the order in its counter.
    fn update_position(&mut self, place: usize) {
        let counter = self.order.get(place).and_then(|at| self.counters.get_mut(at.counter as usize));
        if let (Some(counter), Ok(place)) = (counter, u32::try_from(place)) {
            counter.place = place;
        }
    }
}
