//! Recognises names that were seen before: reservations that have ended, and descriptors that were logged.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;

/// The most names that are kept; then those used least recently go.
const MOST: usize = 100_000;

/// Names as hashes under a random seed, so that no caller can choose names that collide.
pub(super) struct Recent {
    hashes: Mutex<LruCache<u64, ()>>,
    seed: RandomState,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self { hashes: Mutex::new(LruCache::unbounded()), seed: RandomState::new() }
    }

    /// Adds a name, and returns whether it is new.
    pub(super) fn insert(&self, one: &(impl Hash + ?Sized)) -> bool {
        let mut hashes = self.locked();
        let is_new = hashes.put(self.seed.hash_one(one), ()).is_none();
        if hashes.len() > MOST {
            hashes.pop_lru();
        }
        is_new
    }

    pub(super) fn contains(&self, one: &(impl Hash + ?Sized)) -> bool {
        self.locked().get(&self.seed.hash_one(one)).is_some()
    }

    fn locked(&self) -> MutexGuard<'_, LruCache<u64, ()>> {
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
