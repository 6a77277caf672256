//! What a client's number means, in exact arithmetic: the grammar of amounts and rates, read naively.
//!
//! Nothing here looks at how the module reads numbers. Digits become a big integer, powers of ten are multiplied
//! out, and only then is anything compared or rounded.

use super::rational::{integer, Exact};
use num_bigint::{BigInt, BigUint};
use num_traits::{One, Pow, ToPrimitive, Zero};
use tokenbucket::number::{RateError, Rounding};

/// Seconds in 100 years of 365.25 days.
pub const CENTURY_S: i64 = 3_155_760_000;

/// Tokens: the largest amount, and the most that flow in a second.
const MOST_TOKENS: i64 = 1_000_000_000_000;

/// Micro-tokens in a token.
const MILLION: i64 = 1_000_000;

/// No number of more decimal places than this, before or behind the point, is near any bound.
const ABSURD: i32 = 1000;

/// `digits * 10^exponent`, without trailing zeros in the digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decimal {
    digits: BigInt,
    exponent: BigInt,
}

impl Decimal {
    /// `[+]digits[.digits][e[+-]digits]`; one of the digits around the point is enough.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let unsigned = text.strip_prefix('+').unwrap_or(text);
        let (mantissa, power) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, power)) => (mantissa, read_power(power)?),
            None => (unsigned, BigInt::zero()),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        if !is_digits(&digits) {
            return None;
        }
        let significant = digits.trim_end_matches('0');
        let zeros = digits.len() - significant.len();
        let digits = significant.parse().unwrap_or_else(|_| BigInt::zero());
        Some(Self { digits, exponent: power - BigInt::from(fraction.len()) + BigInt::from(zeros) })
    }

    pub fn is_zero(&self) -> bool {
        self.digits.is_zero()
    }

    /// How many digits it takes to write, without leading and trailing zeros.
    pub fn significant_digits(&self) -> usize {
        self.digits.to_string().len()
    }

    fn is_absurd(&self) -> bool {
        self.exponent.magnitude() > &BigUint::from(1_000_000_000_000_000_000u64)
    }

    /// The `n` for which the value is at least `10^(n-1)` and below `10^n`.
    fn magnitude(&self) -> BigInt {
        BigInt::from(self.significant_digits()) + &self.exponent
    }

    fn value(&self) -> Exact {
        scaled(integer(self.digits.clone()), &self.exponent, &self.magnitude())
    }
}

/// `value * 10^exponent`. A product that nobody would want to write out is replaced by one as absurd.
fn scaled(value: Exact, exponent: &BigInt, magnitude: &BigInt) -> Exact {
    if value.is_zero() {
        value
    } else if *magnitude > BigInt::from(ABSURD) {
        power_of_ten(ABSURD)
    } else if *magnitude < BigInt::from(-ABSURD) {
        power_of_ten(-ABSURD)
    } else {
        value * power_of_ten(exponent.to_i32().unwrap())
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn read_power(text: &str) -> Option<BigInt> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let power: BigInt = is_digits(digits).then(|| digits.parse().unwrap())?;
    Some(if text.starts_with('-') { -power } else { power })
}

fn power_of_ten(exponent: i32) -> Exact {
    Pow::pow(integer(10), exponent)
}

/// An amount of tokens in micro-tokens, or `None` if it is none or is too large.
pub fn amount(bytes: &[u8], rounding: Rounding) -> Option<i64> {
    let micro = Decimal::read(bytes)?.value() * integer(MILLION);
    let micro = match rounding {
        Rounding::Down => micro.floor(),
        Rounding::Up => micro.ceil(),
    };
    (micro <= integer(MOST_TOKENS) * integer(MILLION)).then(|| micro.to_integer().to_i64().unwrap())
}

/// A whole number from 0 to `max`, in any spelling of a decimal.
pub fn whole(bytes: &[u8], max: i64) -> Option<i64> {
    let value = Decimal::read(bytes)?.value();
    (value.is_integer() && value <= integer(max)).then(|| value.to_integer().to_i64().unwrap())
}

/// What the words of a rate mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens per second, which is micro-tokens per microsecond.
    pub per_second: Exact,
    /// Whether both numbers have at most 12 significant digits, so that nothing may be rounded.
    pub is_short: bool,
    /// Whether an exponent has more than 18 digits, and so may be refused however well the two cancel out.
    pub is_absurd: bool,
}

impl Rate {
    /// Whether it has to be kept exactly.
    pub fn is_kept(&self) -> bool {
        self.is_short && !self.is_absurd
    }
}

/// Tokens per second, or `count/[number]ms|s|m|h|d`, within bounds.
pub fn rate(bytes: &[u8]) -> Result<Rate, RateError> {
    let rate = unbounded_rate(bytes)?;
    let slowest = integer(CENTURY_S).recip();
    if rate.per_second > integer(MOST_TOKENS) || rate.per_second < slowest {
        return Err(RateError::OutOfRange);
    }
    Ok(rate)
}

/// The same before anybody looks at the bounds.
pub fn unbounded_rate(bytes: &[u8]) -> Result<Rate, RateError> {
    let (count, period) = match bytes.iter().position(|byte| *byte == b'/') {
        None => (bytes, None),
        Some(slash) => (&bytes[..slash], Some(&bytes[slash + 1..])),
    };
    let count = positive(count)?;
    let (number, unit_s) = match period {
        None => (Decimal::read(b"1").unwrap(), Exact::one()),
        Some(period) => read_period(period)?,
    };
    let is_short = count.significant_digits() <= 12 && number.significant_digits() <= 12;
    let is_absurd = [&count, &number].into_iter().any(Decimal::is_absurd);
    Ok(Rate { per_second: quotient(&count, &number) / unit_s, is_short, is_absurd })
}

fn positive(bytes: &[u8]) -> Result<Decimal, RateError> {
    Decimal::read(bytes).filter(|decimal| !decimal.is_zero()).ok_or(RateError::Malformed)
}

/// The number in front of a unit, and the unit in seconds.
fn read_period(bytes: &[u8]) -> Result<(Decimal, Exact), RateError> {
    let units: [(&[u8], Exact); 5] = [
        (b"ms", integer(1000).recip()),
        (b"s", integer(1)),
        (b"m", integer(60)),
        (b"h", integer(3600)),
        (b"d", integer(86_400)),
    ];
    let (number, unit) = units
        .into_iter()
        .find_map(|(name, unit)| Some((bytes.strip_suffix(name)?, unit)))
        .ok_or(RateError::Malformed)?;
    let number = if number.is_empty() { b"1" } else { number };
    Ok((positive(number)?, unit))
}

/// `count / number`. However absurd both are, what counts is how they compare.
fn quotient(count: &Decimal, number: &Decimal) -> Exact {
    let digits = Exact::new(count.digits.clone(), number.digits.clone());
    scaled(digits, &(&count.exponent - &number.exponent), &(count.magnitude() - number.magnitude()))
}

/// Whether a bucket of `capacity_micro` refills from empty within 100 years.
pub fn refills_within_a_century(capacity_micro: i64, rate: &Exact) -> bool {
    integer(capacity_micro) <= rate * integer(CENTURY_S) * integer(MILLION)
}
