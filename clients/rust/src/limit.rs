//! What a bucket holds, and how fast it fills.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::decimal::Decimal;

const MICRO: u128 = 1_000_000;

/// Each unit in microseconds; of a calendar's months and years the average that headers speak of.
const UNITS_US: [(&str, u128); 8] = [
    ("ms", 1_000),
    ("s", MICRO),
    ("m", 60 * MICRO),
    ("h", 3_600 * MICRO),
    ("d", 86_400 * MICRO),
    ("w", 7 * 86_400 * MICRO),
    ("mo", 30 * 86_400 * MICRO),
    ("y", 365 * 86_400 * MICRO),
];

/// How many tokens a bucket holds, and how fast they come back.
///
/// Nothing of it is stored in the server: a new limit counts from the next call.
///
/// ```
/// use tokenbucket_client::Limit;
///
/// let search = Limit::new(5, "100/m")?; // 5 at once, 100 a minute
/// let quota = Limit::new(1000, "1000@d+09:00")?; // 1000 a day, from midnight in Tokyo
/// let jobs = Limit::new(10, 0)?; // a pool: tokens come back only from holds
/// assert_eq!("20 10/s".parse(), Limit::new(20, "10/s"));
/// # Ok::<(), tokenbucket_client::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    capacity: Arc<str>,
    rate: Arc<str>,
    capacity_micro: u128,
    flow: Flow,
}

/// So many micro-tokens in so many microseconds, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    pub(crate) gain_micro: u128,
    pub(crate) time_us: u128,
}

impl Limit {
    /// `rate` is tokens per second (`5`, `0.25`), a count per period (`"100/m"`, `"10/15s"`) or a count at each
    /// boundary of the calendar (`"1000@d"`). 0 is a pool, whose tokens come back only from holds.
    ///
    /// # Errors
    ///
    /// What is no limit. How large one may be, the server knows, and says at the first call.
    pub fn new(capacity: impl ToString, rate: impl ToString) -> Result<Self, LimitError> {
        let (capacity, rate) = (capacity.to_string(), rate.to_string());
        let capacity_micro = Decimal::parse(&capacity).and_then(|number| number.millionths(false));
        let capacity_micro = capacity_micro.ok_or_else(|| LimitError::capacity(&capacity))?;
        let flow = Flow::parse(&rate).ok_or_else(|| LimitError::rate(&rate))?;
        Ok(Self { capacity: capacity.into(), rate: rate.into(), capacity_micro, flow })
    }

    pub(crate) fn none() -> Self {
        let flow = Flow { gain_micro: 0, time_us: 1 };
        Self { capacity: "0".into(), rate: "0".into(), capacity_micro: 0, flow }
    }

    /// The largest number of tokens in the bucket, as it was given.
    pub fn capacity(&self) -> &str {
        &self.capacity
    }

    /// How fast it fills, as it was given.
    pub fn rate(&self) -> &str {
        &self.rate
    }

    pub(crate) fn capacity_micro(&self) -> u128 {
        self.capacity_micro
    }

    pub(crate) fn flow(&self) -> Flow {
        self.flow
    }

    /// Whether tokens come at boundaries of the calendar, and not all the time.
    pub(crate) fn is_calendar(&self) -> bool {
        self.rate.contains('@')
    }

    /// In what time so much flows in, rounded up; None if nothing ever does.
    pub(crate) fn lasts_us(&self, micro: u128) -> Option<u128> {
        let Flow { gain_micro, time_us } = self.flow;
        (gain_micro > 0).then(|| micro.saturating_mul(time_us).div_ceil(gain_micro))
    }
}

/// Reads `20 10/s`: capacity and rate.
impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        match text.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            [capacity, rate] => Self::new(capacity, rate),
            _ => Err(LimitError(format!("{text:?} is not a capacity and a rate, like 20 10/s"))),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.capacity, self.rate)
    }
}

impl Flow {
    fn parse(rate: &str) -> Option<Self> {
        let (count, period) = match rate.split_once(['/', '@']) {
            Some((count, period)) => (count, Some(period)),
            None => (rate, None),
        };
        let count = Decimal::parse(count)?.with_12_digits();
        let Some(period) = period else { return Self::per(count, Decimal::ONE, MICRO) };
        let is_calendar = rate.contains('@');
        let (period, offset) = period.split_at(period.find(['+', '-']).unwrap_or(period.len()));
        // `1e-3s` has a sign that is not an offset's, and no unit before it.
        let (period, offset) = if is_calendar {
            (period, offset)
        } else {
            (&rate[rate.len() - period.len() - offset.len()..], "")
        };
        let digits = period.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
        let (number, unit) = period.split_at(digits.len());
        let (_, unit_us) = UNITS_US.iter().find(|(name, _)| *name == unit)?;
        let fits = if is_calendar { is_offset(offset) && is_whole(number) } else { !is_only_calendars(unit) };
        let number = if number.is_empty() { Decimal::ONE } else { Decimal::parse(number)?.with_12_digits() };
        (fits && !count.is_zero() && !number.is_zero()).then(|| Self::per(count, number, *unit_us))?
    }

    fn per(count: Decimal, number: Decimal, unit_us: u128) -> Option<Self> {
        let (gain, time) = count.over(number)?;
        let gain_micro = gain.checked_mul(MICRO)?;
        let time_us = time.checked_mul(unit_us)?;
        let common = greatest_common_divisor(gain_micro, time_us);
        Some(Self { gain_micro: gain_micro / common, time_us: time_us / common })
    }
}

/// Of `1000@15m+09:00` its count, number, unit and offset; None of a rate that does not go by the calendar.
pub(crate) fn calendar_words(rate: &str) -> Option<(&str, &str, &str, &str)> {
    let (count, period) = rate.split_once('@')?;
    let (period, offset) = period.split_at(period.find(['+', '-']).unwrap_or(period.len()));
    let unit = period.trim_start_matches(|letter: char| letter.is_ascii_digit());
    Some((count, &period[..period.len() - unit.len()], unit, offset))
}

fn is_only_calendars(unit: &str) -> bool {
    matches!(unit, "w" | "mo" | "y")
}

fn is_whole(number: &str) -> bool {
    number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Nothing, or `+HH:MM`.
fn is_offset(text: &str) -> bool {
    match text.as_bytes() {
        [] => true,
        [b'+' | b'-', hours @ .., b':', _, _] if hours.len() == 2 => {
            text.bytes().skip(1).all(|byte| byte == b':' || byte.is_ascii_digit())
        }
        _ => false,
    }
}

pub(crate) fn greatest_common_divisor(a: u128, b: u128) -> u128 {
    if b == 0 {
        a
    } else {
        greatest_common_divisor(b, a % b)
    }
}

/// What is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError(String);

impl LimitError {
    fn capacity(text: &str) -> Self {
        Self(format!("capacity: {text:?} is not a decimal number of tokens of at least 0"))
    }

    fn rate(text: &str) -> Self {
        Self(format!("rate: {text:?} is neither tokens per second nor like 100/m or 1000@d"))
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for LimitError {}
