//! Calendar rates: tokens that come all at once, at every boundary of a period of the civil calendar.
//!
//! Boundaries have consecutive numbers. So the flow between two moments is the difference of two numbers, and an amount is
//! complete at the moment of one number, however long ago the last call was.

use super::bounds::{saturate, RateError, CENTURY_S, CENTURY_US, MAX_TOKENS_PER_S, SATURATED};
use super::unit::unit;
use crate::cast::signed;
use crate::number::{micro_tokens, Decimal, Rounding};

const SECOND_US: i64 = 1_000_000;
const MINUTE_US: i64 = 60 * SECOND_US;
const DAY_US: i64 = 86_400 * SECOND_US;
const WEEK_US: i64 = 7 * DAY_US;

/// From the first Monday of 1970 to the first moment of that year.
const MONDAY_US: i64 = 4 * DAY_US;

/// The largest offset of local time from UTC, in minutes.
const MAX_OFFSET_MIN: i16 = 14 * 60;

/// The most days by which a month may begin later: on the 31st, or the last day of a shorter month.
const MAX_DAYS: i16 = 30;

/// The most days that every month has: the 28th.
const DAYS_OF_ALL: i16 = 27;

/// Tokens that come at the boundaries of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Calendar {
    /// Micro-tokens at each boundary: at least 1.
    count_micro: u64,
    /// The length of a period, in units of the anchor: at least 1.
    units: u64,
    anchor: Anchor,
    /// By how many minutes boundaries come later than those of the calendar in UTC: days less the offset of local time.
    delay_min: i32,
}

/// From where boundaries are counted, and in which unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Anchor {
    /// Microseconds since the first moment of 1970.
    Epoch,
    /// Weeks since a Monday.
    Monday,
    /// Months since a January.
    January,
    /// Months since a January, which begin so many days after the 28th, at most on their last day: 1 to 3. The delay has the
    /// days until the 28th.
    MonthEnd(u8),
}

impl Anchor {
    /// Returns the anchor of periods that begin later by the days behind a period.
    #[cold]
    fn with_days(self, behind: &[u8]) -> Self {
        let after_28th = days(behind).map_or(0, |(days, _)| days.saturating_sub(DAYS_OF_ALL));
        match u8::try_from(after_28th) {
            Ok(after_28th @ 1..) if self == Self::January => Self::MonthEnd(after_28th),
            _ => self,
        }
    }
}

impl Calendar {
    /// Reads the parts before and behind the `@` of `count@period[days][offset]`.
    ///
    /// # Errors
    /// [`RateError`] if it is malformed or out of bounds.
    pub fn parse(count: &[u8], behind: &[u8]) -> Result<Self, RateError> {
        let sign = behind.iter().position(|byte| matches!(byte, b'+' | b'-')).unwrap_or(behind.len());
        let (period, behind) = behind.split_at_checked(sign).ok_or(RateError::Malformed)?;
        let delay_min = delay_min(period, behind).ok_or(RateError::Malformed)?;
        Decimal::parse(count).filter(|count| !count.is_zero()).ok_or(RateError::Malformed)?;
        let (units, anchor) = period_of(period)?;
        let anchor = if behind.is_empty() { anchor } else { anchor.with_days(behind) };
        let count_micro = micro_tokens(count, Rounding::Down).ok_or(RateError::OutOfRange)?.unsigned_abs();
        let calendar = Self { count_micro, units, anchor, delay_min };
        calendar.is_within_bounds().then_some(calendar).ok_or(RateError::OutOfRange)
    }

    /// Returns whether the rate is within bounds. A count below a millionth of a token is kept as 0, which is too slow.
    fn is_within_bounds(&self) -> bool {
        let period_us = self.usual_us();
        let is_slow_enough = self.count_micro <= period_us.saturating_mul(MAX_TOKENS_PER_S);
        // A token in n seconds is a micro-token in n microseconds.
        let is_fast_enough = period_us <= self.count_micro.saturating_mul(CENTURY_S);
        is_slow_enough && is_fast_enough && period_us <= CENTURY_US
    }

    /// Returns the micro-tokens that come after `since_us` and up to `until_us`; saturates at 2^62.
    #[must_use]
    pub fn flow_micro(&self, since_us: i64, until_us: i64) -> i64 {
        let periods = self.number_at(until_us).saturating_sub(self.number_at(since_us));
        saturate(periods.max(0).unsigned_abs().saturating_mul(self.count_micro))
    }

    /// Returns when `micro` micro-tokens have come after `since_us`; `since_us` itself for 0. Saturates 2^62 later.
    #[must_use]
    pub fn reaches_at_us(&self, since_us: i64, micro: u64) -> i64 {
        if micro == 0 {
            return since_us;
        }
        let periods = saturate(self.periods_for(micro));
        let at_us = self.begins_at_us(self.number_at(since_us).saturating_add(periods));
        at_us.min(since_us.saturating_add(SATURATED))
    }

