//! What a client's number means: the grammar of amounts and rates, read naively, and whether the module agrees.
//!
//! Nothing here looks at how the module reads numbers. Digits become a big integer, powers of ten are multiplied
//! out, and only then is anything compared or rounded.

use super::calendar::assert_calendar_read_as_meant;
use super::{whole, Exact, MILLION};
use num_bigint::{BigInt, BigUint};
use num_traits::{One, Pow, Signed, ToPrimitive, Zero};
use regex::Regex;
use std::sync::LazyLock;
use tokenbucket_core::number::{self, micro_tokens, Rounding, MAX_MICRO, MAX_TOKENS};
use tokenbucket_core::rate::{self, RateError};

/// The longest number, in bytes.
pub const MOST_BYTES: usize = 128;

/// Seconds in 100 years of 365.25 days.
pub const CENTURY_S: i64 = 3_155_760_000;

/// At least one of the digits around the point is needed.
static DECIMAL: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^\+?([0-9]*)\.?([0-9]*)(?:[eE]([+-]?[0-9]+))?$").unwrap());

static RATE: LazyLock<Regex> = LazyLock::new(|| Regex::new("^(.*?)(?:/(.*?)(ms|s|m|h|d))?$").unwrap());

pub(super) fn unit_us(unit: &str) -> i64 {
    match unit {
        "ms" => 1000,
        "s" => MILLION,
        "m" => 60 * MILLION,
        "h" => 3600 * MILLION,
        "d" => 86_400 * MILLION,
        other => panic!("{other} is no unit"),
    }
}

/// `digits * 10^exponent`.
#[derive(Clone, Debug)]
pub(super) struct Decimal {
    digits: BigInt,
    exponent: BigInt,
}

impl Decimal {
    fn read(text: &str) -> Option<Self> {
        let parts = DECIMAL.captures(text).filter(|_| text.len() <= MOST_BYTES)?;
        let digits = format!("{}{}", &parts[1], &parts[2]).parse().ok()?;
        let power: BigInt = parts.get(3).map_or("0", |power| power.as_str()).parse().unwrap();
        Some(Self { digits, exponent: power - BigInt::from(parts[2].len()) })
    }

    /// What is within 10^-12 of a whole micro-token is that micro-token: so floats are what they were meant to be.
    fn meant(self) -> Self {
        let micro = self.value() * whole(MILLION);
        let nearest = micro.round();
        if (micro - &nearest).abs() > power_of_ten(-6) || self.exponent >= BigInt::from(-6) {
            return self;
        }
        Self { digits: nearest.to_integer(), exponent: BigInt::from(-6) }
    }

    /// How many digits it takes to write, without leading and trailing zeros.
    fn significant_digits(&self) -> usize {
        self.digits.to_string().trim_end_matches('0').len()
    }

    fn has_absurd_exponent(&self) -> bool {
        self.exponent.magnitude() > &BigUint::from(1_000_000_000_000_000_000u64)
    }

    fn value(&self) -> Exact {
        scaled(whole(self.digits.clone()), &self.exponent)
    }
}

/// `value * 10^exponent`. A product that nobody would want to write out is replaced by one as absurd: whatever digits a
/// number has room for, it is far beyond every bound.
fn scaled(value: Exact, exponent: &BigInt) -> Exact {
    const ABSURD: i32 = 1000;
    let exponent = exponent.clone().clamp((-ABSURD).into(), ABSURD.into());
    value * power_of_ten(exponent.to_i32().unwrap())
}

fn power_of_ten(exponent: i32) -> Exact {
    Pow::pow(whole(10), exponent)
}

fn read(bytes: &[u8]) -> Option<Decimal> {
    Decimal::read(std::str::from_utf8(bytes).ok()?)
}

/// Reads `12`, `-0.25`, `1e3`: a number of the tests' own, or of a reply.
pub fn exact(decimal: &str) -> Exact {
    let (sign, unsigned) = decimal.strip_prefix('-').map_or((1, decimal), |unsigned| (-1, unsigned));
    let value = Decimal::read(unsigned).unwrap_or_else(|| panic!("no number: {decimal}")).value();
    value * whole(sign)
}

/// An amount of tokens in micro-tokens, or `None` if it is none or is too large.
pub fn amount(bytes: &[u8], rounding: Rounding) -> Option<i64> {
    let micro = read(bytes)?.meant().value() * whole(MILLION);
    let micro = match rounding {
        Rounding::Down => micro.floor(),
        Rounding::Up => micro.ceil(),
    };
    (micro <= whole(MAX_MICRO)).then(|| micro.to_integer().to_i64().unwrap())
}

/// A whole number from 0 to `max`, in any spelling of a decimal.
pub fn whole_number(bytes: &[u8], max: i64) -> Option<i64> {
    let value = read(bytes)?.meant().value();
    (value.is_integer() && value <= whole(max)).then(|| value.to_integer().to_i64().unwrap())
}

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

