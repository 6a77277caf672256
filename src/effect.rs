//! What replicas and the append-only file receive instead of the call: the key as it is after it.
//!
//! An effect is one short binary argument, because each argument of a replicated command costs the server more
//! than all the arithmetic of the decision. 25 bytes, integers little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0 | version, 1 |
//! | 1..9 | level in micro-tokens, signed |
//! | 9..17 | time of the last refill, Unix microseconds |
//! | 17..25 | expiry of the key, Unix milliseconds; -1 for none |
//!
//! The version alone says that the bucket is full and its key is gone. That is not left to the server's `DEL`, which
//! an operator may have renamed.

#![forbid(unsafe_code)]

use crate::bucket::Bucket;
use std::ffi::CStr;

/// The command that carries effects. It is in every append-only file, so it cannot change.
pub const COMMAND: &CStr = c"TB.RESTORE";

/// The most bytes of an encoded effect.
pub const MAX_EFFECT_LEN: usize = 25;

const VERSION: u8 = 1;
const NO_EXPIRY: i64 = -1;

/// The latest expiry ever set, in Unix milliseconds: the year 287,396. A debt that takes longer to pay off is
/// paid off then.
pub const MAX_EXPIRE_AT_MS: i64 = 1 << 53;

/// What a write leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// A bucket.
    Stored {
        /// What it holds.
        bucket: Bucket,
        /// When its key expires, in Unix milliseconds, if it does.
        expire_at_ms: Option<i64>,
    },
    /// No key: the bucket is full.
    Cleared,
}

/// An effect as it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    bytes: [u8; MAX_EFFECT_LEN],
    len: usize,
}

impl AsRef<[u8]> for Encoded {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Effect {
    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let mut bytes = [0; MAX_EFFECT_LEN];
        let (version, fields) = bytes.split_at_mut(1);
        version.fill(VERSION);
        let Self::Stored { bucket, expire_at_ms } = self else {
            return Encoded { bytes, len: 1 };
        };
        let values = [bucket.level_micro, bucket.refilled_at_us, expire_at_ms.unwrap_or(NO_EXPIRY)];
        for (field, value) in fields.chunks_exact_mut(8).zip(values) {
            field.copy_from_slice(&value.to_le_bytes());
        }
        Encoded { bytes, len: MAX_EFFECT_LEN }
    }

    /// Reads what [`encode`](Self::encode) wrote, or `None` if any field is not one that a bucket can have.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let ([VERSION], fields) = bytes.split_first_chunk::<1>()? else {
            return None;
        };
        if fields.is_empty() {
            return Some(Self::Cleared);
        }
        let (level, fields) = fields.split_first_chunk::<8>()?;
        let (refilled_at, fields) = fields.split_first_chunk::<8>()?;
        let expire_at = <[u8; 8]>::try_from(fields).ok()?;
        let bucket = Bucket::checked(i64::from_le_bytes(*level), i64::from_le_bytes(*refilled_at))?;
        let expire_at_ms = match i64::from_le_bytes(expire_at) {
            NO_EXPIRY => None,
            at @ 0..=MAX_EXPIRE_AT_MS => Some(at),
            _ => return None,
        };
        Some(Self::Stored { bucket, expire_at_ms })
    }
}

/// When the key of a bucket that is full at `full_at_us` has to go, in Unix milliseconds.
///
/// Never before the bucket is full: the microseconds are rounded up. Later by at most a quarter of the time until
/// then, and a second, so that a bucket in steady use is not given a new expiry, which costs the server as much
/// as the rest of the write, at every take.
///
/// An expiry that is later still stays: it was right for a limit under which the bucket is not full yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiryWindow {
    /// The earliest that is right.
    pub earliest_ms: i64,
    /// The latest that is set.
    pub latest_ms: i64,
}

impl ExpiryWindow {
    /// The window for a bucket that is full at `full_at_us`, seen at `now_us`.
    #[inline]
    #[must_use]
    pub fn new(full_at_us: i64, now_us: i64) -> Self {
        let earliest_ms = full_at_us.max(0).unsigned_abs().div_ceil(1000);
        let earliest_ms = i64::try_from(earliest_ms).unwrap_or(i64::MAX).min(MAX_EXPIRE_AT_MS);
        let until_full_ms = full_at_us.saturating_sub(now_us).max(0) / 1000;
        let slack_ms = (until_full_ms / 4).saturating_add(1000);
        let latest_ms = earliest_ms.saturating_add(slack_ms).min(MAX_EXPIRE_AT_MS);
        Self { earliest_ms, latest_ms }
    }

    /// Whether a key that expires at `expire_at_ms` may stay as it is.
    #[inline]
    #[must_use]
    pub fn accepts(&self, expire_at_ms: i64) -> bool {
        expire_at_ms >= self.earliest_ms
    }
}
