//! What the queue asks of the buckets.

use super::super::call::{Call, OwnedString};
use super::super::key::{Access, BucketKey};
use super::select_db;
use redis_module::raw;
use tokenbucket_core::bucket::{Change, Limit, NoHolds, MAX_TIME_US};
use tokenbucket_core::queue::{Db, Held, Levels};

/// A bucket that is open already, the only one that is asked about.
pub(super) struct OpenKey<'key, 'call>(pub(super) &'key BucketKey<'call>);

impl Levels for OpenKey<'_, '_> {
    fn lacks_until_us(&mut self, _db: Db, _key: &[u8], limit: &Limit, wanted_micro: i64) -> Option<i64> {
        lacks_until_us(self.0, limit, wanted_micro)
    }

    fn held(&mut self, _db: Db, _key: &[u8], id: &[u8]) -> Held {
        held(self.0, id)
    }

    fn now_us(&self) -> i64 {
        self.0.call().now_us()
    }
}

/// Any bucket, by its key.
pub(super) struct Lookup {
    context: *mut raw::RedisModuleCtx,
    now_us: i64,
}

impl Lookup {
    pub(super) fn new(context: *mut raw::RedisModuleCtx, now_us: i64) -> Self {
        Self { context, now_us }
    }

    /// `None` if the key holds something else.
    fn open<T>(&self, db: Db, key: &[u8], look: impl FnOnce(&BucketKey) -> T) -> Option<T> {
        select_db(self.context, db);
        let name = OwnedString::new(key);
        let call = Call::resumed(self.context, &[], self.now_us);
        let key = BucketKey::open(call, name.argument(), Access::Read).ok()?;
        Some(look(&key))
    }
}

impl Levels for Lookup {
    /// A key of another type lacks nothing: the call is tried then, and gets its error.
    fn lacks_until_us(&mut self, db: Db, key: &[u8], limit: &Limit, wanted_micro: i64) -> Option<i64> {
        self.open(db, key, |key| lacks_until_us(key, limit, wanted_micro)).flatten()
    }

    fn held(&mut self, db: Db, key: &[u8], id: &[u8]) -> Held {
        self.open(db, key, |key| held(key, id)).unwrap_or_default()
    }

    fn now_us(&self) -> i64 {
        self.now_us
    }
}

fn lacks_until_us(key: &BucketKey, limit: &Limit, wanted_micro: i64) -> Option<i64> {
    let now_us = key.call().now_us();
    let wait_us = match key.holds() {
        None => limit.wait_after_us(key.bucket(), NoHolds, Change::Keep, wanted_micro, now_us),
        Some(holds) => limit.wait_after_us(key.bucket(), holds, Change::Keep, wanted_micro, now_us),
    };
    let at_us = now_us.saturating_add(wait_us);
    (wait_us > 0).then_some(if at_us > MAX_TIME_US { i64::MAX } else { at_us })
}

fn held(key: &BucketKey, id: &[u8]) -> Held {
    let hold = key.holds().and_then(|holds| holds.outstanding_of(id, key.call().now_us()));
    hold.map_or_else(Held::default, |hold| Held { micro: hold.amount_micro, until_us: hold.ends_at_us })
}
