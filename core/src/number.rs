//! Amounts of tokens: bytes to exact integers, and back.
//!
//! Clients print numbers in many ways (`10`, `0.5`, `1e3`, `1E-2`), and a float would round them where no client
//! sees it. So the digits themselves are read: an amount becomes a whole number of micro-tokens, rounded by its
//! [role](Rounding).
//!
//! Float noise is absorbed: `0.29999999999999999` and `0.30000000000000004` count as 0.3, because a number within 10^-12
//! tokens of a whole micro-token is that micro-token.

use crate::cast::signed;

/// Micro-tokens in a token: the resolution at which amounts and levels are kept.
pub const MICRO_PER_TOKEN: i64 = 1_000_000;

/// The largest capacity, cost or amount, in tokens.
pub const MAX_TOKENS: i64 = 1_000_000_000_000;

/// [`MAX_TOKENS`] in micro-tokens.
pub const MAX_MICRO: i64 = 1_000_000_000_000_000_000;

/// The longest spelling of a number, in bytes. Reading a longer one would keep the server busy.
pub const MAX_LEN: usize = 128;

/// An amount within a micro-token divided by this (10^-12 tokens) of a whole micro-token counts as whole.
const TOLERANCE_PER_MICRO: u128 = 1_000_000;

/// How an amount between two micro-tokens is rounded.
///
/// Rounding never favours the caller: capacities and refunds go down, costs go up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Towards zero: capacities and refunds.
    Down,
    /// Away from zero: costs and charges.
    Up,
}

/// A non-negative decimal as written: `mantissa * 10^exponent`, plus less than one unit of the mantissa's last digit if
/// `inexact`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    /// At most [`Decimal::PRECISION`] digits.
    mantissa: u128,
    exponent: i64,
    inexact: bool,
}

impl Decimal {
    /// Digits that are kept: 19 before the point and 12 behind it decide the value.
    const PRECISION: u32 = 32;

    /// Reads `[+]digits[.digits][e[+-]digits]`.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_LEN {
            return None;
        }
        let unsigned = bytes.strip_prefix(b"+").unwrap_or(bytes);
        let (whole, rest) = split_digits(unsigned);
        let (fraction, rest) = match rest {
            [b'.', behind @ ..] => split_digits(behind),
            _ => (&[][..], rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let power = match rest {
            [] => 0,
            [b'e' | b'E', power @ ..] => signed_power(power)?,
            _ => return None,
        };
        let mut decimal = Self { mantissa: 0, exponent: 0, inexact: false };
        whole.iter().for_each(|digit| decimal.push(*digit, 0));
        fraction.iter().for_each(|digit| decimal.push(*digit, -1));
        decimal.exponent = decimal.exponent.saturating_add(power);
        Some(decimal)
    }

    /// Appends a digit, whose place is `shift` powers of ten from that of a whole number's next digit.
    fn push(&mut self, digit: u8, shift: i64) {
        const FULL: u128 = 10u128.pow(Decimal::PRECISION - 1);
        let digit = u128::from(digit.wrapping_sub(b'0'));
        if self.mantissa < FULL {
            self.mantissa = self.mantissa.wrapping_mul(10).wrapping_add(digit);
            self.exponent = self.exponent.wrapping_add(shift);
        } else {
            self.inexact |= digit != 0;
            self.exponent = self.exponent.wrapping_add(shift).wrapping_add(1);
        }
    }

    pub(crate) fn is_zero(self) -> bool {
        self.mantissa == 0
    }

    /// Returns the first 12 significant digits, as mantissa and exponent, and whether others but zeros follow.
    pub(crate) fn twelve_digits(self) -> (u64, i64, bool) {
        const FULL: u128 = 1_000_000_000_000;
        let Self { mut mantissa, mut exponent, mut inexact } = self;
        while mantissa >= FULL || ends_in_zero(mantissa) {
            inexact |= mantissa % 10 != 0;
            mantissa /= 10;
            exponent = exponent.saturating_add(1);
        }
        (u64::try_from(mantissa).unwrap_or(0), exponent, inexact)
    }

    /// Returns the nearest non-zero micro-token, if within float error of it.
    pub(crate) fn snapped_to_micro(self) -> Option<Self> {
        let (mantissa, is_more) = self.floor_micro()?;
        (!is_more && mantissa != 0).then_some(Self { mantissa, exponent: -6, inexact: false })
    }

    /// Returns whole micro-tokens, rounded down, and whether it is more than these. `None` above 128 bits.
    fn floor_micro(self) -> Option<(u128, bool)> {
        let exponent = self.exponent.saturating_add(6);
        if self.mantissa == 0 {
            return Some((0, false));
        }
        let Some(power) = u32::try_from(exponent.unsigned_abs()).ok().and_then(|e| 10u128.checked_pow(e))
        else {
            // Too much, or less than 10^32 / 10^39 micro-tokens: nothing.
            return (exponent < 0).then_some((0, false));
        };
        if exponent >= 0 {
            return Some((self.mantissa.checked_mul(power)?, self.inexact));
        }
        let floor = self.mantissa.checked_div(power)?;
        let over = self.mantissa.checked_rem(power)?;
        let tolerance = power / TOLERANCE_PER_MICRO;
        let is_just_above = over < tolerance || (over == tolerance && !self.inexact);
        if power.saturating_sub(over) <= tolerance {
            return Some((floor.saturating_add(1), false));
        }
        Some((floor, !is_just_above))
    }

    /// Returns the number of micro-tokens, or `None` above [`MAX_MICRO`].
    fn micro(self, rounding: Rounding) -> Option<i64> {
        let (floor, is_more) = self.floor_micro()?;
        let up = u128::from(is_more && rounding == Rounding::Up);
        let micro = i64::try_from(floor.checked_add(up)?).ok()?;
        (micro <= MAX_MICRO).then_some(micro)
    }

    /// Returns the value if it is a whole number.
    fn whole(self) -> Option<i64> {
        let (micro, is_more) = self.floor_micro()?;
        let per_token = u128::from(MICRO_PER_TOKEN.unsigned_abs());
        let is_whole = !is_more && micro.checked_rem(per_token)? == 0;
        i64::try_from(micro.checked_div(per_token)?).ok().filter(|_| is_whole)
    }
}

