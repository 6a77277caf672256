//! The waiting calls of the server, and the removed keys that are not marked yet.

use super::super::call::{Argument, OwnedString};
use super::super::COUNTERS;
use super::client::Client;
use redis_module::raw;
use std::collections::BTreeMap;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicPtr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokenbucket_core::queue::{Arrival, Db, Queue};

/// The waiting calls, and their clients.
#[derive(Default)]
pub(super) struct WaitingCalls {
    pub(super) queue: Queue<OwnedString>,
    pub(super) clients: BTreeMap<Arrival, NonNull<Client>>,
    /// Until when serving has used up its share of time; see `slice.rs`.
    pub(super) served_until: Option<Instant>,
    /// The server's timer, and when it fires, in Unix microseconds.
    pub(super) timer: Option<(raw::RedisModuleTimerID, i64)>,
    /// What the timer calls; none before the module is loaded.
    pub(super) on_timer: raw::RedisModuleTimerProc,
    /// When all buckets were last checked because the server does not report removed keys, in Unix microseconds.
    pub(super) polled_us: i64,
    /// The clock's time when it was last read.
    seen_us: i64,
    /// How far the clock was set back, which the queue does not know yet.
    pub(super) set_back_us: i64,
}

impl WaitingCalls {
    /// Notes how far the clock was set back since it was last read, and returns it.
    pub(super) fn look_at_clock(&mut self, now_us: i64) -> i64 {
        if self.queue.count() == 0 {
            (self.seen_us, self.set_back_us) = (now_us, 0);
        }
        let back_us = self.seen_us.saturating_sub(now_us).max(0);
        self.seen_us = now_us;
        self.set_back_us = self.set_back_us.saturating_add(back_us);
        back_us
    }
}

// SAFETY: the pointers are to clients and strings that the server keeps for us; only its main thread uses them.
unsafe impl Send for WaitingCalls {}

static CALLS: Mutex<Option<WaitingCalls>> = Mutex::new(None);

/// The module's own context, for work outside of commands; null until the module is loaded.
pub(super) static CONTEXT: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// Works on the calls. Only the server's main thread calls this, never inside itself, except in [`note_gone`].
pub(super) fn with_calls<T>(work: impl FnOnce(&mut WaitingCalls) -> T) -> T {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let calls = calls.get_or_insert_default();
    let result = work(calls);
    COUNTERS.set_waiting(calls.queue.count());
    result
}

/// Returns whether calls wait.
#[inline(always)]
pub(crate) fn is_any() -> bool {
    COUNTERS.waiting() > 0
}

/// A key, with its database if that is known.
type GoneKey = (Option<Db>, Box<[u8]>);

/// Removed keys that are not marked yet.
static GONE: Mutex<Vec<GoneKey>> = Mutex::new(Vec::new());

/// Notes a removed key. Returns whether the queue has anything to examine.
pub(super) fn note_gone(db: Option<Db>, key: &Argument) -> bool {
    list().push((db, key.as_ref().into()));
    // If one of our own calls removes the key, or finds it expired, it marks the key later.
    CALLS.try_lock().map(drop).is_ok() && mark_gone()
}

/// Marks the removed keys in the queue. Returns whether the queue has anything to examine.
pub(super) fn mark_gone() -> bool {
    let gone = std::mem::take(&mut *list());
    with_calls(|calls| {
        for (db, key) in gone {
            calls.queue.mark_gone(db, Some(&key));
        }
        calls.queue.is_marked(i64::MIN)
    })
}

fn list() -> MutexGuard<'static, Vec<GoneKey>> {
    GONE.lock().unwrap_or_else(PoisonError::into_inner)
}
