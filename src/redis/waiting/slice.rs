//! The slices of time in which calls are served, and the buckets that the queue reads in one.

use super::super::api::select_db;
use super::super::call::{Call, OwnedString};
use super::super::key::{Access, BucketKey};
use super::calls::with_calls;
use redis_module::raw;
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
    Seen::new(key.bucket(), key.holds(), key.call().now_us())
}
