//! Rates from the bytes that clients send.

use super::bounds::RateError;
use super::calendar::Calendar;
use super::ratio::{Ratio, Scaled, Steady};
use super::unit::{unit, Unit, SECOND};
use super::Rate;
use crate::number::{short_fraction, short_whole, Decimal};

/// The first number of more than 12 digits.
const TWELVE_DIGITS: u64 = 1_000_000_000_000;

impl Rate {
    /// Reads `5`, `0.25`, `1e-3` (tokens per second), `100/m`, `10/10s`, `1/250ms`, `5000/h`, `1/d`, or `1000@d`,
    /// `5@10s`, `100@w+6d`, `10000@3mo`, `1@y`, `1000@mo+14d+09:00` (at boundaries of the calendar).
    ///
    /// Both numbers of a ratio keep 12 significant digits. Further digits round the count down and the period up, so that a
    /// rate never exceeds the given one; but a count within float error of a whole micro-token snaps to it. The count of a
    /// calendar is an amount of tokens.
    ///
    /// # Errors
    /// [`RateError`] if it is malformed or out of bounds.
    #[inline(always)] // Hot, and small: the general case is elsewhere.
    pub fn parse(bytes: &[u8]) -> Result<Self, RateError> {
        match Self::short(bytes) {
            Some(ratio) => Ok(Self::Ratio(ratio)),
            None => Self::general(bytes),
        }
    }

    /// Reads short numbers without a power of ten, which nearly every client sends, without the general reader.
    #[inline(always)]
    fn short(bytes: &[u8]) -> Option<Ratio> {
        match short_whole(bytes)? {
            (count, []) => Ratio::per_seconds(count, 1),
            (count, [b'/', period @ ..]) => Self::short_per_period(count, 1, period),
            (whole, [b'.', behind @ ..]) => Self::short_decimal(whole, behind),
            _ => None,
        }
    }

    /// Reads `whole.fraction`, per second or per period, of 12 digits in all.
    #[inline]
    fn short_decimal(whole: u64, behind: &[u8]) -> Option<Ratio> {
        let (fraction, parts, rest) = short_fraction(behind)?;
        let count = whole.saturating_mul(parts).saturating_add(fraction);
        match rest {
            _ if count >= TWELVE_DIGITS => None,
            [] => Ratio::per_seconds(count, parts),
            [b'/', period @ ..] => Self::short_per_period(count, parts, period),
            _ => None,
        }
    }

    /// Returns `count / parts` tokens in a period of a whole number of units.
    #[inline]
    fn short_per_period(count: u64, parts: u64, period: &[u8]) -> Option<Ratio> {
        let (number, name) = match period {
            // Nearly always: a unit alone has no number to look for.
            [_] => (1, period),
            _ => short_whole(period).unwrap_or((1, period)),
        };
        let unit = unit(name)?;
        let period = number.checked_mul(unit.seconds)?.checked_mul(parts)?;
        Ratio::per_seconds(count.checked_mul(unit.per_second)?, period)
    }

    #[cold]
    fn general(bytes: &[u8]) -> Result<Self, RateError> {
        match bytes.iter().position(|byte| matches!(byte, b'/' | b'@')) {
            None if Decimal::parse(bytes).is_some_and(Decimal::is_zero) => Err(RateError::Zero),
            None => Self::ratio(Self::count(bytes)?, (1, 0), SECOND),
            Some(at) => match bytes.split_at(at) {
                (count, [b'@', period @ ..]) => Ok(Self::Calendar(Calendar::parse(count, period)?)),
                (count, period) => Self::per_period(count, period.get(1..).unwrap_or_default()),
            },
        }
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

    /// Reads the number of tokens, as mantissa and exponent.
    fn count(bytes: &[u8]) -> Result<(u64, i64), RateError> {
        let count = Decimal::parse(bytes).filter(|count| !count.is_zero()).ok_or(RateError::Malformed)?;
        let (mantissa, exponent, _) = count.snapped_to_micro().unwrap_or(count).twelve_digits();
        Ok((mantissa, exponent))
    }

    /// Tokens per second, within bounds. Both numbers are a mantissa of at most 13 digits and an exponent.
    fn ratio(count: (u64, i64), period: (u64, i64), unit: Unit) -> Result<Self, RateError> {
        // Exponents saturate when they are read: two that did may differ.
        const LARGEST_EXPONENT: u64 = 1 << 62;
        if count.1.unsigned_abs().max(period.1.unsigned_abs()) > LARGEST_EXPONENT {
            return Err(RateError::OutOfRange);
        }
        // 13 digits, and a factor of at most 86,400: neither the products nor anything below can overflow.
        let numerator = count.0.saturating_mul(unit.per_second);
        let denominator = period.0.saturating_mul(unit.seconds);
        Ok(match Scaled::checked(Ratio { numerator, denominator }, count.1.saturating_sub(period.1))? {
            Steady::Ratio(ratio) => Self::Ratio(ratio),
            Steady::Scaled(scaled) => Self::Scaled(scaled),
        })
    }
}

/// Splits `10s` into its number and its unit.
fn split_unit(period: &[u8]) -> Option<(&[u8], Unit)> {
    let letters = period.iter().rev().take_while(|byte| byte.is_ascii_lowercase() && **byte != b'e').count();
    let (number, name) = period.split_at_checked(period.len().saturating_sub(letters))?;
    Some((number, unit(name)?))
}

/// Returns the next larger number of 12 significant digits.
fn next_of_twelve_digits(mut mantissa: u64, mut exponent: i64) -> (u64, i64) {
    // Zeros were left out at the end: one unit more has to be one of the twelfth digit.
    while mantissa < TWELVE_DIGITS / 10 {
        mantissa = mantissa.saturating_mul(10);
        exponent = exponent.saturating_sub(1);
    }
    (mantissa.saturating_add(1), exponent)
}
