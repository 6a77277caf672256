//! What a bucket holds, and how fast it fills.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokenbucket_core::bucket;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::limit;
use tokenbucket_core::number::{MAX_TOKENS, MICRO_PER_TOKEN};
use tokenbucket_core::rate::Rate;

use crate::values::{Amount, Error};

/// The capacity of a bucket, and the rate at which it refills.
///
/// The server stores neither: a new limit counts from the next call.
///
/// ```
/// use tokenbucket_client::Limit;
///
/// let search = Limit::new(5, "100/m")?; // 5 at once, 100 a minute
/// assert_eq!((search.capacity(), search.rate()), ("5", "100/m"));
/// let quota = Limit::new(1000, "1000@d+09:00")?; // 1000 a day, from midnight in Tokyo
/// let plan = Limit::new(9000, "9000@mo+14d")?; // 9000 a month, from the 15th
/// let jobs = Limit::new(10, 0)?; // a pool: tokens come back only from holds
/// assert_eq!("20 10/s".parse::<Limit>()?, Limit::new(20, "10/s")?);
/// # Ok::<(), tokenbucket_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limit(Arc<Inner>);

/// Behind one pointer: each call clones its limit, and threads share the count.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Inner {
    capacity: String,
    rate: String,
    terms: bucket::Limit,
}

impl Limit {
    /// Makes a limit of a `capacity`, 0 to 10¹² tokens, and a `rate`.
    ///
    /// `rate` is tokens per second (`5`, `0.25`), a count per period (`"100/m"`, `"10/15s"`) or a count at each
    /// boundary of the calendar (`"1000@d"`). 0 is a pool, whose tokens come back only from holds.
    ///
    /// # Errors
    ///
    /// Returns [`Error::BadArgument`] with what the module would reply to such a limit.
    pub fn new(capacity: impl ToString, rate: impl ToString) -> Result<Self, Error> {
        let words = [capacity.to_string(), rate.to_string()];
        let terms = limit::or_pool(&words[0], &words[1]).map_err(|error| {
            let line = Refusal::from(error).line("limit capacity rate", &words);
            Error::BadArgument(line.trim_start_matches("ERR ").to_owned())
        })?;
        let [capacity, rate] = words;
        Ok(Self(Arc::new(Inner { capacity, rate, terms })))
    }

    /// Returns the capacity, as it was given.
    pub fn capacity(&self) -> &str {
        &self.0.capacity
    }

    /// Returns the rate, as it was given.
    pub fn rate(&self) -> &str {
        &self.0.rate
    }

    /// Returns how many tokens come in a [`period`](Self::period): 100 of `"100/m"`, 0 of a pool.
    pub fn count(&self) -> f64 {
        let count = self.rate().split(['/', '@']).next().unwrap_or_default();
        count.parse().unwrap_or(0.0)
    }

    /// Returns the time in which [`count`](Self::count) tokens come, rounded up to microseconds: a minute of `"100/m"`, a second
    /// of `"5"`. Months, quarters and years are of 30, 90 and 365 days.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokenbucket_client::Limit;
    ///
    /// let daily = Limit::new(1000, "1000@d+09:00")?;
    /// assert_eq!((daily.count(), daily.period()), (1000.0, Duration::from_secs(86_400)));
    /// # Ok::<(), tokenbucket_client::Error>(())
    /// ```
    pub fn period(&self) -> Duration {
        let period = self.rate().find(['/', '@']).map_or("/s", |at| &self.rate()[at..]);
        // A token in such a period may be too slow a rate, and a trillion too fast.
        let in_period = [1, MAX_TOKENS].map(|tokens| (tokens, average(&format!("{tokens}{period}"))));
        let us = in_period.into_iter().find_map(|(tokens, rate)| {
            Some(rate?.reaches_at_us(0, tokens.saturating_mul(MICRO_PER_TOKEN)).unsigned_abs())
        });
        Duration::from_micros(us.unwrap_or(0))
    }

    /// Returns whether a full bucket has so much.
    pub(crate) fn ever_holds(&self, cost: Amount) -> bool {
        cost.micro() <= self.0.terms.capacity_micro()
    }

    pub(crate) fn whole_capacity(&self) -> u64 {
        self.0.terms.capacity_micro().unsigned_abs() / 1_000_000
    }

    /// Returns whether tokens come at boundaries of the calendar, and not all the time.
    pub(crate) fn is_calendar(&self) -> bool {
        matches!(self.0.terms.rate(), Rate::Calendar(_))
    }

    /// Returns whether tokens come back only from holds.
    pub(crate) fn is_pool(&self) -> bool {
        self.0.terms.is_pool()
    }

    /// In what time an empty bucket fills, rounded up; None if nothing ever flows in.
    pub(crate) fn fills_in_us(&self) -> Option<u64> {
        let average = if self.is_pool() { None } else { average(self.rate()) };
        Some(average?.reaches_at_us(0, self.0.terms.capacity_micro()).unsigned_abs())
    }
}

/// Reads `20 10/s`: capacity and rate.
impl FromStr for Limit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_ascii_whitespace().collect::<Vec<_>>()[..] {
            [capacity, rate] => Self::new(capacity, rate),
            _ => Err(Error::BadArgument(format!("{text:?} is not a capacity and a rate, like 20 10/s"))),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.capacity(), self.rate())
    }
}

/// A rate without its calendar; months, quarters and years are of 30, 90 and 365 days, as headers speak of them.
fn average(rate: &str) -> Option<Rate> {
    let Some((count, period)) = rate.split_once('@') else { return Rate::parse(rate.as_bytes()).ok() };
    let period = match period.split(['+', '-']).next()? {
        "w" => "7d",
        "mo" => "30d",
        "3mo" => "90d",
        "y" => "365d",
        period => period,
    };
    Rate::parse(format!("{count}/{period}").as_bytes()).ok()
}