/// Returns whether the last digit is a 0 that can go. Zero itself has none.
fn ends_in_zero(mantissa: u128) -> bool {
    mantissa != 0 && mantissa % 10 == 0
}

/// Returns the digits with which `bytes` begin, and what follows them.
fn split_digits(bytes: &[u8]) -> (&[u8], &[u8]) {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    bytes.split_at_checked(digits).unwrap_or((bytes, &[]))
}

/// Reads the digits behind an `e`, with an optional sign. A power that does not fit saturates: it can only mean zero or
/// too much.
fn signed_power(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let (power, rest) = split_digits(digits);
    if power.is_empty() || !rest.is_empty() {
        return None;
    }
    let power = power.iter().fold(0i64, |power, digit| {
        power.saturating_mul(10).saturating_add(i64::from(digit.wrapping_sub(b'0')))
    });
    Some(if negative { power.saturating_neg() } else { power })
}

/// Reads an amount of tokens as micro-tokens: 0 to [`MAX_MICRO`].
///
/// `None` if it is not a non-negative decimal of at most [`MAX_LEN`] bytes, or is larger than that.
#[inline] // Hot, and small: the general case is elsewhere.
#[must_use]
pub fn micro_tokens(bytes: &[u8], rounding: Rounding) -> Option<i64> {
    match short_whole(bytes) {
        Some((tokens, [])) => Some(signed(tokens.wrapping_mul(MICRO_PER_TOKEN.unsigned_abs()))),
        Some((tokens, [b'.', fraction @ ..])) => {
            short_micro(tokens, fraction).or_else(|| general_micro(bytes, rounding))
        }
        _ => general_micro(bytes, rounding),
    }
}

/// Reads a fraction of at most 6 digits behind `tokens`.
#[inline]
fn short_micro(tokens: u64, fraction: &[u8]) -> Option<i64> {
    let (parts, power, rest) = short_fraction(fraction)?;
    let micro_per_token = MICRO_PER_TOKEN.unsigned_abs();
    let micro_per_part = micro_per_token.checked_div(power)?;
    // 12 digits before the point, and 6 behind it.
    let micro = tokens.wrapping_mul(micro_per_token).wrapping_add(parts.wrapping_mul(micro_per_part));
    rest.is_empty().then_some(signed(micro))
}

#[cold]
fn general_micro(bytes: &[u8], rounding: Rounding) -> Option<i64> {
    Decimal::parse(bytes)?.micro(rounding)
}

/// Reads a whole number written in any of the ways of a decimal, from 0 to `max`.
#[must_use]
pub fn whole(bytes: &[u8], max: i64) -> Option<i64> {
    let value = match short_whole(bytes) {
        Some((value, [])) => signed(value),
        _ => Decimal::parse(bytes)?.whole()?,
    };
    (value <= max).then_some(value)
}

/// The most digits that the quick reader takes, in machine words. Nearly every client sends no more.
const SHORT: usize = 12;

/// Returns the unsigned integer of 1 to 12 digits with which `bytes` begin, and what follows it.
#[inline(always)]
pub(crate) fn short_whole(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (value, digits) = short_digits(bytes);
    if !(1..=SHORT).contains(&digits) {
        return None;
    }
    Some((value, bytes.get(digits..)?))
}

/// Returns the digits behind a decimal point, at most 6: as a number, the power of ten of which it counts the parts,
/// and what follows.
#[inline]
pub(crate) fn short_fraction(bytes: &[u8]) -> Option<(u64, u64, &[u8])> {
    const POWERS: [u64; 7] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000];
    let (value, digits) = short_digits(bytes);
    Some((value, *POWERS.get(digits)?, bytes.get(digits..)?))
}

/// Returns the number that the digits in front spell, and how many they are: more than [`SHORT`] are not read to the
/// end.
#[inline(always)]
fn short_digits(bytes: &[u8]) -> (u64, usize) {
    let mut value = 0u64;
    let mut digits = 0usize;
    for byte in bytes.iter().take(SHORT + 1) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        digits = digits.wrapping_add(1);
    }
    (value, digits)
}

/// Prints micro-tokens as a decimal number of tokens with up to 6 fraction digits: `-3.5`, `10`, `0.000001`.
#[must_use]
pub fn decimal_tokens(micro: i64) -> String {
    let sign = if micro < 0 { "-" } else { "" };
    let whole = (micro / MICRO_PER_TOKEN).unsigned_abs();
    let fraction = (micro % MICRO_PER_TOKEN).unsigned_abs();
    if fraction == 0 {
        return format!("{sign}{whole}");
    }
    let digits = format!("{fraction:06}");
    format!("{sign}{whole}.{}", digits.trim_end_matches('0'))
}
