//! Calendar rates as the contract words them, by a calendar of somebody else's.

use super::number::{amount, positive, saturated, unit_us};
use super::{whole, Exact, Flow};
use chrono::{DateTime, Datelike, Days, Months, NaiveDate, Weekday};
use num_traits::ToPrimitive;
use regex::{Captures, Regex};
use std::sync::LazyLock;
use tokenbucket_core::number::{Rounding, MAX_MICRO, MAX_TOKENS};
use tokenbucket_core::rate::{Rate, RateError, CENTURY_S};

const CENTURY_US: i128 = CENTURY_S as i128 * 1_000_000;
const DAY_US: i64 = 86_400_000_000;

/// So many micro-tokens at every boundary of a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    pub count_micro: i64,
    period: Period,
    /// What is added to a moment to count whole periods from 1970 on.
    offset_us: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Us(i64),
    /// From that day to the next one of its name.
    Week(Weekday),
    /// So many months from that day of one of them.
    Months(u32, u32),
}

/// What stands behind the `@`: number, unit, days, sign, hours and minutes.
static PERIOD: LazyLock<Regex> = LazyLock::new(|| {
    let period = "([0-9]*)(ms|s|m|h|d|w|mo|y)(?:[+]([0-9]{1,2})d)?";
    Regex::new(&format!("^{period}(?:([+-])([0-9]{{2}}):([0-9]{{2}}))?$")).unwrap()
});

impl Calendar {
    /// `count@period[days][offset]`, within bounds.
    pub fn read(count: &str, behind: &str) -> Result<Self, RateError> {
        let parts = PERIOD.captures(behind).ok_or(RateError::Malformed)?;
        let days = parts.get(3).map(|days| days.as_str().parse().unwrap());
        let period = read_period(&parts[1], &parts[2], days).ok_or(RateError::Malformed)?;
        let offset_us = read_offset_us(&parts).ok_or(RateError::Malformed)?;
        positive(count)?;
        let is_told = |micro: &i64| *micro > 0;
        let count_micro =
            amount(count.as_bytes(), Rounding::Down).filter(is_told).ok_or(RateError::OutOfRange)?;
        let (count, usual_us) = (i128::from(count_micro), period.usual_us());
        let is_in_range = count <= usual_us * i128::from(MAX_TOKENS)
            && usual_us * 1_000_000 <= count * CENTURY_US
            && usual_us <= CENTURY_US;
        is_in_range.then_some(Self { count_micro, period, offset_us }).ok_or(RateError::OutOfRange)
    }

    /// Micro-tokens that come in a century: no capacity is larger.
    pub fn largest_capacity_micro(&self) -> i64 {
        let periods = CENTURY_US / self.period.usual_us();
        (periods * i128::from(self.count_micro)).min(MAX_MICRO.into()) as i64
    }

    /// Micro-tokens that come behind one moment and up to another.
    pub fn between(&self, from_us: i64, to_us: i64) -> Exact {
        let periods =
            self.period.number(to_us + self.offset_us) - self.period.number(from_us + self.offset_us);
        whole(periods.max(0)) * whole(self.count_micro)
    }

    /// Micro-tokens that come at most within so many microseconds.
    pub fn most_within(&self, time_us: &Exact) -> Exact {
        let shortest_us = match self.period {
            Period::Us(us) => us,
            Period::Week(_) => 7 * DAY_US,
            Period::Months(1, _) => 28 * DAY_US,
            // That which has the whole of February, if it begins on the last day of January.
            Period::Months(3, _) => 89 * DAY_US,
            Period::Months(..) => 365 * DAY_US,
        };
        ((time_us / whole(shortest_us)).floor() + whole(1)) * whole(self.count_micro)
    }

    pub fn longest_period_us(&self) -> i64 {
        match self.period {
            Period::Us(us) => us,
            Period::Week(_) => 7 * DAY_US,
            Period::Months(months, _) => 31 * i64::from(months) * DAY_US,
        }
    }

    /// How long after a moment so many have come, in microseconds.
    pub fn lasts_us(&self, from_us: i64, micro: &Exact) -> Exact {
        let periods = (micro / whole(self.count_micro)).ceil().to_integer();
        let begin_us =
            periods.to_u64().and_then(|periods| self.period.begin_after(from_us + self.offset_us, periods));
        // Later than any calendar goes.
        begin_us.map_or_else(|| whole(i64::MAX), |begin_us| begin_us - whole(self.offset_us) - whole(from_us))
    }
}

