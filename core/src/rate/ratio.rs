//! Rates that flow all the time: an exact ratio of whole numbers.

use super::bounds::{saturate, saturate_wide, RateError, CENTURY_S, CENTURY_US, MAX_TOKENS_PER_S, SATURATED};

/// The flow in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Whole micro-tokens; saturates at 2^62.
    pub micro: i64,
    /// Whole microseconds that the remaining fraction of a micro-token took to flow.
    pub carry_us: i64,
}

/// `numerator / denominator` tokens per second, which equals micro-tokens per microsecond.
///
/// Its methods compute in machine words, and return `None` on overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ratio {
    pub(super) numerator: u64,
    pub(super) denominator: u64,
}

impl Ratio {
    /// Nothing flows, and any amount takes longer than is counted: its product with the denominator leaves 64 bits.
    pub(super) const NOTHING: Self = Self { numerator: 0, denominator: u64::MAX };

    /// Marks a pool, into which nothing flows either. A kind of rate of its own would cost each decision a comparison.
    pub(super) const POOL: Self = Self { numerator: 0, denominator: u64::MAX - 1 };

    /// Returns `count` tokens in `period_s` seconds, or `None` if that is out of bounds.
    #[inline]
    pub(super) fn per_seconds(count: u64, period_s: u64) -> Option<Self> {
        // A product beyond 64 bits is larger than anything on the other side of its comparison.
        let fastest = period_s.saturating_mul(MAX_TOKENS_PER_S);
        let slowest = count.saturating_mul(CENTURY_S);
        let is_within_bounds = count <= fastest && period_s <= slowest && period_s != 0;
        is_within_bounds.then_some(Self { numerator: count, denominator: period_s })
    }

    #[inline]
    pub(super) fn flow(self, elapsed_us: u64) -> Option<Flow> {
        let total = elapsed_us.checked_mul(self.numerator)?;
        let micro = total.checked_div(self.denominator).unwrap_or(0);
        let rest = total.wrapping_sub(micro.wrapping_mul(self.denominator));
        let carry = if rest == 0 { 0 } else { rest.checked_div(self.numerator).unwrap_or(0) };
        Some(Flow { micro: saturate(micro), carry_us: saturate(carry) })
    }

    /// Returns the smallest number of microseconds in which `micro` micro-tokens flow; saturates at 2^62.
    #[inline]
    pub(super) fn time_us(self, micro: u64) -> Option<i64> {
        let total = micro.checked_mul(self.denominator)?;
        Some(saturate(total.div_ceil(self.numerator.max(1))))
    }

    #[inline]
    pub(super) fn refills_within_a_century(self, capacity_micro: u64) -> Option<bool> {
        let needed = capacity_micro.checked_mul(self.denominator)?;
        // If the other product saturates, it is larger than this one all the same.
        Some(needed <= CENTURY_US.saturating_mul(self.numerator))
    }

    /// Computes with the ratio where sums leave 64 bits.
    pub(super) fn wide(self) -> Wide {
        Wide { numerator: self.numerator.into(), denominator: self.denominator.into() }
    }
}

/// A [`Ratio`] times a power of ten: rates like `2.10000000001e-9/ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scaled {
    ratio: Ratio,
    exponent: i32,
}

/// A ratio whose terms may leave 64 bits.
///
/// The power of ten goes into one of the terms, which may then need 90 bits, and the other stays within 64. So a product
/// that leaves 128 bits means "more than any bucket holds" when multiplied by the numerator, because it is divided by at
/// most 64 bits, and "longer than any clock counts" when multiplied by the denominator, for the same reason: overflow
/// saturates, and is never wrong.
#[derive(Clone, Copy)]
pub(super) struct Wide {
    numerator: u128,
    denominator: u128,
}

/// A rate that flows all the time, in as few bits as it needs.
pub(super) enum Steady {
    Ratio(Ratio),
    Scaled(Scaled),
}

impl Scaled {
    /// Multiplies `ratio` by ten to the power of `exponent`.
    ///
    /// # Errors
    /// [`RateError::OutOfRange`].
    pub(super) fn checked(ratio: Ratio, exponent: i64) -> Result<Steady, RateError> {
        let exponent = i32::try_from(exponent).map_err(|_| RateError::OutOfRange)?;
        let scaled = Self { ratio, exponent };
        let wide = scaled.checked_wide().filter(Wide::is_within_bounds).ok_or(RateError::OutOfRange)?;
        Ok(wide.narrow().map_or(Steady::Scaled(scaled), Steady::Ratio))
    }

    /// Returns `None` if a term leaves 128 bits.
    fn checked_wide(self) -> Option<Wide> {
        let power = 10u128.checked_pow(self.exponent.unsigned_abs())?;
        let (up, down) = if self.exponent >= 0 { (power, 1) } else { (1, power) };
        let Wide { numerator, denominator } = self.ratio.wide();
        Some(Wide { numerator: numerator.checked_mul(up)?, denominator: denominator.checked_mul(down)? })
    }

    pub(super) fn wide(self) -> Wide {
        // A rate is only made of terms that fit.
        self.checked_wide().unwrap_or(Wide { numerator: 0, denominator: 1 })
    }
}

impl Wide {
    fn is_within_bounds(&self) -> bool {
        // A product beyond 128 bits is larger than anything on the other side of its comparison.
        let fastest = self.denominator.saturating_mul(u128::from(MAX_TOKENS_PER_S));
        let slowest = self.numerator.saturating_mul(u128::from(CENTURY_S));
        self.numerator <= fastest && self.denominator <= slowest
    }

    fn narrow(self) -> Option<Ratio> {
        let (numerator, denominator) =
            (u64::try_from(self.numerator).ok()?, u64::try_from(self.denominator).ok()?);
        Some(Ratio { numerator, denominator })
    }

    pub(super) fn flow(self, elapsed_us: u64) -> Flow {
        let Some(total) = u128::from(elapsed_us).checked_mul(self.numerator) else {
            return Flow { micro: SATURATED, carry_us: 0 };
        };
        let micro = total.checked_div(self.denominator).unwrap_or(0);
        let rest = total.checked_rem(self.denominator).unwrap_or(0);
        let carry = rest.checked_div(self.numerator).unwrap_or(0);
        Flow { micro: saturate_wide(micro), carry_us: saturate_wide(carry) }
    }

    /// Rounds up to whole micro-tokens; `carry_us` is how long the added fraction takes to flow, in whole microseconds.
    pub(super) fn flow_up(self, elapsed_us: u64) -> Flow {
        let Some(total) = u128::from(elapsed_us).checked_mul(self.numerator) else {
            return Flow { micro: SATURATED, carry_us: 0 };
        };
        let micro = total.div_ceil(self.denominator);
        let added = micro.saturating_mul(self.denominator).saturating_sub(total);
        let carry = added.checked_div(self.numerator).unwrap_or(0);
        Flow { micro: saturate_wide(micro), carry_us: saturate_wide(carry) }
    }

    /// Returns the smallest number of microseconds in which `micro` micro-tokens flow; saturates at 2^62.
    pub(super) fn time_us(self, micro: u64) -> i64 {
        match u128::from(micro).checked_mul(self.denominator) {
            Some(total) => saturate_wide(total.div_ceil(self.numerator.max(1))),
            None => SATURATED,
        }
    }
}
