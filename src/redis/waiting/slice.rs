//! When calls are served: the timer of all, the slices of time that it begins, and the buckets that the queue reads in one.

use super::super::api::{select_db, server};
use super::super::call::{Call, OwnedString};
use super::super::key::{Access, BucketKey};
use super::calls::{is_any, with_calls, CONTEXT};
use redis_module::raw;
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokenbucket_core::queue::{Db, Levels, Seen};

/// The longest slice, after which the server serves its other clients.
const LONGEST: Duration = Duration::from_micros(500);

/// The longest time that serving owes to the server's other clients. A slice that took longer was suspended, with the server.
const MOST_OWED: Duration = Duration::from_millis(1);

/// A slice of time. It reads buckets by their keys.
pub(super) struct Slice {
    context: *mut raw::RedisModuleCtx,
    now_us: i64,
    began: Instant,
    time: Duration,
}

impl Slice {
    /// Begins a slice. Its decisions are as of `now_us`.
    ///
    /// Serving takes at most half of the server's time. A slice owes the other half: as much time as it took.
    pub(super) fn begin(context: *mut raw::RedisModuleCtx, now_us: i64) -> Self {
        let began = Instant::now();
        let owed = with_calls(|calls| calls.served_until.map(|until| until.saturating_duration_since(began)));
        let time = LONGEST.saturating_sub(owed.and_then(|owed| owed.checked_div(2)).unwrap_or_default());
        Self { context, now_us, began, time }
    }

    /// Returns a slice that reads the buckets of a command.
    pub(super) fn within(call: &Call) -> Self {
        Self { context: call.context, now_us: call.now_us(), began: Instant::now(), time: Duration::ZERO }
    }

    /// Ends the slice.
    pub(super) fn end(self) {
        with_calls(|calls| {
            let from = calls.served_until.map_or(self.began, |until| until.max(self.began));
            let until = from.checked_add(self.began.elapsed().saturating_mul(2));
            calls.served_until = until.min(Instant::now().checked_add(MOST_OWED));
        });
    }

    /// Returns whether less than half of its time is over.
    pub(super) fn is_young(&self) -> bool {
        self.began.elapsed().saturating_mul(2) < self.time
    }
}

impl Levels<OwnedString> for Slice {
    fn look<T>(&mut self, db: Db, key: &OwnedString, look: impl FnOnce(Option<&Seen<'_>>) -> T) -> T {
        select_db(self.context, db);
        let call = Call::resumed(self.context, self.now_us);
        let key = BucketKey::open(call, key.argument(), Access::Read).ok();
        look(key.as_ref().map(seen).as_ref())
    }

    fn has_time(&mut self) -> bool {
        self.began.elapsed() < self.time
    }
}

/// Returns the content of an open key.
pub(super) fn seen<'key>(key: &'key BucketKey) -> Seen<'key> {
    Seen::new(key.bucket(), key.extension(), key.call().now_us())
}

/// The interval of checks, in microseconds, on servers that do not report removed keys or moved slots.
pub(super) const POLL_US: i64 = 100_000;
/// The least interval for each waiting call. A check takes up to 3 microseconds a call, so less than 1 % of the time.
const POLL_US_PER_CALL: i64 = 500;

/// Sets the timer to the next event, at the earliest `not_before_us` from now.
pub(super) fn arm(now_us: i64, not_before_us: i64) {
    if !is_any() {
        return disarm();
    }
    let earliest_us = now_us.saturating_add(not_before_us);
    let next_us = with_calls(|calls| match calls.set_back_us {
        0 => calls.queue.next_look_us().unwrap_or(i64::MAX),
        _ => now_us,
    });
    let latest_us = if reports_removed_keys() { i64::MAX } else { next_poll_us() };
    let fires_us = next_us.min(latest_us).max(earliest_us);
    if fires_us == i64::MAX || with_calls(|calls| calls.timer.is_some_and(|(_, at_us)| at_us <= fires_us)) {
        return;
    }
    disarm();
    let after_us = fires_us.saturating_sub(now_us).saturating_add(999).max(0);
    let on_timer = with_calls(|calls| calls.on_timer);
    // SAFETY: the context is the module's own; the timer is stopped or fires once.
    let timer = unsafe {
        let context = CONTEXT.load(Ordering::Relaxed);
        server!(RedisModule_CreateTimer)(context, after_us / 1000, on_timer, ptr::null_mut())
    };
    with_calls(|calls| calls.timer = Some((timer, fires_us)));
}

pub(super) fn disarm() {
    if let Some((timer, _)) = with_calls(|calls| calls.timer.take()) {
        // SAFETY: the timer is ours and has not fired.
        unsafe { server!(RedisModule_StopTimer)(CONTEXT.load(Ordering::Relaxed), timer, ptr::null_mut()) };
    }
}

/// Returns when to check all buckets again, on servers that do not report removed keys.
fn next_poll_us() -> i64 {
    with_calls(|calls| {
        let count = i64::try_from(calls.queue.count()).unwrap_or(i64::MAX);
        calls.polled_us.saturating_add(POLL_US.max(count.saturating_mul(POLL_US_PER_CALL)))
    })
}

/// Returns whether it is time to check all buckets.
pub(super) fn is_poll_due(now_us: i64) -> bool {
    !reports_removed_keys() && next_poll_us() <= now_us
}

/// Returns whether the server reports removed keys: from 6.2 on, like defragmentation.
pub(super) fn reports_removed_keys() -> bool {
    // SAFETY: the table of functions was filled when the module was loaded.
    unsafe { raw::RedisModule_DefragAlloc }.is_some()
}
