//! What a client's number means: the grammar of amounts and rates, read naively, and whether the module agrees.
//!
//! Nothing here looks at how the module reads numbers. Digits become a big integer, powers of ten are multiplied
//! out, and only then is anything compared or rounded.

use super::{whole, Exact, MILLION};
use num_bigint::{BigInt, BigUint};
use num_traits::{One, Pow, Signed, ToPrimitive, Zero};
use tokenbucket::number::{self, micro_tokens, Rounding, MAX_MICRO, MAX_TOKENS};
use tokenbucket::rate::{self, RateError};

/// The longest number, in bytes.
pub const MOST_BYTES: usize = 128;

/// Seconds in 100 years of 365.25 days.
pub const CENTURY_S: i64 = 3_155_760_000;

/// No number of more decimal places than this, before or behind the point, is near any bound.
const ABSURD: i32 = 1000;

/// `digits * 10^exponent`, without trailing zeros in the digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decimal {
    digits: BigInt,
    exponent: BigInt,
}

impl Decimal {
    fn new(digits: BigInt, exponent: BigInt) -> Self {
        let text = digits.to_string();
        let significant = text.trim_end_matches('0');
        let zeros = BigInt::from(text.len() - significant.len());
        Self { digits: significant.parse().unwrap_or_default(), exponent: exponent + zeros }
    }

    /// `[+]digits[.digits][e[+-]digits]`; one of the digits around the point is enough.
    fn read(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= MOST_BYTES)?;
        let unsigned = text.strip_prefix('+').unwrap_or(text);
        let (mantissa, power) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, power)) => (mantissa, read_power(power)?),
            None => (unsigned, BigInt::zero()),
        };
        let (before, behind) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{before}{behind}");
        is_digits(&digits).then(|| Self::new(digits.parse().unwrap(), power - BigInt::from(behind.len())))
    }

    /// What is within 10^-12 of a whole micro-token is that micro-token: so floats are what they were meant to be.
    fn meant(self) -> Self {
        let micro = self.value() * whole(MILLION);
        let nearest = micro.round();
        if (micro - &nearest).abs() > power_of_ten(-6) || self.exponent >= BigInt::from(-6) {
            return self;
        }
        Self::new(nearest.to_integer(), BigInt::from(-6))
    }

    /// How many digits it takes to write, without leading and trailing zeros.
    fn significant_digits(&self) -> usize {
        self.digits.to_string().len()
    }

    fn has_absurd_exponent(&self) -> bool {
        self.exponent.magnitude() > &BigUint::from(1_000_000_000_000_000_000u64)
    }

    /// The `n` for which the value is at least `10^(n-1)` and below `10^n`.
    fn magnitude(&self) -> BigInt {
        BigInt::from(self.significant_digits()) + &self.exponent
    }

    fn value(&self) -> Exact {
        scaled(whole(self.digits.clone()), &self.exponent, &self.magnitude())
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
    Pow::pow(whole(10), exponent)
}

/// Reads `12`, `-0.25`, `1e3`: a number of the tests' own, or of a reply.
pub fn exact(decimal: &str) -> Exact {
    let (sign, unsigned) = decimal.strip_prefix('-').map_or((1, decimal), |unsigned| (-1, unsigned));
    let value = Decimal::read(unsigned.as_bytes()).unwrap_or_else(|| panic!("no number: {decimal}")).value();
    value * whole(sign)
}

/// An amount of tokens in micro-tokens, or `None` if it is none or is too large.
pub fn amount(bytes: &[u8], rounding: Rounding) -> Option<i64> {
    let micro = Decimal::read(bytes)?.meant().value() * whole(MILLION);
    let micro = match rounding {
        Rounding::Down => micro.floor(),
        Rounding::Up => micro.ceil(),
    };
    (micro <= whole(MAX_MICRO)).then(|| micro.to_integer().to_i64().unwrap())
}

/// A whole number from 0 to `max`, in any spelling of a decimal.
pub fn whole_number(bytes: &[u8], max: i64) -> Option<i64> {
    let value = Decimal::read(bytes)?.meant().value();
    (value.is_integer() && value <= whole(max)).then(|| value.to_integer().to_i64().unwrap())
}

