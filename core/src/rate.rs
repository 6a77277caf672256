//! Rates: bytes to an exact ratio or a calendar, what flows at it in a time, and when an amount has flowed.
//!
//! Conveniently, one token a second *is* one micro-token a microsecond, so a ratio needs no conversion before
//! it meets the clock.

use crate::calendar::{Anchor, Calendar};
use crate::cast::signed;
use crate::number::{short_fraction, short_whole, Decimal, MAX_TOKENS};

/// 100 years of 365.25 days, in seconds: the slowest rate is one token in this time, and no bucket may take longer
/// to refill from empty.
pub const CENTURY_S: u64 = 3_155_760_000;

/// The same in microseconds.
pub(crate) const CENTURY_US: u64 = CENTURY_S * 1_000_000;

/// The first number of more than 12 digits.
const TWELVE_DIGITS: u64 = 1_000_000_000_000;

/// The fastest rate, in tokens per second.
pub(crate) const MAX_TOKENS_PER_S: u64 = MAX_TOKENS.unsigned_abs();

/// Why bytes are not a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateError {
    /// Neither tokens per second nor `count/period` nor `count@period`, or none in a period.
    Malformed,
    /// Zero.
    Zero,
    /// Faster than 10^12 tokens per second, slower than one token in 100 years, or less than a micro-token at a
    /// boundary of the calendar.
    OutOfRange,
}

/// What flows, and how long it takes, is told up to here: beyond what any bucket holds or any clock counts, and
/// small enough to be added to a level or a time.
pub(crate) const MOST: i64 = 1 << 62;

/// How fast tokens flow in: two numbers, which are read as the kind of the rate says.
///
/// Nearly always they are a ratio, and all arithmetic fits machine words. The other kinds are read out of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    numerator: u64,
    denominator: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `numerator / denominator` tokens per second, which is also micro-tokens per microsecond.
    Ratio,
    /// The same, times a power of ten: rates like `2.10000000001e-9/ms`.
    ///
    /// The power of ten goes into one of the terms, which may then need 90 bits, and the other stays within 64. So a
    /// product that leaves 128 bits means "more than any bucket holds" when multiplied by the numerator, because it is
    /// divided by at most 64 bits, and "longer than any clock counts" when multiplied by the denominator, for the same
    /// reason: overflow saturates, and is never wrong.
    Scaled { exponent: i32 },
    /// `numerator` micro-tokens at once, every `denominator` units.
    Calendar(Anchor),
}

/// What flows in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Whole micro-tokens; saturates at 2^62.
    pub micro: i64,
    /// Whole microseconds that the remaining fraction of a micro-token took to flow.
    pub carry_us: i64,
}

impl Rate {
    /// Nothing flows, and any amount takes longer than is counted: its product with the denominator leaves 64 bits.
    pub const NOTHING: Self = Self { numerator: 0, denominator: u64::MAX, kind: Kind::Ratio };

    /// Reads `5`, `0.25`, `1e-3` (tokens per second), `100/m`, `10/10s`, `1/250ms`, `5000/h`, `1/d`, or `1000@d`,
    /// `5@10s`, `100@w`, `10000@mo`, `1@y`, `1000@d+09:00` (at boundaries of the calendar).
    ///
    /// Both numbers of a ratio keep 12 significant digits; further ones are rounded down in the count and up in the
    /// period, so that a rate is never above what was asked. But a count that is as near to a whole micro-token as
    /// clients' floats are, is that. The count of a calendar is an amount of tokens.
    ///
    /// # Errors
    /// [`RateError`] if it is malformed or out of bounds.
    #[inline(always)] // Hot, and small: the general case is elsewhere.
    pub fn parse(bytes: &[u8]) -> Result<Self, RateError> {
        match Self::short(bytes) {
            Some(rate) => Ok(rate),
            None => {
                // Field by field, or the optimiser keeps the usual rates in memory for the sake of the others.
                let Self { numerator, denominator, kind } = Self::general(bytes)?;
                Ok(Self { numerator, denominator, kind })
            }
        }
    }

    /// What nearly every client sends, short numbers without a power of ten, without the general reader's work.
    #[inline(always)]
    fn short(bytes: &[u8]) -> Option<Self> {
        match short_whole(bytes)? {
            (count, []) => Self::per_seconds(count, 1),
            (count, [b'/', period @ ..]) => Self::short_per_period(count, 1, period),
            (whole, [b'.', behind @ ..]) => Self::short_decimal(whole, behind),
            _ => None,
        }
    }

