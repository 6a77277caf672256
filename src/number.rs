//! Tokens and rates: bytes to exact integers, and back.
//!
//! Clients print numbers in many ways (`10`, `0.5`, `1e3`, `1E-2`), and a float would round them where nobody
//! sees it. So the digits themselves are read: a token amount becomes a whole number of micro-tokens, rounded in
//! the direction that its role asks for, and a rate becomes a ratio of two integers that is never rounded at all.
//!
//! Conveniently, one token a second *is* one micro-token a microsecond, so a [`Rate`] needs no conversion before
//! it meets the clock.

#![forbid(unsafe_code)]

/// Micro-tokens in a token: the resolution at which amounts and levels are kept.
pub const MICRO_PER_TOKEN: i64 = 1_000_000;

/// The largest capacity, cost or amount, and the deepest debt, in tokens.
pub const MAX_TOKENS: i64 = 1_000_000_000_000;

/// [`MAX_TOKENS`] in micro-tokens.
pub const MAX_MICRO: i64 = 1_000_000_000_000_000_000;

/// 100 years of 365.25 days, in seconds: the slowest rate is one token in this time.
const CENTURY_S: u64 = 3_155_760_000;

/// 100 years in microseconds: no bucket may take longer to refill from empty.
const CENTURY_US: u64 = 3_155_760_000_000_000;

/// The fastest rate, in tokens per second.
const MAX_TOKENS_PER_S: u64 = 1_000_000_000_000;

/// Which way an amount that lies between two micro-tokens goes.
///
/// Rounding never favours the taker: what it may hold or gets back goes down, what it pays goes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Towards zero: capacities and refunds.
    Down,
    /// Away from zero: costs and charges.
    Up,
}

/// A non-negative decimal as it was written: `mantissa * 10^exponent`, plus less than one unit of the mantissa's
/// last digit if `inexact`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decimal {
    mantissa: u64,
    exponent: i64,
    inexact: bool,
}

impl Decimal {
    /// Reads `[+]digits[.digits][e[+-]digits]`, keeping at most `precision` significant digits (19 at most, so
    /// that the mantissa fits). Time is linear in the length, memory constant.
    fn parse(bytes: &[u8], precision: u32) -> Option<Self> {
        let unsigned = bytes.strip_prefix(b"+").unwrap_or(bytes);
        let mut digits = Digits::new(precision);
        let rest = digits.read(unsigned, false);
        let rest = match rest.strip_prefix(b".") {
            Some(fraction) => digits.read(fraction, true),
            None => rest,
        };
        if !digits.seen {
            return None;
        }
        let exponent = match rest {
            [] => 0,
            [b'e' | b'E', power @ ..] => signed_power(power)?,
            _ => return None,
        };
        Some(Self {
            mantissa: digits.mantissa,
            exponent: digits.exponent.saturating_add(exponent),
            inexact: digits.inexact,
        })
    }

    /// Mantissa and exponent of the smallest number of 12 significant digits that is not below it.
    fn rounded_up(self) -> (u64, i64) {
        const TWELVE_DIGITS: u64 = 100_000_000_000;
        let (mut mantissa, mut exponent) = (self.mantissa, self.exponent);
        if !self.inexact || mantissa == 0 {
            return (mantissa, exponent);
        }
        // Zeros were left out behind the mantissa: one unit more has to be one of the twelfth digit.
        while mantissa < TWELVE_DIGITS {
            mantissa = mantissa.saturating_mul(10);
            exponent = exponent.saturating_sub(1);
        }
        (mantissa.saturating_add(1), exponent)
    }

    /// The number of micro-tokens it stands for, or `None` above [`MAX_MICRO`].
    fn micro(self, rounding: Rounding) -> Option<i64> {
        let exponent = self.exponent.saturating_add(6);
        let (floor, rest) = match power_of_ten(exponent.unsigned_abs()) {
            _ if self.mantissa == 0 => (0, self.inexact),
            Some(power) if exponent >= 0 => (u128::from(self.mantissa).checked_mul(power)?, self.inexact),
            None if exponent >= 0 => return None,
            Some(power) => {
                let mantissa = u128::from(self.mantissa);
                let rest = mantissa.checked_rem(power)? != 0;
                (mantissa.checked_div(power)?, rest || self.inexact)
            }
            None => (0, true),
        };
        let up = u128::from(rest && rounding == Rounding::Up);
        let micro = i64::try_from(floor.checked_add(up)?).ok()?;
        (micro <= MAX_MICRO).then_some(micro)
    }
}