/// What the words of a rate mean.
#[derive(Clone, Debug)]
pub struct Rate {
    /// Tokens per second, which is micro-tokens per microsecond.
    pub per_second: Exact,
    /// Whether a number has more than 12 significant digits, of which some may be dropped.
    is_long: bool,
    /// Whether an exponent has more than 18 digits, and so may be refused however well the two cancel out; or the count
    /// is nothing but for what it is written with.
    is_absurd: bool,
}

/// Tokens per second, or `count/[number]ms|s|m|h|d`, within bounds.
pub fn rate(bytes: &[u8]) -> Result<Rate, RateError> {
    let rate = unbounded_rate(bytes)?;
    let slowest = whole(CENTURY_S).recip();
    if rate.per_second > whole(MAX_TOKENS) || rate.per_second < slowest {
        return Err(RateError::OutOfRange);
    }
    Ok(rate)
}

/// Whether these bytes are a rate of which the contract allows the module to drop digits, or to refuse it.
pub fn may_be_rounded(bytes: &[u8]) -> bool {
    unbounded_rate(bytes).is_ok_and(|rate| rate.is_long || rate.is_absurd)
}

/// The same before anybody looks at the bounds.
fn unbounded_rate(bytes: &[u8]) -> Result<Rate, RateError> {
    let (count, period) = match bytes.iter().position(|byte| *byte == b'/') {
        None => (bytes, None),
        Some(slash) => (&bytes[..slash], Some(&bytes[slash + 1..])),
    };
    if period.is_none() && Decimal::read(count).is_some_and(|count| count.digits.is_zero()) {
        return Err(RateError::Zero);
    }
    let written = positive(count)?;
    let meant = written.clone().meant();
    let count = if meant.digits.is_zero() { written } else { meant.clone() };
    let (number, unit_s) = match period {
        None => (positive(b"1")?, Exact::one()),
        Some(period) => read_period(period)?,
    };
    Ok(Rate {
        per_second: quotient(&count, &number) / unit_s,
        is_long: count.significant_digits().max(number.significant_digits()) > 12,
        is_absurd: [&count, &number].into_iter().any(Decimal::has_absurd_exponent) || meant.digits.is_zero(),
    })
}

pub(super) fn positive(bytes: &[u8]) -> Result<Decimal, RateError> {
    Decimal::read(bytes).filter(|decimal| !decimal.digits.is_zero()).ok_or(RateError::Malformed)
}

