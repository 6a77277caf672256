//! Rates: bytes to an exact ratio or a calendar, the flow in a time, and the time of an amount.
//!
//! Conveniently, one token a second *is* one micro-token a microsecond, so a ratio needs no conversion to the clock's unit.

pub(crate) mod bounds;
pub mod calendar;
mod ratio;
mod read;
pub(crate) mod unit;

pub use bounds::{RateError, CENTURY_S};
pub use ratio::{Flow, Ratio, Scaled};

use calendar::Calendar;

/// The refill rate of a bucket.
///
/// Nearly all rates are ratios, whose arithmetic fits machine words. The other kinds stay off that path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rate {
    /// Tokens flow all the time.
    Ratio(Ratio),
    /// A ratio so large or so small that it needs a power of ten.
    Scaled(Scaled),
    /// Tokens come all at once at every boundary of a period.
    Calendar(Calendar),
}

impl Rate {
    /// Nothing flows.
    pub const NOTHING: Self = Self::Ratio(Ratio::NOTHING);

    /// That of a pool, which has no level: nothing flows, and free is what is not held.
    pub const POOL: Self = Self::Ratio(Ratio::POOL);

    /// Returns `count` tokens in `period_s` seconds, or `None` if that is out of bounds.
    #[inline]
    #[must_use]
    pub fn per_seconds(count: u64, period_s: u64) -> Option<Self> {
        Ratio::per_seconds(count, period_s).map(Self::Ratio)
    }

    /// Returns the flow from `since_us` to `until_us`, in Unix microseconds; nothing if that is not later.
    #[inline]
    #[must_use]
    pub fn flow(&self, since_us: i64, until_us: i64) -> Flow {
        if let Self::Ratio(ratio) = self {
            if let Some(flow) = ratio.flow(elapsed_us(since_us, until_us)) {
                return flow;
            }
        }
        self.slow_flow(since_us, until_us)
    }

    #[cold]
    fn slow_flow(&self, since_us: i64, until_us: i64) -> Flow {
        let elapsed_us = elapsed_us(since_us, until_us);
        match self {
            Self::Ratio(ratio) => ratio.wide().flow(elapsed_us),
            Self::Scaled(scaled) => scaled.wide().flow(elapsed_us),
            Self::Calendar(calendar) => Flow { micro: calendar.flow_micro(since_us, until_us), carry_us: 0 },
        }
    }

    /// Returns the flow rounded up to whole micro-tokens; `carry_us` is how long what was added takes to flow, in whole
    /// microseconds.
    #[cold]
    #[must_use]
    pub fn flow_up(&self, since_us: i64, until_us: i64) -> Flow {
        let elapsed_us = elapsed_us(since_us, until_us);
        match self {
            Self::Ratio(ratio) => ratio.wide().flow_up(elapsed_us),
            Self::Scaled(scaled) => scaled.wide().flow_up(elapsed_us),
            Self::Calendar(_) => self.flow(since_us, until_us),
        }
    }

    /// Returns the first moment at which `micro` micro-tokens have flowed since `since_us`, in Unix microseconds; `since_us`
    /// itself for 0. Saturates 2^62 later.
    #[inline]
    #[must_use]
    pub fn reaches_at_us(&self, since_us: i64, micro: i64) -> i64 {
        let needed = micro.max(0).unsigned_abs();
        if let Self::Ratio(ratio) = self {
            if let Some(time_us) = ratio.time_us(needed) {
                return since_us.wrapping_add(time_us);
            }
        }
        self.slow_reaches_at_us(since_us, needed)
    }

    #[cold]
    fn slow_reaches_at_us(&self, since_us: i64, micro: u64) -> i64 {
        match self {
            Self::Ratio(ratio) => since_us.wrapping_add(ratio.wide().time_us(micro)),
            Self::Scaled(scaled) => since_us.wrapping_add(scaled.wide().time_us(micro)),
            Self::Calendar(calendar) => calendar.reaches_at_us(since_us, micro),
        }
    }

    /// Returns whether a bucket of `capacity_micro` refills from empty within 100 years.
    #[inline]
    #[must_use]
    pub fn refills_within_a_century(&self, capacity_micro: i64) -> bool {
        let capacity = capacity_micro.max(0).unsigned_abs();
        if let Self::Ratio(ratio) = self {
            if let Some(is_within) = ratio.refills_within_a_century(capacity) {
                return is_within;
            }
        }
        self.slowly_refills_within_a_century(capacity)
    }

    #[cold]
    fn slowly_refills_within_a_century(&self, capacity_micro: u64) -> bool {
        let is_within = |time_us: i64| time_us.unsigned_abs() <= bounds::CENTURY_US;
        match self {
            Self::Ratio(ratio) => is_within(ratio.wide().time_us(capacity_micro)),
            Self::Scaled(scaled) => is_within(scaled.wide().time_us(capacity_micro)),
            Self::Calendar(calendar) => calendar.refills_within_a_century(capacity_micro),
        }
    }

    /// Returns the longest time between two moments at which tokens come, in microseconds; 0 if they flow all the time.
    #[must_use]
    pub fn longest_period_us(&self) -> i64 {
        match self {
            Self::Calendar(calendar) => calendar.longest_period_us(),
            Self::Ratio(_) | Self::Scaled(_) => 0,
        }
    }
}

#[inline]
fn elapsed_us(since_us: i64, until_us: i64) -> u64 {
    until_us.wrapping_sub(since_us).max(0).unsigned_abs()
}
