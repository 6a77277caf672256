//! Storing a bucket, and what was written by that.

use crate::redis::BucketKey;
use tokenbucket_core::bucket::{Bucket, Change};
use tokenbucket_core::effect::{Effect, HoldChange, HoldChanges};
use tokenbucket_core::expiry::ExpiryWindow;
use tokenbucket_core::hold::Holds;

/// What was written to one key.
#[derive(Clone, Copy)]
pub(super) enum Written {
    Stored { bucket: Bucket, expire_at_ms: i64, holds: Option<HoldCounts> },
    Cleared,
}

/// What a replica needs to drop the holds that were dropped here, and to notice that it lacks some.
#[derive(Clone, Copy)]
pub(super) struct HoldCounts {
    /// How many were dropped because they had ended.
    dropped: usize,
    /// How many there are now.
    len: usize,
}

/// Changes a bucket that has no holds. Returns `None` if nothing was written.
#[inline(always)]
pub(super) fn store(key: &mut BucketKey, change: Change) -> Option<Written> {
    let written = match change {
        Change::Keep => return None,
        Change::Store { bucket, full_at_us } => {
            key.store(bucket);
            Written::stored(key, bucket, full_at_us, None)
        }
        Change::Clear => {
            key.delete();
            Written::Cleared
        }
    };
    key.signal_modified();
    Some(written)
}

/// Changes a bucket that may have holds. They go on, except those that have ended.
pub(super) fn store_with_holds(key: &mut BucketKey, change: Change) -> Option<Written> {
    match change {
        Change::Store { .. } if key.has_holds() => Some(update_holds(key, |_| (change, ())).1),
        _ => store(key, change),
    }
}

/// Drops the holds that have ended, lets `change` change the others, and stores what becomes of the bucket by that.
pub(super) fn update_holds<T>(
    key: &mut BucketKey,
    change: impl FnOnce(&mut Holds) -> (Change, T),
) -> (T, Written) {
    let dropped = key.ended_holds();
    let (len, (change, result)) = key.update_holds(dropped, |holds| {
        let (change, result) = change(holds);
        let stored = match change {
            Change::Store { bucket, .. } => Some(bucket),
            Change::Keep | Change::Clear => None,
        };
        (stored, (change, result))
    });
    let written = match change {
        Change::Store { bucket, full_at_us } => {
            Written::stored(key, bucket, full_at_us, Some(HoldCounts { dropped, len }))
        }
        Change::Keep | Change::Clear => Written::Cleared,
    };
    key.signal_modified();
    (result, written)
}

impl Written {
    /// Sets the expiry of a bucket that has just been stored.
    #[inline(always)]
    fn stored(key: &mut BucketKey, bucket: Bucket, full_at_us: i64, holds: Option<HoldCounts>) -> Self {
        let expire_at_ms = key.expire_within(ExpiryWindow::new(full_at_us, key.call().now_us()));
        Self::Stored { bucket, expire_at_ms, holds }
    }

    /// Returns what replicas and files are sent of it, with the holds that were set or removed.
    #[inline]
    pub(super) fn effect(self, changes: Vec<HoldChange>) -> Effect {
        match self {
            Self::Stored { bucket, expire_at_ms, holds } => {
                let count = |count| u32::try_from(count).unwrap_or(u32::MAX);
                let holds = holds.map(|HoldCounts { dropped, len }| HoldChanges {
                    dropped: count(dropped),
                    changes,
                    len: count(len),
                });
                Effect::Stored { bucket, expire_at_ms: Some(expire_at_ms), holds }
            }
            Self::Cleared => Effect::Cleared,
        }
    }
}