/// The number in front of a unit, and the unit in seconds.
fn read_period(bytes: &[u8]) -> Result<(Decimal, Exact), RateError> {
    let units: [(&[u8], Exact); 5] = [
        (b"ms", whole(1000).recip()),
        (b"s", whole(1)),
        (b"m", whole(60)),
        (b"h", whole(3600)),
        (b"d", whole(86_400)),
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

/// Micro-tokens that flow in within 100 years, or as many as a bucket may hold: no capacity is larger.
pub fn largest_capacity_micro(per_second: &Exact) -> i64 {
    let flowed = per_second * whole(CENTURY_S) * whole(MILLION);
    flowed.to_integer().to_i64().unwrap_or(MAX_MICRO).min(MAX_MICRO)
}

/// Flows and times are told up to here.
const MOST: i64 = 1 << 62;

/// The module reads these bytes as an amount and as a whole number exactly as the contract does.
pub fn assert_amount_read_as_meant(bytes: &[u8]) {
    for rounding in [Rounding::Down, Rounding::Up] {
        let read = micro_tokens(bytes, rounding);
        assert_eq!(read, amount(bytes, rounding), "{} {rounding:?}", bytes.escape_ascii());
    }
    for max in [0, 1, 1024, MAX_TOKENS, i64::MAX] {
        let read = number::whole(bytes, max);
        assert_eq!(read, whole_number(bytes, max), "{} up to {max}", bytes.escape_ascii());
    }
}

/// The module reads these bytes as a rate as the contract does; exactly, if they have few enough digits.
pub fn assert_rate_read_as_meant(bytes: &[u8]) {
    let text = bytes.escape_ascii().to_string();
    let is_at_a_bound =
        |meant: &Rate| meant.is_long && &meant.per_second * one_minus_a_digit() < whole(CENTURY_S).recip();
    match (rate::Rate::parse(bytes), rate(bytes)) {
        (Ok(rate), Ok(meant)) if !meant.is_long => assert_is_exactly(&text, rate, &meant.per_second),
        (Ok(rate), Ok(meant)) => assert_is_barely_below(&text, rate, &meant.per_second),
        (Err(_), Ok(meant)) if meant.is_absurd => {}
        // Digits beyond the twelfth may be dropped, and the rate with them fall out of bounds, or into them.
        (Err(RateError::OutOfRange), Ok(meant)) if is_at_a_bound(&meant) => {}
        (Ok(rate), Err(RateError::OutOfRange)) if may_be_rounded(bytes) => {
            assert_is_barely_below(&text, rate, &unbounded_rate(bytes).unwrap().per_second);
        }
        (Err(_), Err(_)) if may_be_rounded(bytes) => {}
        (read, meant) => assert_eq!(read.map(|_| ()), meant.map(|_| ()), "{text}"),
    }
}

/// What the loss of all digits beyond the twelfth, in count and period, leaves at least.
fn one_minus_a_digit() -> Exact {
    Exact::one() - Exact::new(3.into(), 100_000_000_000i64.into())
}

/// What flows, what is left over and how long it takes are those of this rate.
pub fn assert_is_exactly(text: &str, rate: rate::Rate, per_second: &Exact) {
    for time_us in times_us(per_second) {
        let flowed = per_second * whole(time_us);
        let flow = rate.flow(0, time_us);
        assert_eq!(flow.micro, saturated(&flowed.floor()), "{text} flows in {time_us} us");
        if flow.micro < MOST {
            let rest_us = (&flowed - flowed.floor()) / per_second;
            assert_eq!(flow.carry_us, saturated(&rest_us.floor()), "{text} leaves over in {time_us} us");
        }
    }
    for micro in amounts_micro(per_second) {
        let time_us = (whole(micro) / per_second).ceil();
        assert_eq!(rate.reaches_at_us(0, micro), saturated(&time_us), "{micro} at {text}");
    }
}

fn assert_is_barely_below(text: &str, rate: rate::Rate, per_second: &Exact) {
    for time_us in times_us(per_second) {
        let flowed = per_second * whole(time_us);
        let least = saturated(&(&flowed * one_minus_a_digit()).floor());
        let read = rate.flow(0, time_us).micro;
        assert!((least..=saturated(&flowed)).contains(&read), "{text} lets {read} flow in {time_us} us");
    }
    for micro in amounts_micro(per_second) {
        let time_us = whole(micro) / per_second;
        let most = saturated(&(&time_us / one_minus_a_digit()).ceil());
        let read = rate.reaches_at_us(0, micro);
        assert!((saturated(&time_us.ceil())..=most).contains(&read), "{micro} at {text} take {read} us");
    }
}

/// Short times, and the longest in which less flows than is told: there the last digit of the rate shows.
fn times_us(per_second: &Exact) -> [i64; 11] {
    let longest = saturated(&(whole(MOST) / per_second));
    let one = saturated(&per_second.recip().ceil());
    [0, 1, 999, MILLION, 86_400_000_000, 1_700_000_000_000_000, one, longest, longest / 7, MOST, i64::MAX]
}

/// Small amounts, and the largest that take less time than is told.
fn amounts_micro(per_second: &Exact) -> [i64; 10] {
    let largest = saturated(&(whole(MOST) * per_second));
    [0, 1, 999, MILLION, MAX_MICRO, 2 * MAX_MICRO, largest, largest / 7, MOST, i64::MAX]
}

fn saturated(number: &Exact) -> i64 {
    number.to_integer().to_i64().unwrap_or(MOST).min(MOST)
}
