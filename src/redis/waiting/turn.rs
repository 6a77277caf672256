//! The buckets that the queue reads during one turn.

use super::super::api::select_db;
use super::super::call::{Call, OwnedString};
use super::super::key::{Access, BucketKey};
use redis_module::raw;
use std::time::{Duration, Instant};
use tokenbucket_core::queue::{Db, Levels, Seen};

/// The longest time of a turn, after which the server serves its other clients.
const TURN: Duration = Duration::from_micros(500);

/// Reads buckets by their keys, until the time of the turn is over.
pub(super) struct Turn {
    context: *mut raw::RedisModuleCtx,
    now_us: i64,
    ends: Instant,
}

impl Turn {
    /// Begins a turn. Its decisions are as of `now_us`.
    pub(super) fn new(context: *mut raw::RedisModuleCtx, now_us: i64) -> Self {
        let now = Instant::now();
        Self { context, now_us, ends: now.checked_add(TURN).unwrap_or(now) }
    }
}

impl Levels<OwnedString> for Turn {
    fn look<T>(&mut self, db: Db, key: &OwnedString, look: impl FnOnce(Option<&Seen<'_>>) -> T) -> T {
        select_db(self.context, db);
        let call = Call::resumed(self.context, self.now_us);
        let key = BucketKey::open(call, key.argument(), Access::Read).ok();
        look(key.as_ref().map(seen).as_ref())
    }

    fn has_time(&mut self) -> bool {
        Instant::now() < self.ends
    }
}

/// Returns the content of an open key.
pub(super) fn seen<'key>(key: &'key BucketKey) -> Seen<'key> {
    Seen::new(key.bucket(), key.holds(), key.call().now_us())
}