    /// `whole.fraction`, per second or per period, of 12 digits in all.
    #[inline]
    fn short_decimal(whole: u64, behind: &[u8]) -> Option<Self> {
        let (fraction, parts, rest) = short_fraction(behind)?;
        // 12 digits before the point, and 6 behind it.
        let count = whole.wrapping_mul(parts).wrapping_add(fraction);
        match rest {
            _ if count >= TWELVE_DIGITS => None,
            [] => Self::per_seconds(count, parts),
            [b'/', period @ ..] => Self::short_per_period(count, parts, period),
            _ => None,
        }
    }

    /// `count / parts` tokens in a period of a whole number of units.
    #[inline]
    fn short_per_period(count: u64, parts: u64, period: &[u8]) -> Option<Self> {
        let (number, name) = match period {
            // Nearly always: a unit alone has no number to look for.
            [_] => (1, period),
            _ => short_whole(period).unwrap_or((1, period)),
        };
        let unit = unit(name)?;
        // 12 digits, times what is in a unit, cannot overflow.
        let period = number.wrapping_mul(unit.seconds).checked_mul(parts)?;
        Self::per_seconds(count.wrapping_mul(unit.per_second), period)
    }

    /// `count` tokens in `period_s` seconds, or `None` if that is out of bounds.
    #[inline]
    #[must_use]
    pub fn per_seconds(count: u64, period_s: u64) -> Option<Self> {
        // A product beyond 64 bits is larger than anything on the other side of its comparison.
        let fastest = period_s.saturating_mul(MAX_TOKENS_PER_S);
        let slowest = count.saturating_mul(CENTURY_S);
        (count <= fastest && period_s <= slowest && period_s != 0).then_some(Self {
            numerator: count,
            denominator: period_s,
            kind: Kind::Ratio,
        })
    }

    #[cold]
    fn general(bytes: &[u8]) -> Result<Self, RateError> {
        match bytes.iter().position(|byte| matches!(byte, b'/' | b'@')) {
            None if Decimal::parse(bytes).is_some_and(Decimal::is_zero) => Err(RateError::Zero),
            None => Self::ratio(Self::count(bytes)?, (1, 0), SECOND),
            Some(at) => match bytes.split_at(at) {
                (count, [b'@', period @ ..]) => Ok(Self::at_boundaries(Calendar::parse(count, period)?)),
                (count, period) => Self::per_period(count, period.get(1..).unwrap_or_default()),
            },
        }
    }

    fn at_boundaries(Calendar { count_micro, units, anchor }: Calendar) -> Self {
        Self { numerator: count_micro, denominator: units, kind: Kind::Calendar(anchor) }
    }

    /// What the numbers of a calendar rate stand for.
    fn calendar(&self, anchor: Anchor) -> Calendar {
        Calendar { count_micro: self.numerator, units: self.denominator, anchor }
    }

    fn per_period(count: &[u8], period: &[u8]) -> Result<Self, RateError> {
        let count = Self::count(count)?;
        let (number, unit) = split_unit(period).ok_or(RateError::Malformed)?;
        if number.is_empty() {
            return Self::ratio(count, (1, 0), unit);
        }
        let period = Decimal::parse(number).filter(|period| !period.is_zero()).ok_or(RateError::Malformed)?;
        let (mantissa, exponent, is_more) = period.twelve_digits();
        let period = if is_more { next_of_twelve_digits(mantissa, exponent) } else { (mantissa, exponent) };
        Self::ratio(count, period, unit)
    }

    /// Mantissa and exponent of the number of tokens.
    fn count(bytes: &[u8]) -> Result<(u64, i64), RateError> {
        let count = Decimal::parse(bytes).filter(|count| !count.is_zero()).ok_or(RateError::Malformed)?;
        let (mantissa, exponent, _) = count.meant().unwrap_or(count).twelve_digits();
        Ok((mantissa, exponent))
    }