/// Gathers significant digits until the precision is reached, then only their place value.
struct Digits {
    mantissa: u64,
    exponent: i64,
    inexact: bool,
    seen: bool,
    room: u32,
    /// Zeros that count only once a digit other than zero follows them, so that `1000…0` keeps its precision.
    zeros: i64,
}

impl Digits {
    fn new(precision: u32) -> Self {
        Self { mantissa: 0, exponent: 0, inexact: false, seen: false, room: precision, zeros: 0 }
    }

    /// Takes the leading digits of `bytes` and returns what follows them.
    fn read<'a>(&mut self, mut bytes: &'a [u8], fraction: bool) -> &'a [u8] {
        while let [byte @ b'0'..=b'9', rest @ ..] = bytes {
            self.seen = true;
            self.push(byte.wrapping_sub(b'0'));
            if fraction {
                self.exponent = self.exponent.saturating_sub(1);
            }
            bytes = rest;
        }
        bytes
    }

    fn push(&mut self, digit: u8) {
        if digit == 0 {
            // A zero before the first digit has no weight; one behind it waits.
            if self.mantissa != 0 {
                self.zeros = self.zeros.saturating_add(1);
            }
            self.exponent = self.exponent.saturating_add(i64::from(self.mantissa != 0));
            return;
        }
        let waiting = u32::try_from(self.zeros).unwrap_or(u32::MAX);
        let places = waiting.saturating_add(1);
        if places > self.room {
            // No room for this digit: it, and all behind it, only make the number inexact.
            self.room = 0;
            self.inexact = true;
            self.exponent = self.exponent.saturating_add(1);
            self.zeros = self.zeros.saturating_add(1);
            return;
        }
        let shift = 10u64.saturating_pow(places);
        self.mantissa = self.mantissa.saturating_mul(shift).saturating_add(u64::from(digit));
        self.exponent = self.exponent.saturating_sub(self.zeros);
        self.zeros = 0;
        self.room = self.room.saturating_sub(places);
    }
}

/// Reads the digits behind an `e`, with an optional sign. A power beyond what fits saturates: it can only mean
/// zero or too much.
fn signed_power(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let mut power = 0i64;
    for byte in digits {
        power = power.saturating_mul(10).saturating_add(i64::from(decimal_digit(*byte)?));
    }
    let power = if negative { power.saturating_neg() } else { power };
    (!digits.is_empty()).then_some(power)
}

fn decimal_digit(byte: u8) -> Option<u8> {
    byte.is_ascii_digit().then(|| byte.wrapping_sub(b'0'))
}

fn power_of_ten(exponent: u64) -> Option<u128> {
    10u128.checked_pow(u32::try_from(exponent).ok()?)
}

/// Reads an amount of tokens as micro-tokens: 0 to [`MAX_MICRO`].
///
/// `None` if it is no non-negative decimal, or is larger than that.
#[inline(always)] // Hot, and small: the general case is elsewhere.
#[must_use]
pub fn micro_tokens(bytes: &[u8], rounding: Rounding) -> Option<i64> {
    match short_whole(bytes) {
        Some(tokens) => Some(tokens.wrapping_mul(MICRO_PER_TOKEN)),
        None => general_micro_tokens(bytes, rounding),
    }
}

#[cold]
fn general_micro_tokens(bytes: &[u8], rounding: Rounding) -> Option<i64> {
    Decimal::parse(bytes, 19)?.micro(rounding)
}

/// Reads a whole number written in any of the ways of a decimal, from 0 to `max`.
#[must_use]
pub fn whole(bytes: &[u8], max: i64) -> Option<i64> {
    let value = match short_whole(bytes) {
        Some(value) => value,
        None => Decimal::parse(bytes, 19).and_then(exact_whole)?,
    };
    (value <= max).then_some(value)
}

