//! How buckets refill: all the time, or by the calendar. In micro-tokens and Unix microseconds.

use chrono::{DateTime, Datelike, NaiveDate, NaiveTime};

use crate::decimal::Decimal;
use crate::limit::{calendar_words, Limit};

const SECOND_US: i128 = 1_000_000;
const DAYS_OF_A_WEEK: i32 = 7;

pub(crate) enum Refill {
    /// `gain` in `time_us`; nothing of a pool.
    Continuous { gain: i128, time_us: i128 },
    /// `count` at the beginning of each period of local time, which is `ahead_us` ahead of UTC.
    Calendar { count: i128, period: Period, ahead_us: i128 },
}

#[derive(Clone, Copy)]
pub(crate) enum Period {
    Microseconds(i128),
    Week,
    Months(i32),
}

impl Refill {
    /// None if it is beyond what numbers hold, or not a limit of the calendar that could be.
    pub(crate) fn of(limit: &Limit) -> Option<Self> {
        let Some((count, number, unit, offset)) = calendar_words(limit.rate()) else {
            let flow = limit.flow();
            return Some(Self::Continuous {
                gain: flow.gain_micro.try_into().ok()?,
                time_us: flow.time_us.try_into().ok()?,
            });
        };
        let count = Decimal::parse(count)?.millionths(false)?.try_into().ok()?;
        let period = Period::of(number, unit)?;
        Some(Self::Calendar { count, period, ahead_us: ahead_us(offset)? })
    }

    pub(crate) fn is_pool(&self) -> bool {
        matches!(self, Self::Continuous { gain: 0, .. })
    }

    /// What comes between two moments, and since when what comes next is to be counted: a refill seldom ends on a whole
    /// micro-token, and the rest is dated back.
    pub(crate) fn between(&self, since_us: i128, until_us: i128) -> (i128, i128) {
        match *self {
            Self::Continuous { gain: 0, .. } => (0, until_us),
            Self::Continuous { gain, time_us } => {
                let micro_times_time = (until_us - since_us).max(0) * gain;
                (micro_times_time / time_us, until_us - micro_times_time % time_us / gain)
            }
            Self::Calendar { count, period, ahead_us } => {
                let number = |at_us: i128| period.number_at(at_us + ahead_us).unwrap_or(0);
                ((number(until_us) - number(since_us)).max(0) * count, until_us)
            }
        }
    }

    /// When so much more has come.
    pub(crate) fn reaches(&self, since_us: i128, micro: i128) -> Option<i128> {
        match *self {
            Self::Continuous { gain: 0, .. } => None,
            Self::Continuous { gain, time_us } => Some(since_us + divided_up(micro * time_us, gain)),
            Self::Calendar { count, period, ahead_us } => {
                let number = period.number_at(since_us + ahead_us)? + divided_up(micro, count);
                Some(period.begins_at(number)? - ahead_us)
            }
        }
    }
}

impl Period {
    fn of(number: &str, unit: &str) -> Option<Self> {
        let seconds = |seconds: i128| {
            let number = if number.is_empty() { 1 } else { number.parse().ok()? };
            Some(Self::Microseconds(seconds.checked_mul(number)?))
        };
        match unit {
            "ms" => seconds(SECOND_US / 1000),
            "s" => seconds(SECOND_US),
            "m" => seconds(60 * SECOND_US),
            "h" => seconds(3600 * SECOND_US),
            "d" => seconds(86_400 * SECOND_US),
            "w" => Some(Self::Week),
            "mo" => Some(Self::Months(1)),
            "y" => Some(Self::Months(12)),
            _ => None,
        }
    }

    /// The number of the one in which a moment lies, counted without a gap.
    fn number_at(self, local_us: i128) -> Option<i128> {
        let date = || Some(DateTime::from_timestamp_micros(local_us.try_into().ok()?)?.date_naive());
        Some(match self {
            Self::Microseconds(period) => local_us.div_euclid(period),
            // The first day of all was a Monday.
            Self::Week => (date()?.num_days_from_ce() - 1).div_euclid(DAYS_OF_A_WEEK).into(),
            Self::Months(months) => {
                let date = date()?;
                (date.year() * 12 + date.month0() as i32).div_euclid(months).into()
            }
        })
    }

    fn begins_at(self, number: i128) -> Option<i128> {
        let counted = || i32::try_from(number).ok();
        let date = match self {
            Self::Microseconds(period) => return number.checked_mul(period),
            Self::Week => NaiveDate::from_num_days_from_ce_opt(counted()?.checked_mul(DAYS_OF_A_WEEK)? + 1)?,
            Self::Months(months) => {
                let month = counted()?.checked_mul(months)?;
                NaiveDate::from_ymd_opt(month.div_euclid(12), month.rem_euclid(12) as u32 + 1, 1)?
            }
        };
        Some(date.and_time(NaiveTime::MIN).and_utc().timestamp_micros().into())
    }
}

/// Reads `+09:00` or `-03:30`; nothing is UTC.
fn ahead_us(offset: &str) -> Option<i128> {
    let Some((hours, minutes)) = offset.split_once(':') else { return Some(0) };
    let digits: i128 = hours.get(1..)?.parse().ok()?;
    let minutes = digits * 60 + minutes.parse::<i128>().ok()?;
    Some(if offset.starts_with('-') { -minutes } else { minutes } * 60 * SECOND_US)
}

fn divided_up(number: i128, by: i128) -> i128 {
    (number + by - 1).div_euclid(by)
}
