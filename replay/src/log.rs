//! The requests of all logs, in 24 bytes each, and the keys that made them.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

/// There are more keys or requests than 32 bits count.
const TOO_MANY: &str = "more than 4,294,967,295 requests or keys: take a --sample";

#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The number of its key.
    pub key: u32,
    /// Its number among the lines: requests of the same moment are decided in this order.
    number: u32,
    /// Unix microseconds.
    pub at_us: i64,
    /// Micro-tokens.
    pub cost_micro: i64,
}

/// Requests, and after [`sort`](Self::sort) those of each key together, in the order of their times.
#[derive(Default)]
pub struct Log {
    events: Vec<Event>,
    /// All keys, one behind the other, and where each ends: a key costs about 20 bytes and itself.
    keys: Vec<u8>,
    ends: Vec<usize>,
    /// The numbers of the keys by their hashes.
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Log {
    /// Adds a request.
    ///
    /// # Errors
    /// There are more than 2^32 requests or keys.
    pub fn push(&mut self, key: &[u8], at_us: i64, cost_micro: i64) -> Result<(), &'static str> {
        let number = u32::try_from(self.events.len()).map_err(|_| TOO_MANY)?;
        let key = self.number(key)?;
        self.events.push(Event { key, number, at_us, cost_micro });
        Ok(())
    }

    /// Returns the number of a key, which it adds if it is new.
    fn number(&mut self, key: &[u8]) -> Result<u32, &'static str> {
        let Self { keys, ends, numbers, hasher, .. } = self;
        let hash = hasher.hash_one(key);
        if let Some(number) = numbers.find(hash, |number| slice(keys, ends, *number) == key) {
            return Ok(*number);
        }
        let number = u32::try_from(ends.len()).map_err(|_| TOO_MANY)?;
        numbers.insert_unique(hash, number, |number| hasher.hash_one(slice(keys, ends, *number)));
        keys.extend_from_slice(key);
        ends.push(keys.len());
        Ok(number)
    }

    /// Sorts the requests by key and time.
    pub fn sort(&mut self) {
        // One comparison of 128 bits is quicker than three.
        self.events.sort_unstable_by_key(|Event { key, at_us, number, .. }| {
            u128::from(*key) << 96 | u128::from(at_us.unsigned_abs()) << 32 | u128::from(*number)
        });
    }

    /// Returns the requests of each key, in the order of their numbers.
    pub fn by_key(&self) -> impl Iterator<Item = &[Event]> {
        self.events.chunk_by(|one, next| one.key == next.key)
    }

    /// Returns the requests of one key.
    #[must_use]
    pub fn of_key(&self, number: u32) -> &[Event] {
        let start = self.events.partition_point(|event| event.key < number);
        let end = self.events.partition_point(|event| event.key <= number);
        self.events.get(start..end).unwrap_or_default()
    }

    #[must_use]
    pub fn count_keys(&self) -> usize {
        self.ends.len()
    }

    /// Returns the bytes of a key.
    #[must_use]
    pub fn key(&self, number: u32) -> &[u8] {
        slice(&self.keys, &self.ends, number)
    }

    /// Returns the times of the first and the last request.
    #[must_use]
    pub fn span_us(&self) -> (i64, i64) {
        let times = self.events.iter().map(|event| event.at_us);
        times.fold((i64::MAX, 0), |(first, last), at| (first.min(at), last.max(at)))
    }

    /// Returns the unit of the times: a second, a millisecond or a microsecond.
    #[must_use]
    pub fn tick_us(&self) -> i64 {
        let is_whole = |unit: &i64| self.events.iter().all(|event| event.at_us % unit == 0);
        [1_000_000, 1000].into_iter().find(is_whole).unwrap_or(1)
    }

    /// Distributes the requests of a key in the same tick evenly over it. They are sorted.
    pub fn spread(&mut self) {
        let tick_us = self.tick_us();
        for same in self.events.chunk_by_mut(|one, next| (one.key, one.at_us) == (next.key, next.at_us)) {
            let count = i64::try_from(same.len()).unwrap_or(i64::MAX);
            for (place, event) in (0..).zip(same) {
                event.at_us += tick_us * place / count;
            }
        }
    }
}

fn slice<'a>(keys: &'a [u8], ends: &[usize], number: u32) -> &'a [u8] {
    let number = number as usize;
    let start = number.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
    ends.get(number).and_then(|end| keys.get(start..*end)).unwrap_or_default()
}
