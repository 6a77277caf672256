//! Tokens fetched in batches and spent here, so that most takes ask nobody.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lru::LruCache;

use crate::decision::Decision;
use crate::limit::Limit;

/// What is left of the tokens that were fetched for one name.
#[derive(Default)]
pub(crate) struct Batch {
    tokens: u64,
    fetched_at: Duration,
    stale_at: Duration,
    reply: Decision,
}

impl Batch {
    /// What may be spent: nothing once as many tokens have flowed into the bucket again. Or a process that was idle
    /// would spend a batch beside the bucket that filled meanwhile.
    pub(crate) fn left(&mut self, now: Duration) -> u64 {
        if now >= self.stale_at {
            self.tokens = 0;
        }
        self.tokens
    }

    /// What may be spent, and is no longer here.
    pub(crate) fn drain(&mut self, now: Duration) -> u64 {
        let left = self.left(now);
        self.tokens = 0;
        left
    }

    /// Adds what was granted, to count from when it was asked for.
    pub(crate) fn add(&mut self, limit: &Limit, reply: Decision, asked_at: Duration) {
        self.tokens = self.left(asked_at) + reply.granted;
        (self.fetched_at, self.reply) = (asked_at, reply);
        self.stale_at = asked_at + refills_in(limit, self.tokens, reply);
    }

    pub(crate) fn spend(&mut self, cost: u64, now: Duration) -> Decision {
        self.tokens -= cost;
        let reply = self.reply.later(now.saturating_sub(self.fetched_at), 0);
        // What this process and the bucket have together.
        let remaining = reply.remaining.saturating_add_unsigned(self.tokens);
        Decision { allowed: true, granted: 1, retry_after_ms: 0, remaining, ..reply }
    }
}

fn refills_in(limit: &Limit, tokens: u64, reply: Decision) -> Duration {
    let us = limit.lasts_us(u128::from(tokens) * 1_000_000).unwrap_or(0);
    let time = Duration::from_micros(us.try_into().unwrap_or(u64::MAX));
    if limit.is_calendar() {
        // Nothing flows before the next boundary, and then all at once.
        return time.min(Duration::from_millis(reply.reset_after_ms.try_into().unwrap_or(0)));
    }
    time
}

/// A batch is locked while its tokens are fetched: one may be enough for all who wait.
pub(crate) type Shared = Arc<async_lock::Mutex<Batch>>;

pub(crate) struct Batches {
    pub(crate) size: u64,
    of_names: Mutex<LruCache<(String, Limit), Shared>>,
}

impl Batches {
    pub(crate) fn new(size: u64) -> Option<Self> {
        (size > 1).then(|| Self { size, of_names: Mutex::new(LruCache::unbounded()) })
    }

    pub(crate) fn of(&self, name: &str, limit: &Limit, now: Duration) -> Shared {
        let mut batches = self.of_names.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (name.to_owned(), limit.clone());
        if let Some(batch) = batches.get(&key) {
            return batch.clone();
        }
        drop_stale(&mut batches, now);
        batches.get_or_insert(key, Shared::default).clone()
    }

    /// All of them, which there then are no longer.
    pub(crate) fn drain(&self) -> Vec<((String, Limit), Shared)> {
        let mut batches = self.of_names.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| batches.pop_lru()).collect()
    }
}

/// Looks at the two that were not used for longest, so that memory stays bounded.
fn drop_stale(batches: &mut LruCache<(String, Limit), Shared>, now: Duration) {
    for _ in 0..2 {
        let Some((_, oldest)) = batches.peek_lru() else { return };
        let is_idle = Arc::strong_count(oldest) == 1;
        let is_stale = is_idle && oldest.try_lock().is_some_and(|mut batch| batch.left(now) == 0);
        if !is_stale {
            return;
        }
        batches.pop_lru();
    }
}