    /// Tokens per second, within bounds. Both numbers are a mantissa of at most 13 digits and an exponent.
    fn ratio(count: (u64, i64), period: (u64, i64), unit: Unit) -> Result<Self, RateError> {
        // Exponents saturate when they are read: two that did are not equal, whatever they look like.
        const LARGEST_EXPONENT: u64 = 1 << 62;
        if count.1.unsigned_abs().max(period.1.unsigned_abs()) > LARGEST_EXPONENT {
            return Err(RateError::OutOfRange);
        }
        // 13 digits, and a factor of at most 86,400: neither the products nor anything below can overflow.
        let numerator = count.0.saturating_mul(unit.per_second);
        let denominator = period.0.saturating_mul(unit.seconds);
        let exponent = count.1.saturating_sub(period.1);
        let exponent = i32::try_from(exponent).map_err(|_| RateError::OutOfRange)?;
        let rate = Self { numerator, denominator, kind: Kind::Scaled { exponent } };
        let (numerator, denominator) = rate.wide().ok_or(RateError::OutOfRange)?;
        // A product beyond 128 bits is larger than anything on the other side of its comparison.
        let fastest = denominator.saturating_mul(u128::from(MAX_TOKENS_PER_S));
        let slowest = numerator.saturating_mul(u128::from(CENTURY_S));
        if numerator > fastest || denominator > slowest {
            return Err(RateError::OutOfRange);
        }
        Ok(match (u64::try_from(numerator), u64::try_from(denominator)) {
            (Ok(numerator), Ok(denominator)) => Self { numerator, denominator, kind: Kind::Ratio },
            _ => rate,
        })
    }

    /// The two terms with the exponent worked into one of them; `None` if that one leaves 128 bits.
    fn wide(&self) -> Option<(u128, u128)> {
        let exponent = if let Kind::Scaled { exponent } = self.kind { exponent } else { 0 };
        let power = 10u128.checked_pow(exponent.unsigned_abs())?;
        let (up, down) = if exponent >= 0 { (power, 1) } else { (1, power) };
        let numerator = u128::from(self.numerator).checked_mul(up)?;
        let denominator = u128::from(self.denominator).checked_mul(down)?;
        Some((numerator, denominator))
    }

    /// What flows from `since_us` to `until_us`, in Unix microseconds; nothing if that is not later.
    #[inline]
    #[must_use]
    pub fn flow(&self, since_us: i64, until_us: i64) -> Flow {
        let elapsed = until_us.wrapping_sub(since_us).max(0).unsigned_abs();
        match elapsed.checked_mul(self.numerator) {
            Some(total) if self.kind == Kind::Ratio => {
                let micro = total.checked_div(self.denominator).unwrap_or(0);
                let rest = total.wrapping_sub(micro.wrapping_mul(self.denominator));
                let carry = if rest == 0 { 0 } else { rest.checked_div(self.numerator).unwrap_or(0) };
                Flow { micro: saturate(micro), carry_us: saturate(carry) }
            }
            _ => self.other_flow(since_us, until_us),
        }
    }

    #[cold]
    fn other_flow(&self, since_us: i64, until_us: i64) -> Flow {
        if let Kind::Calendar(anchor) = self.kind {
            return Flow { micro: self.calendar(anchor).flow_micro(since_us, until_us), carry_us: 0 };
        }
        let elapsed = until_us.wrapping_sub(since_us).max(0).unsigned_abs();
        let (numerator, denominator) = self.wide().unwrap_or((0, 1));
        let Some(total) = u128::from(elapsed).checked_mul(numerator) else {
            return Flow { micro: MOST, carry_us: 0 };
        };
        let micro = total.checked_div(denominator).unwrap_or(0);
        let rest = total.checked_rem(denominator).unwrap_or(0);
        let carry = rest.checked_div(numerator).unwrap_or(0);
        Flow { micro: saturate_wide(micro), carry_us: saturate_wide(carry) }
    }

    /// The same, rounded up to whole micro-tokens; `carry_us` is how long what was added takes to flow, in whole
    /// microseconds.
    #[cold]
    #[must_use]
    pub fn flow_up(&self, since_us: i64, until_us: i64) -> Flow {
        if let Kind::Calendar(_) = self.kind {
            return self.flow(since_us, until_us);
        }
        let elapsed = until_us.saturating_sub(since_us).max(0).unsigned_abs();
        let (numerator, denominator) = self.wide().unwrap_or((0, 1));
        let Some(total) = u128::from(elapsed).checked_mul(numerator) else {
            return Flow { micro: MOST, carry_us: 0 };
        };
        let micro = total.div_ceil(denominator);
        let added = micro.saturating_mul(denominator).saturating_sub(total);
        let carry = added.checked_div(numerator).unwrap_or(0);
        Flow { micro: saturate_wide(micro), carry_us: saturate_wide(carry) }
    }