    /// Returns whether a bucket of `capacity_micro` refills from empty within 100 years of usual periods.
    #[must_use]
    pub fn refills_within_a_century(&self, capacity_micro: u64) -> bool {
        self.periods_for(capacity_micro).saturating_mul(self.usual_us()) <= CENTURY_US
    }

    /// Returns the number of periods that bring `micro` micro-tokens.
    fn periods_for(&self, micro: u64) -> u64 {
        micro.div_ceil(self.count_micro.max(1))
    }

    /// Returns the usual length of a period in microseconds, which bounds are checked against.
    fn usual_us(&self) -> u64 {
        self.units.saturating_mul(match self.anchor {
            Anchor::Epoch => 1,
            Anchor::Monday => WEEK_US.unsigned_abs(),
            Anchor::January | Anchor::MonthEnd(_) => CENTURY_US / 1200,
        })
    }

    /// Returns the longest length of a period in microseconds, rounded up for periods of months.
    pub(super) fn longest_period_us(&self) -> i64 {
        signed(self.units.saturating_mul(match self.anchor {
            Anchor::January | Anchor::MonthEnd(_) => DAY_US.unsigned_abs().saturating_mul(31),
            Anchor::Epoch | Anchor::Monday => return signed(self.usual_us()),
        }))
    }

    /// Returns the number of the period that contains `at_us`.
    fn number_at(&self, at_us: i64) -> i64 {
        let local_us = at_us.saturating_sub(self.delay_us());
        match self.anchor {
            Anchor::Epoch => self.periods(local_us),
            _ => self.anchored_number_at(local_us),
        }
    }

    /// Returns the number of a period of weeks or months. Apart, because days and what is shorter are the usual periods.
    #[inline(never)]
    fn anchored_number_at(&self, local_us: i64) -> i64 {
        self.periods(match self.anchor {
            Anchor::Epoch => local_us,
            Anchor::Monday => local_us.saturating_sub(MONDAY_US).div_euclid(WEEK_US),
            Anchor::January => month_of(local_us.div_euclid(DAY_US)),
            Anchor::MonthEnd(days) => month_end_of(local_us.div_euclid(DAY_US), days),
        })
    }

    /// Returns how many whole periods so many units are.
    #[inline]
    fn periods(&self, units: i64) -> i64 {
        units.checked_div_euclid(signed(self.units)).unwrap_or(0)
    }

    /// Returns when the period of that number begins; saturates.
    fn begins_at_us(&self, number: i64) -> i64 {
        let units = number.saturating_mul(signed(self.units));
        let local_us = match self.anchor {
            Anchor::Epoch => units,
            Anchor::Monday => units.saturating_mul(WEEK_US).saturating_add(MONDAY_US),
            Anchor::January => first_day_of(units).saturating_mul(DAY_US),
            Anchor::MonthEnd(days) => month_end(units, days).saturating_mul(DAY_US),
        };
        local_us.saturating_add(self.delay_us())
    }

    fn delay_us(&self) -> i64 {
        i64::from(self.delay_min).saturating_mul(MINUTE_US)
    }
}

/// Reads `s`, `10s`, `15m`, `d`, `w`, `mo`, `3mo` or `y`: how many of which unit.
fn period_of(bytes: &[u8]) -> Result<(u64, Anchor), RateError> {
    if let Some((units, anchor, _)) = anchored(bytes) {
        return Ok((units, anchor));
    }
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, name) = bytes.split_at_checked(digits).ok_or(RateError::Malformed)?;
    let unit_us = unit(name).ok_or(RateError::Malformed)?.us();
    if number.is_empty() {
        return Ok((unit_us, Anchor::Epoch));
    }
    let us = whole(number)?.and_then(|number| number.checked_mul(unit_us));
    Ok((us.ok_or(RateError::OutOfRange)?, Anchor::Epoch))
}

/// Reads `w`, `mo`, `3mo` or `y`: how many of which unit, and the most days by which it may begin later.
pub(crate) fn anchored(period: &[u8]) -> Option<(u64, Anchor, Option<i16>)> {
    match period {
        b"w" => Some((1, Anchor::Monday, Some(6))),
        b"mo" => Some((1, Anchor::January, Some(MAX_DAYS))),
        b"3mo" => Some((3, Anchor::January, Some(MAX_DAYS))),
        b"y" => Some((12, Anchor::January, None)),
        _ => None,
    }
}

/// Returns a whole number above 0; `None` if it is too large for any period.
fn whole(digits: &[u8]) -> Result<Option<u64>, RateError> {
    let number = digits.iter().try_fold(0u64, |number, digit| {
        number.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0')))
    });
    if number == Some(0) {
        return Err(RateError::Malformed);
    }
    Ok(number)
}

