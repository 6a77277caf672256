//! Recognises the reports that Envoy sends at the end of a response.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lru::LruCache;

/// Of further buckets, those that were used least recently are forgotten.
const MOST_BUCKETS: usize = 100_000;

/// The buckets that were asked about with 0 hits: calls about them with hits of their own are reports.
///
/// Keeps hashes under a random seed, so that no caller can choose names that collide.
pub(super) struct Reports {
    buckets: Mutex<LruCache<u64, ()>>,
    seed: RandomState,
}

impl Reports {
    pub(super) fn new() -> Self {
        Self { buckets: Mutex::new(LruCache::unbounded()), seed: RandomState::new() }
    }

    /// Notes that reports on this bucket may follow.
    pub(super) fn expect(&self, bucket: &str) {
        let mut buckets = self.locked();
        buckets.put(self.seed.hash_one(bucket), ());
        if buckets.len() > MOST_BUCKETS {
            buckets.pop_lru();
        }
    }

    pub(super) fn are_expected(&self, bucket: &str) -> bool {
        self.locked().get(&self.seed.hash_one(bucket)).is_some()
    }

    fn locked(&self) -> MutexGuard<'_, LruCache<u64, ()>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