fn exact_whole(decimal: Decimal) -> Option<i64> {
    if decimal.mantissa == 0 {
        return (!decimal.inexact).then_some(0);
    }
    // The mantissa ends in a digit other than zero, so a negative exponent leaves a fraction.
    let power = power_of_ten(u64::try_from(decimal.exponent).ok()?)?;
    if decimal.inexact {
        return None;
    }
    i64::try_from(u128::from(decimal.mantissa).checked_mul(power)?).ok()
}

/// What nearly every client sends, an unsigned integer of at most 12 digits, without the general reader's work.
#[inline(always)]
fn short_whole(bytes: &[u8]) -> Option<i64> {
    match leading_whole(bytes)? {
        (value, []) => i64::try_from(value).ok(),
        _ => None,
    }
}

/// The unsigned integer of 1 to 12 digits with which `bytes` begin, and what follows it.
#[inline(always)]
fn leading_whole(bytes: &[u8]) -> Option<(u64, &[u8])> {
    const MOST: usize = 12;
    let mut value = 0u64;
    let mut rest = bytes;
    while let [byte @ b'0'..=b'9', behind @ ..] = rest {
        // Wraps only beyond 19 digits, which are not accepted below.
        value = value.wrapping_mul(10).wrapping_add(u64::from(byte.wrapping_sub(b'0')));
        rest = behind;
    }
    let digits = bytes.len().wrapping_sub(rest.len());
    (1..=MOST).contains(&digits).then_some((value, rest))
}

/// Why bytes are no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateError {
    /// Neither tokens per second nor `count/period`, or zero.
    Malformed,
    /// Faster than 10^12 tokens per second, or slower than one token in 100 years.
    OutOfRange,
}

/// What flows, and how long it takes, is told up to here: beyond what any bucket holds or any clock counts, and
/// small enough to be added to a level or a time.
const MOST: i64 = 1 << 62;