    /// The first moment at which `micro` micro-tokens have flowed since `since_us`, in Unix microseconds: `since_us` if
    /// that is nothing; saturates 2^62 later.
    #[inline]
    #[must_use]
    pub fn reaches_at_us(&self, since_us: i64, micro: i64) -> i64 {
        let needed = micro.max(0).unsigned_abs();
        match needed.checked_mul(self.denominator) {
            Some(total) if self.kind == Kind::Ratio => {
                since_us.wrapping_add(saturate(total.div_ceil(self.numerator.max(1))))
            }
            _ => self.other_reaches_at_us(since_us, needed),
        }
    }

    #[cold]
    fn other_reaches_at_us(&self, since_us: i64, micro: u64) -> i64 {
        if let Kind::Calendar(anchor) = self.kind {
            return self.calendar(anchor).reaches_at_us(since_us, micro);
        }
        since_us.wrapping_add(self.wide_time_us(micro))
    }

    /// The smallest number of microseconds in which `micro` micro-tokens flow; saturates at 2^62.
    fn wide_time_us(&self, micro: u64) -> i64 {
        let (numerator, denominator) = self.wide().unwrap_or((0, 1));
        match u128::from(micro).checked_mul(denominator) {
            Some(total) => saturate_wide(total.div_ceil(numerator.max(1))),
            None => MOST,
        }
    }

    /// Whether a bucket of `capacity_micro` refills from empty within 100 years.
    #[inline]
    #[must_use]
    pub fn refills_within_a_century(&self, capacity_micro: i64) -> bool {
        let capacity = capacity_micro.max(0).unsigned_abs();
        match capacity.checked_mul(self.denominator) {
            // If the other product saturates, it is larger than this one all the same.
            Some(needed) if self.kind == Kind::Ratio => needed <= CENTURY_US.saturating_mul(self.numerator),
            _ => self.others_refill_within_a_century(capacity),
        }
    }

    #[cold]
    fn others_refill_within_a_century(&self, capacity_micro: u64) -> bool {
        if let Kind::Calendar(anchor) = self.kind {
            return self.calendar(anchor).refills_within_a_century(capacity_micro);
        }
        self.wide_time_us(capacity_micro).unsigned_abs() <= CENTURY_US
    }
}

/// The number, or [`MOST`] if it is larger.
#[inline]
pub(crate) fn saturate(value: u64) -> i64 {
    signed(value.min(MOST.unsigned_abs()))
}

fn saturate_wide(value: u128) -> i64 {
    u64::try_from(value).map_or(MOST, saturate)
}

/// What a period is counted in: as many of it as `per_second` are `seconds` long. One of the two is 1.
#[derive(Clone, Copy)]
pub(crate) struct Unit {
    per_second: u64,
    seconds: u64,
}

impl Unit {
    /// Its length in microseconds.
    pub(crate) fn us(self) -> u64 {
        self.seconds.saturating_mul(1_000_000).checked_div(self.per_second).unwrap_or(0)
    }
}

const SECOND: Unit = Unit { per_second: 1, seconds: 1 };

#[inline] // Folds into the two multiplications that it is for.
pub(crate) fn unit(name: &[u8]) -> Option<Unit> {
    Some(match name {
        b"ms" => Unit { per_second: 1000, seconds: 1 },
        b"s" => SECOND,
        b"m" => Unit { per_second: 1, seconds: 60 },
        b"h" => Unit { per_second: 1, seconds: 3600 },
        b"d" => Unit { per_second: 1, seconds: 86_400 },
        _ => return None,
    })
}

/// Splits `10s` into its number and its unit.
fn split_unit(period: &[u8]) -> Option<(&[u8], Unit)> {
    let letters = period.iter().rev().take_while(|byte| byte.is_ascii_lowercase() && **byte != b'e').count();
    let (number, name) = period.split_at_checked(period.len().saturating_sub(letters))?;
    Some((number, unit(name)?))
}

/// The next larger number of 12 significant digits.
fn next_of_twelve_digits(mut mantissa: u64, mut exponent: i64) -> (u64, i64) {
    // Zeros were left out at the end: one unit more has to be one of the twelfth digit.
    while mantissa < TWELVE_DIGITS / 10 {
        mantissa = mantissa.saturating_mul(10);
        exponent = exponent.saturating_sub(1);
    }
    (mantissa.saturating_add(1), exponent)
}