impl Rate {
    /// What the loss of all digits beyond the twelfth, in count and period, leaves at least.
    fn least(&self) -> Exact {
        let lost = if self.is_long { Exact::new(3.into(), 100_000_000_000i64.into()) } else { Exact::zero() };
        &self.per_second * (Exact::one() - lost)
    }
}

fn is_in_range(per_second: &Exact) -> bool {
    (whole(CENTURY_S).recip()..=whole(MAX_TOKENS)).contains(per_second)
}

/// Tokens per second, or `count/[number]ms|s|m|h|d`, within bounds.
pub fn rate(bytes: &[u8]) -> Result<Rate, RateError> {
    unbounded_rate(bytes).and_then(|rate| {
        if is_in_range(&rate.per_second) {
            Ok(rate)
        } else {
            Err(RateError::OutOfRange)
        }
    })
}

/// Returns whether these bytes are a rate of which the contract allows the module to drop digits, or to refuse it.
pub fn may_be_rounded(bytes: &[u8]) -> bool {
    unbounded_rate(bytes).is_ok_and(|rate| rate.is_long || rate.is_absurd)
}

/// Reads a rate, within bounds or not.
fn unbounded_rate(bytes: &[u8]) -> Result<Rate, RateError> {
    let text = std::str::from_utf8(bytes).map_err(|_| RateError::Malformed)?;
    let parts = RATE.captures(text).ok_or(RateError::Malformed)?;
    let (number, unit) = parts.get(3).map_or(("1", "s"), |unit| (&parts[2], unit.as_str()));
    if Decimal::read(text).is_some_and(|count| count.digits.is_zero()) {
        return Err(RateError::Zero);
    }
    let written = positive(&parts[1])?;
    let meant = written.clone().meant();
    let count = if meant.digits.is_zero() { written } else { meant.clone() };
    let number = positive(if number.is_empty() { "1" } else { number })?;
    // However absurd both are, what counts is how they compare.
    let digits = Exact::new(count.digits.clone(), number.digits.clone());
    let units = scaled(digits, &(&count.exponent - &number.exponent));
    Ok(Rate {
        per_second: units * Exact::new(MILLION.into(), unit_us(unit).into()),
        is_long: count.significant_digits().max(number.significant_digits()) > 12,
        is_absurd: [&count, &number].into_iter().any(Decimal::has_absurd_exponent) || meant.digits.is_zero(),
    })
}

pub(super) fn positive(text: &str) -> Result<Decimal, RateError> {
    Decimal::read(text).filter(|decimal| !decimal.digits.is_zero()).ok_or(RateError::Malformed)
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
    if bytes.iter().find(|byte| matches!(byte, b'/' | b'@')) == Some(&b'@') {
        return assert_calendar_read_as_meant(bytes, 1_767_225_600_000_000, 86_400_000_000, 1_000_000_000);
    }
    let text = bytes.escape_ascii().to_string();
    match (rate::Rate::parse(bytes), unbounded_rate(bytes)) {
        (read, Err(error)) => assert_eq!(read.map(|_| ()), Err(error), "{text}"),
        (Ok(rate), Ok(meant)) => {
            let (least, most) = (meant.least(), meant.per_second);
            assert!(is_in_range(&least) || is_in_range(&most), "{text} is out of range");
            assert_flows(&text, rate, &least, &most);
        }
        (Err(error), Ok(meant)) => {
            // Digits beyond the twelfth may be dropped, and the rate with them fall out of bounds.
            let is_inside = is_in_range(&meant.least()) && is_in_range(&meant.per_second);
            let may_be_refused = meant.is_absurd || (error == RateError::OutOfRange && !is_inside);
            assert!(may_be_refused, "{text}: {error:?}");
        }
    }
}

/// What flows and how long it takes are those of a rate from `least` to `most` tokens per second. What is left over is that
/// of the one rate that it may be.
pub fn assert_flows(text: &str, rate: rate::Rate, least: &Exact, most: &Exact) {
    for time_us in times_us(most) {
        let [least_micro, most_micro] = [least, most].map(|rate| saturated(&(rate * whole(time_us))));
        let flow = rate.flow(0, time_us);
        let flows = (least_micro..=most_micro).contains(&flow.micro);
        let rest_us = (most * whole(time_us)).fract() / most;
        let leaves = least != most || flow.micro == MOST || flow.carry_us == saturated(&rest_us);
        assert!(flows && leaves, "{text} lets {flow:?} flow in {time_us} us");
    }
    for micro in amounts_micro(most) {
        let [soonest_us, latest_us] = [most, least].map(|rate| saturated(&(whole(micro) / rate).ceil()));
        let time_us = rate.reaches_at_us(0, micro);
        assert!((soonest_us..=latest_us).contains(&time_us), "{micro} at {text} take {time_us} us");
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

/// Rounded down.
pub(super) fn saturated(number: &Exact) -> i64 {
    number.to_integer().to_i64().unwrap_or(MOST).min(MOST)
}