/// Tokens per second as an exact ratio, which is also micro-tokens per microsecond:
/// `numerator / denominator * 10^exponent`.
///
/// Nearly always the exponent is 0 and all arithmetic fits machine words. The others are rates like `2.1e-20/ms`
/// written with twelve digits, whose terms need up to 90 bits. There, a product that leaves 128 bits means "more
/// than any bucket holds" when multiplied by the numerator and "longer than any clock counts" when multiplied by
/// the denominator, because the bounds on rates keep the numerator below 10^13 wherever the denominator exceeds
/// 10^15, and below 10^27 elsewhere: overflow saturates, and is never wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    numerator: u64,
    denominator: u64,
    exponent: i32,
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
    /// Reads `5`, `0.25`, `1e-3` (tokens per second) or `100/m`, `10/10s`, `1/250ms`, `5000/h`, `1/d`.
    ///
    /// Both numbers keep 12 significant digits; further ones are rounded down in the count and up in the
    /// period, so that a rate is never above what was asked.
    ///
    /// # Errors
    /// [`RateError`] if it is no rate, or one out of bounds.
    #[inline(always)] // Hot, and small: the general case is elsewhere.
    pub fn parse(bytes: &[u8]) -> Result<Self, RateError> {
        match Self::short(bytes) {
            Some(rate) => Ok(rate),
            None => {
                // Field by field, or the optimiser keeps the usual rates in memory for the sake of the others.
                let Self { numerator, denominator, exponent } = Self::general(bytes)?;
                Ok(Self { numerator, denominator, exponent })
            }
        }
    }

    /// What nearly every client sends, whole numbers of at most 12 digits, without the general reader's work.
    #[inline(always)]
    fn short(bytes: &[u8]) -> Option<Self> {
        let (count, rest) = leading_whole(bytes)?;
        let (numerator, denominator) = match rest {
            [] => (count, 1),
            [b'/', period @ ..] => {
                let (number, unit) = match period {
                    // Nearly always: a unit alone has no number to look for.
                    [_] => (1, period),
                    _ => leading_whole(period).unwrap_or((1, period)),
                };
                // 12 digits, times what is below, cannot overflow.
                match unit {
                    b"ms" => (count.wrapping_mul(1000), number),
                    b"s" => (count, number),
                    b"m" => (count, number.wrapping_mul(60)),
                    b"h" => (count, number.wrapping_mul(3600)),
                    b"d" => (count, number.wrapping_mul(86_400)),
                    _ => return None,
                }
            }
            _ => return None,
        };
        Self::per_seconds(numerator, denominator)
    }

    /// `count` tokens in `period_s` seconds, or `None` if that is no rate within bounds.
    #[inline(always)]
    #[must_use]
    pub fn per_seconds(count: u64, period_s: u64) -> Option<Self> {
        // A product beyond 64 bits is larger than anything on the other side of its comparison.
        let fastest = period_s.saturating_mul(MAX_TOKENS_PER_S);
        let slowest = count.saturating_mul(CENTURY_S);
        (count <= fastest && period_s <= slowest && period_s != 0).then_some(Self {
            numerator: count,
            denominator: period_s,
            exponent: 0,
        })
    }

    #[cold]
    fn general(bytes: &[u8]) -> Result<Self, RateError> {
        match bytes.iter().position(|byte| *byte == b'/') {
            None => Self::ratio(Self::count(bytes)?, 1, 1, 0),
            Some(slash) => {
                let (count, period) = bytes.split_at(slash);
                Self::per_period(count, period.get(1..).unwrap_or_default())
            }
        }
    }

    fn per_period(count: &[u8], period: &[u8]) -> Result<Self, RateError> {
        let count = Self::count(count)?;
        let (number, unit, unit_exponent) = split_unit(period).ok_or(RateError::Malformed)?;
        if number.is_empty() {
            return Self::ratio(count, 1, unit, unit_exponent);
        }
        let period = Decimal::parse(number, 12).filter(|p| p.mantissa != 0).ok_or(RateError::Malformed)?;
        let (mantissa, exponent) = period.rounded_up();
        Self::ratio(count, mantissa, unit, unit_exponent.saturating_add(exponent))
    }

    fn count(bytes: &[u8]) -> Result<Decimal, RateError> {
        Decimal::parse(bytes, 12).filter(|count| count.mantissa != 0).ok_or(RateError::Malformed)
    }

    /// `count / (period * unit * 10^exponent)` tokens per second, within bounds.
    fn ratio(count: Decimal, period: u64, unit: u64, exponent: i64) -> Result<Self, RateError> {
        // Exponents saturate when they are read: two that did are not equal, whatever they look like.
        const LARGEST_EXPONENT: u64 = 1 << 62;
        if count.exponent.unsigned_abs().max(exponent.unsigned_abs()) > LARGEST_EXPONENT {
            return Err(RateError::OutOfRange);
        }
        // 12 digits, and a factor of at most 864: neither the product nor anything below can overflow.
        let denominator = period.saturating_mul(unit);
        let exponent = count.exponent.saturating_sub(exponent);
        let exponent = i32::try_from(exponent).map_err(|_| RateError::OutOfRange)?;
        let rate = Self { numerator: count.mantissa, denominator, exponent };
        let (numerator, denominator) = rate.wide().ok_or(RateError::OutOfRange)?;
        // A product beyond 128 bits is larger than anything on the other side of its comparison.
        let fastest = denominator.saturating_mul(u128::from(MAX_TOKENS_PER_S));
        let slowest = numerator.saturating_mul(u128::from(CENTURY_S));
        if numerator > fastest || denominator > slowest {
            return Err(RateError::OutOfRange);
        }
        Ok(match (u64::try_from(numerator), u64::try_from(denominator)) {
            (Ok(numerator), Ok(denominator)) => Self { numerator, denominator, exponent: 0 },
            _ => rate,
        })
    }

    /// The two terms with the exponent worked into one of them; `None` if that one leaves 128 bits.
    fn wide(&self) -> Option<(u128, u128)> {
        let power = 10u128.checked_pow(self.exponent.unsigned_abs())?;
        let (up, down) = if self.exponent >= 0 { (power, 1) } else { (1, power) };
        let numerator = u128::from(self.numerator).checked_mul(up)?;
        let denominator = u128::from(self.denominator).checked_mul(down)?;
        Some((numerator, denominator))
    }

    /// What flows in `elapsed_us` microseconds (0 or more).
    #[inline]
    #[must_use]
    pub fn flow(&self, elapsed_us: i64) -> Flow {
        let elapsed = elapsed_us.max(0).unsigned_abs();
        match elapsed.checked_mul(self.numerator) {
            Some(total) if self.exponent == 0 => {
                let micro = total.checked_div(self.denominator).unwrap_or(0);
                let rest = total.wrapping_sub(micro.wrapping_mul(self.denominator));
                let carry = if rest == 0 { 0 } else { rest.checked_div(self.numerator).unwrap_or(0) };
                Flow { micro: saturate(micro), carry_us: saturate(carry) }
            }
            _ => self.wide_flow(elapsed),
        }
    }

    #[cold]
    fn wide_flow(&self, elapsed: u64) -> Flow {
        let (numerator, denominator) = self.wide().unwrap_or((0, 1));
        let Some(total) = u128::from(elapsed).checked_mul(numerator) else {
            return Flow { micro: MOST, carry_us: 0 };
        };
        let micro = total.checked_div(denominator).unwrap_or(0);
        let rest = total.checked_rem(denominator).unwrap_or(0);
        let carry = rest.checked_div(numerator).unwrap_or(0);
        Flow { micro: saturate_wide(micro), carry_us: saturate_wide(carry) }
    }

    /// What flows in `elapsed_us` microseconds (0 or more), rounded up to whole micro-tokens; `carry_us` is how
    /// long what was added takes to flow, in whole microseconds.
    #[cold]
    #[must_use]
    pub fn flow_up(&self, elapsed_us: i64) -> Flow {
        let (numerator, denominator) = self.wide().unwrap_or((0, 1));
        let Some(total) = u128::from(elapsed_us.max(0).unsigned_abs()).checked_mul(numerator) else {
            return Flow { micro: MOST, carry_us: 0 };
        };
        let micro = total.div_ceil(denominator);
        let added = micro.saturating_mul(denominator).saturating_sub(total);
        let carry = added.checked_div(numerator).unwrap_or(0);
        Flow { micro: saturate_wide(micro), carry_us: saturate_wide(carry) }
    }

    /// The smallest number of microseconds in which `micro` micro-tokens flow; saturates at 2^62.
    #[inline]
    #[must_use]
    pub fn time_us(&self, micro: i64) -> i64 {
        let micro = micro.max(0).unsigned_abs();
        match micro.checked_mul(self.denominator) {
            Some(total) if self.exponent == 0 => saturate(total.div_ceil(self.numerator.max(1))),
            _ => self.wide_time_us(micro),
        }
    }

    #[cold]
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
            Some(needed) if self.exponent == 0 => needed <= CENTURY_US.saturating_mul(self.numerator),
            _ => self.wide_time_us(capacity).unsigned_abs() <= CENTURY_US,
        }
    }
}

/// The number, or [`MOST`] if it is larger.
#[inline]
fn saturate(value: u64) -> i64 {
    value.min(MOST.unsigned_abs()).cast_signed()
}

fn saturate_wide(value: u128) -> i64 {
    u64::try_from(value).map_or(MOST, saturate)
}

/// Splits `10s` into its number and its unit in seconds, the latter as `factor * 10^exponent`.
fn split_unit(period: &[u8]) -> Option<(&[u8], u64, i64)> {
    if let Some(number) = period.strip_suffix(b"ms") {
        return Some((number, 1, -3));
    }
    let (unit, number) = period.split_last()?;
    match unit {
        b's' => Some((number, 1, 0)),
        b'm' => Some((number, 6, 1)),
        b'h' => Some((number, 36, 2)),
        b'd' => Some((number, 864, 2)),
        _ => None,
    }
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
