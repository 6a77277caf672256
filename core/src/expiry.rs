//! When the key of a bucket expires.

/// The latest expiry ever set, in Unix milliseconds: the year 287,396. A longer debt ends then.
pub const MAX_EXPIRE_AT_MS: i64 = 1 << 53;

/// When the key of a bucket that is full at `full_at_us` expires, in Unix milliseconds.
///
/// Never before the bucket is full: microseconds round up. Later by at most a quarter of the time until then, and a
/// second, so that takes from a bucket in steady use seldom set a new expiry, which costs the server as much as the rest
/// of the write.
///
/// An expiry that is later still stays: it was set for a limit under which the bucket is not full yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiryWindow {
    /// The earliest right expiry.
    pub earliest_ms: i64,
    /// The expiry that is set.
    pub latest_ms: i64,
}

impl ExpiryWindow {
    /// Returns the window for a bucket that is full at `full_at_us`, seen at `now_us`.
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

    /// Returns whether a key that expires at `expire_at_ms` may stay as it is.
    #[inline]
    #[must_use]
    pub fn accepts(&self, expire_at_ms: i64) -> bool {
        expire_at_ms >= self.earliest_ms
    }
}