/// The module reads these bytes as a calendar rate as the contract does, and by the calendar lets as much come between two
/// moments, and as late, as it should.
pub fn assert_calendar_read_as_meant(words: &[u8], since_us: i64, elapsed_us: i64, micro: i64) {
    let text = words.escape_ascii();
    let (read, meant) = (Rate::parse(words), Flow::read(words));
    assert_eq!(read.map(|_| ()), meant.clone().map(|_| ()), "{text}");
    let (Ok(rate), Ok(Flow::Calendar(meant))) = (read, meant) else { return };
    let until_us = since_us.saturating_add(elapsed_us);
    let flow = rate.flow(since_us, until_us);
    assert_eq!(flow.micro, saturated(&meant.between(since_us, until_us)), "{text} since {since_us}");
    assert_eq!((flow.carry_us, rate.flow(until_us, since_us).micro), (0, 0), "{text} since {since_us}");
    for micro in [1, micro.max(1)] {
        let lasts_us = rate.reaches_at_us(since_us, micro) - since_us;
        let meant_us = saturated(&meant.lasts_us(since_us, &whole(micro)));
        assert_eq!(lasts_us, meant_us, "{micro} at {text} since {since_us}");
    }
}

/// `None` if it is nothing, of several weeks, months or years other than a quarter, or begins on a day that it may not.
fn read_period(number: &str, unit: &str, days: Option<u32>) -> Option<Period> {
    // No number is larger than is out of range at any unit.
    let most = 2 * CENTURY_US / 1000;
    match (number, unit) {
        ("", "w") => Weekday::try_from(days.unwrap_or(0) as u8).ok().map(Period::Week),
        ("" | "3", "mo") => {
            let day = days.unwrap_or(0) + 1;
            (day <= 31).then_some(Period::Months(number.parse().unwrap_or(1), day))
        }
        _ if days.is_some() => None,
        ("", "y") => Some(Period::Months(12, 1)),
        (_, "w" | "mo" | "y") => None,
        _ => {
            let number = if number.is_empty() { 1 } else { number.parse().unwrap_or(most).min(most) };
            let us = (number * i128::from(unit_us(unit))).min(2 * CENTURY_US);
            (us > 0).then_some(Period::Us(us as i64))
        }
    }
}

impl Period {
    fn usual_us(self) -> i128 {
        match self {
            Self::Us(us) => us.into(),
            Self::Week(_) => i128::from(7 * DAY_US),
            Self::Months(months, _) => CENTURY_US / 1200 * i128::from(months),
        }
    }

    /// Which period a local time is in, counted from any one.
    fn number(self, local_us: i64) -> i64 {
        match self {
            Self::Us(us) => local_us.div_euclid(us),
            Self::Week(day) => since_1970(date(local_us).week(day).first_day()).div_euclid(7),
            Self::Months(months, day) => {
                let begin = begin_of_months(date(local_us), months, day);
                (i64::from(begin.year()) * 12 + i64::from(begin.month0())) / i64::from(months)
            }
        }
    }

    /// The local time of the so-manieth boundary behind another; `None` if it is beyond the calendar.
    fn begin_after(self, local_us: i64, periods: u64) -> Option<Exact> {
        let begin = match self {
            Self::Us(us) => {
                let begin = whole(local_us.div_euclid(us)) + whole(periods);
                return Some(begin * whole(us));
            }
            Self::Week(day) => {
                let ahead = Days::new(periods.checked_mul(7)?);
                date(local_us).week(day).first_day().checked_add_days(ahead)?
            }
            Self::Months(months, day) => {
                let ahead = u32::try_from(periods.checked_mul(months.into())?).ok()?;
                let begin = begin_of_months(date(local_us), months, day).with_day(1)?;
                day_of_month(begin.checked_add_months(Months::new(ahead))?, day)
            }
        };
        Some(whole(since_1970(begin)) * whole(DAY_US))
    }
}

/// The last day of that number, in a month in which such a period begins, that is not later than `date`.
fn begin_of_months(date: NaiveDate, months: u32, day: u32) -> NaiveDate {
    let mut first = date.with_day(1).unwrap();
    while day_of_month(first, day) > date || first.month0() % months != 0 {
        first = first - Months::new(1);
    }
    day_of_month(first, day)
}

/// The day of that number, or the last one of a shorter month.
fn day_of_month(first: NaiveDate, day: u32) -> NaiveDate {
    (1..=day).rev().find_map(|day| first.with_day(day)).unwrap()
}

fn since_1970(date: NaiveDate) -> i64 {
    date.signed_duration_since(DateTime::UNIX_EPOCH.date_naive()).num_days()
}

fn date(local_us: i64) -> NaiveDate {
    DateTime::from_timestamp_micros(local_us).expect("a time within the calendar").date_naive()
}

/// `None` if it has too many minutes, or more than 14 hours.
fn read_offset_us(parts: &Captures) -> Option<i64> {
    let number = |at| parts.get(at).map_or(0, |digits| digits.as_str().parse::<i64>().unwrap());
    let sign = if parts.get(4).is_some_and(|sign| sign.as_str() == "-") { -1 } else { 1 };
    let minutes = number(5) * 60 + number(6);
    (number(6) < 60 && minutes <= 14 * 60).then_some(sign * minutes * 60_000_000)
}
