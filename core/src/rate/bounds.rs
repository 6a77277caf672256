//! Bounds of rates, and where flows and times saturate.

use crate::cast::signed;
use crate::number::MAX_TOKENS;

/// 100 years of 365.25 days, in seconds: the time of one token at the slowest rate, and the longest refill of a bucket.
pub const CENTURY_S: u64 = 3_155_760_000;

/// A century in microseconds.
pub(crate) const CENTURY_US: u64 = CENTURY_S * 1_000_000;

/// The fastest rate, in tokens per second.
pub(crate) const MAX_TOKENS_PER_S: u64 = MAX_TOKENS.unsigned_abs();

/// Where flows and times saturate: beyond any bucket and any clock, and small enough to be added to a level or a time.
pub(crate) const SATURATED: i64 = 1 << 62;

/// The reason why bytes are not a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateError {
    /// Neither tokens per second nor `count/period` nor `count@period`, or a count of 0 in a period.
    Malformed,
    /// Zero.
    Zero,
    /// Faster than 10^12 tokens per second, slower than one token in 100 years, or less than a micro-token at a
    /// boundary of the calendar.
    OutOfRange,
}

/// Returns the number, or [`SATURATED`] if it is larger.
#[inline]
pub(crate) fn saturate(value: u64) -> i64 {
    signed(value.min(SATURATED.unsigned_abs()))
}

/// Does so for a number of 128 bits.
pub(crate) fn saturate_wide(value: u128) -> i64 {
    u64::try_from(value).map_or(SATURATED, saturate)
}
