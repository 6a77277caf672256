//! Calendar rates as the contract words them, by a calendar of somebody else's.

use super::number::{amount, positive};
use super::{whole, Exact, Flow};
use chrono::{DateTime, Datelike, Days, Months, NaiveDate};
use num_traits::ToPrimitive;
use tokenbucket::number::{Rounding, MAX_MICRO, MAX_TOKENS};
use tokenbucket::rate::{Rate, RateError, CENTURY_S};

const CENTURY_US: i128 = CENTURY_S as i128 * 1_000_000;
const DAY_US: i64 = 86_400_000_000;

/// So many micro-tokens at every boundary of a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    pub count_micro: i64,
    period: Period,
    offset_us: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Us(i64),
    Week,
    Month,
    Year,
}

impl Calendar {
    /// `count@period[offset]`, within bounds.
    pub fn read(count: &[u8], behind: &[u8]) -> Result<Self, RateError> {
        let text = std::str::from_utf8(behind).map_err(|_| RateError::Malformed)?;
        let (period, offset) = text.split_at(text.find(['+', '-']).unwrap_or(text.len()));
        let offset_us = read_offset_us(offset).ok_or(RateError::Malformed)?;
        positive(count)?;
        let period = Period::read(period)?;
        let count_micro =
            amount(count, Rounding::Down).filter(|micro| *micro > 0).ok_or(RateError::OutOfRange)?;
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
            Period::Week => 7 * DAY_US,
            Period::Month => 28 * DAY_US,
            Period::Year => 365 * DAY_US,
        };
        ((time_us / whole(shortest_us)).floor() + whole(1)) * whole(self.count_micro)
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
    assert_eq!(flow.micro, told(&meant.between(since_us, until_us)), "{text} since {since_us}");
    assert_eq!((flow.carry_us, rate.flow(until_us, since_us).micro), (0, 0), "{text} since {since_us}");
    for micro in [1, micro.max(1)] {
        let lasts_us = told(&meant.lasts_us(since_us, &whole(micro)));
        assert_eq!(
            rate.reaches_at_us(since_us, micro) - since_us,
            lasts_us,
            "{micro} at {text} since {since_us}"
        );
    }
}

/// Flows and times are told up to 2^62.
fn told(exact: &Exact) -> i64 {
    exact.to_integer().to_i64().unwrap_or(i64::MAX).min(1 << 62)
}

impl Period {
    fn read(text: &str) -> Result<Self, RateError> {
        match text {
            "w" => return Ok(Self::Week),
            "mo" => return Ok(Self::Month),
            "y" => return Ok(Self::Year),
            _ => (),
        }
        let number: String = text.chars().take_while(char::is_ascii_digit).collect();
        let unit_us: i128 = match &text[number.len()..] {
            "ms" => 1000,
            "s" => 1_000_000,
            "m" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => DAY_US.into(),
            _ => return Err(RateError::Malformed),
        };
        let number: i128 = if number.is_empty() { 1 } else { number.parse().unwrap_or(CENTURY_US) };
        match number * unit_us {
            0 => Err(RateError::Malformed),
            us => i64::try_from(us).map(Self::Us).map_err(|_| RateError::OutOfRange),
        }
    }

    fn usual_us(self) -> i128 {
        match self {
            Self::Us(us) => us.into(),
            Self::Week => i128::from(7 * DAY_US),
            Self::Month => CENTURY_US / 1200,
            Self::Year => CENTURY_US / 100,
        }
    }

    /// Which period a local time is in, counted from any one.
    fn number(self, local_us: i64) -> i64 {
        let date = date(local_us);
        match self {
            Self::Us(us) => local_us.div_euclid(us),
            Self::Week => i64::from(monday(date).num_days_from_ce()) / 7,
            Self::Month => i64::from(date.year()) * 12 + i64::from(date.month0()),
            Self::Year => date.year().into(),
        }
    }

    /// The local time of the so-manieth boundary behind another; `None` if it is beyond the calendar.
    fn begin_after(self, local_us: i64, periods: u64) -> Option<Exact> {
        let date = date(local_us);
        let months = |each: u64| Some(Months::new(u32::try_from(periods.checked_mul(each)?).ok()?));
        let begin = match self {
            Self::Us(us) => {
                return Some(
                    (whole(local_us.div_euclid(us)) + Exact::from_integer(periods.into())) * whole(us),
                )
            }
            Self::Week => monday(date).checked_add_days(Days::new(periods.checked_mul(7)?))?,
            Self::Month => date.with_day(1)?.checked_add_months(months(1)?)?,
            Self::Year => NaiveDate::from_ymd_opt(date.year(), 1, 1)?.checked_add_months(months(12)?)?,
        };
        let days = begin.signed_duration_since(DateTime::UNIX_EPOCH.date_naive()).num_days();
        Some(whole(days) * whole(DAY_US))
    }
}

fn date(local_us: i64) -> NaiveDate {
    DateTime::from_timestamp_micros(local_us).expect("a time within the calendar").date_naive()
}

fn monday(date: NaiveDate) -> NaiveDate {
    date.week(chrono::Weekday::Mon).first_day()
}

fn read_offset_us(text: &str) -> Option<i64> {
    if text.is_empty() {
        return Some(0);
    }
    let is_shaped = text.len() == 6
        && text.bytes().enumerate().skip(1).all(|(at, byte)| match at {
            3 => byte == b':',
            _ => byte.is_ascii_digit(),
        });
    let (hours, minutes): (i64, i64) =
        is_shaped.then(|| (text[1..3].parse().unwrap(), text[4..].parse().unwrap()))?;
    let offset_us = (hours * 60 + minutes) * 60_000_000;
    let is_one = minutes < 60 && offset_us <= 14 * 3_600_000_000;
    is_one.then_some(if text.starts_with('-') { -offset_us } else { offset_us })
}