/// Reads the days of `+14d+09:00`, and returns the rest too; `None` if there are none.
fn days(behind: &[u8]) -> Option<(i16, &[u8])> {
    match behind {
        [b'+', ones, b'd', offset @ ..] => Some((two_digits(b'0', *ones)?, offset)),
        [b'+', tens, ones, b'd', offset @ ..] => Some((two_digits(*tens, *ones)?, offset)),
        _ => None,
    }
}

/// Reads `+14d+09:00`, the days, at most to the 28th, and the offset behind a period.
pub(crate) fn delay_min(period: &[u8], behind: &[u8]) -> Option<i32> {
    let most_days = anchored(period).and_then(|(.., most_days)| most_days);
    let (days, offset) = match days(behind) {
        Some((days, offset)) => (Some(days).filter(|days| Some(*days) <= most_days)?, offset),
        None => (0, behind),
    };
    let days = days.min(DAYS_OF_ALL);
    Some(i32::from(days).wrapping_mul(24 * 60).wrapping_sub(offset_min(offset)?.into()))
}

/// Reads `+09:00` or `-03:30` as minutes; the empty offset is UTC.
pub(crate) fn offset_min(bytes: &[u8]) -> Option<i16> {
    if bytes.is_empty() {
        return Some(0);
    }
    let [sign @ (b'+' | b'-'), hour_tens, hours, b':', tens, ones] = bytes else { return None };
    let minute = two_digits(*tens, *ones).filter(|minute| *minute < 60)?;
    let minutes = two_digits(*hour_tens, *hours)?.wrapping_mul(60).wrapping_add(minute);
    (minutes <= MAX_OFFSET_MIN).then(|| if *sign == b'-' { minutes.wrapping_neg() } else { minutes })
}

fn two_digits(tens: u8, ones: u8) -> Option<i16> {
    let digit = |byte: u8| byte.is_ascii_digit().then(|| i16::from(byte.wrapping_sub(b'0')));
    Some(digit(tens)?.wrapping_mul(10).wrapping_add(digit(ones)?))
}

// A year that begins in March has its leap day at the end, where it shifts nothing: there, months have 153 days in
// five, and the calendar repeats every 400 years. All numbers below are days and years since March of the year 0.

const DAYS_IN_400_YEARS: i64 = 146_097;

/// From March 1st of the year 0 to January 1st 1970.
const DAYS_UNTIL_1970: i64 = 719_468;

/// Returns the month, counted from January of the year 0, of a day since 1970, which may be a few days before.
fn month_of(day: i64) -> i64 {
    let day = day.saturating_add(DAYS_UNTIL_1970);
    let (cycle, day) = (day.div_euclid(DAYS_IN_400_YEARS), day.rem_euclid(DAYS_IN_400_YEARS));
    // Without the leap days before it (and all but the last day of a cycle's last century), a day gives its year.
    let leap_days = (day / 1460).wrapping_sub(day / 36_524).wrapping_add(day / (DAYS_IN_400_YEARS - 1));
    let year = day.wrapping_sub(leap_days) / 365;
    let day_of_year = day.wrapping_sub(days_before_year(year));
    let month = day_of_year.wrapping_mul(5).wrapping_add(2) / 153;
    let years = cycle.wrapping_mul(400).wrapping_add(year);
    years.wrapping_mul(12).wrapping_add(month).wrapping_add(2)
}

/// Returns the month that began last until `day`, `days` after each 28th. Off the path of other calendars.
#[cold]
#[inline(never)]
fn month_end_of(day: i64, days: u8) -> i64 {
    let month = month_of(day);
    if day >= month_end(month, days) {
        month
    } else {
        month.saturating_sub(1)
    }
}

/// Returns the first day of a month, without the delay to the 28th, that begins `days` after it, at most on its last day.
#[cold]
#[inline(never)]
fn month_end(month: i64, days: u8) -> i64 {
    let first = first_day_of(month);
    let len = first_day_of(month.saturating_add(1)).saturating_sub(first);
    first.saturating_add(i64::from(days).min(len.saturating_sub(28)))
}

/// Returns the first day, counted from 1970, of a month, counted from January of the year 0; saturates.
fn first_day_of(month: i64) -> i64 {
    let month = month.saturating_sub(2);
    let (years, month) = (month.div_euclid(12), month.rem_euclid(12));
    let (cycle, year) = (years.div_euclid(400), years.rem_euclid(400));
    let day_of_year = month.wrapping_mul(153).wrapping_add(2) / 5;
    let day = days_before_year(year).wrapping_add(day_of_year).wrapping_sub(DAYS_UNTIL_1970);
    cycle.saturating_mul(DAYS_IN_400_YEARS).saturating_add(day)
}

/// Days of a cycle of 400 years before one of its years.
fn days_before_year(year: i64) -> i64 {
    year.wrapping_mul(365).wrapping_add(year / 4).wrapping_sub(year / 100)
}
