//! What the queue asks of the buckets, during one turn.

use super::super::api::select_db;
use super::super::call::{Call, OwnedString};
use super::super::key::{Access, BucketKey};
use redis_module::raw;
use std::time::{Duration, Instant};
use tokenbucket_core::queue::{Db, Levels, Seen};

/// How long a turn examines and serves waiting calls before the server goes on with its other clients.
const TURN: Duration = Duration::from_micros(500);

/// Looks at buckets by their keys, until the time of one turn is over.
pub(super) struct Turn {
    context: *mut raw::RedisModuleCtx,
    now_us: i64,
    ends: Instant,
}

impl Turn {
    /// Begins a turn that decides at `now_us`, which does not move while it lasts.
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

/// Returns what an open key holds.
pub(super) fn seen<'key>(key: &'key BucketKey) -> Seen<'key> {
    Seen::new(key.bucket(), key.holds(), key.call().now_us())
}
