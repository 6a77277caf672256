//! What replicas and the append-only file receive instead of the call: the bucket as it is after it.
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

#![forbid(unsafe_code)]

use crate::bucket::Bucket;
use std::ffi::CStr;

/// The command that carries effects. It is in every append-only file, so it cannot change.
pub const COMMAND: &CStr = c"TB.RESTORE";

/// Bytes of an encoded effect.
pub const EFFECT_LEN: usize = 25;

const VERSION: u8 = 1;
const NO_EXPIRY: i64 = -1;

/// The latest expiry ever set, in Unix milliseconds: the year 287,396. A debt that takes longer to pay off is
/// paid off then.
pub const MAX_EXPIRE_AT_MS: i64 = 1 << 53;

/// The state of a key after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The bucket.
    pub bucket: Bucket,
    /// When its key expires, in Unix milliseconds, if it does.
    pub expire_at_ms: Option<i64>,
}

impl Effect {
    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> [u8; EFFECT_LEN] {
        let mut bytes = [0; EFFECT_LEN];
        let fields =
            [self.bucket.level_micro, self.bucket.refilled_at_us, self.expire_at_ms.unwrap_or(NO_EXPIRY)];
        let (version, rest) = bytes.split_at_mut(1);
        version.fill(VERSION);
        for (slot, field) in rest.chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Reads what [`encode`](Self::encode) wrote, or `None` if any field is not one that a bucket can have.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let ([VERSION], fields) = bytes.split_first_chunk::<1>()? else {
            return None;
        };
        let (level, fields) = fields.split_first_chunk::<8>()?;
        let (refilled_at, fields) = fields.split_first_chunk::<8>()?;
        let expire_at = <[u8; 8]>::try_from(fields).ok()?;
        let bucket = Bucket::checked(i64::from_le_bytes(*level), i64::from_le_bytes(*refilled_at))?;
        let expire_at_ms = match i64::from_le_bytes(expire_at) {
            NO_EXPIRY => None,
            at @ 0..=MAX_EXPIRE_AT_MS => Some(at),
            _ => return None,
        };
        Some(Self { bucket, expire_at_ms })
    }
}

/// When the key of a bucket that is full at `full_at_us` has to go, in Unix milliseconds.
///
/// Never before the bucket is full: the microseconds are rounded up. Later by at most a quarter of the time until
/// then, and a second, so that a bucket in steady use is not given a new expiry, which costs the server as much
/// as the rest of the write, at every take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiryWindow {
    /// The earliest that is right.
    pub earliest_ms: i64,
    /// The latest that is right.
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
    pub fn contains(&self, expire_at_ms: i64) -> bool {
        (self.earliest_ms..=self.latest_ms).contains(&expire_at_ms)
    }
}
