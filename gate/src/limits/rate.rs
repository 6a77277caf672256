//! Amounts and times of `rate_limit`, for buckets and for replies.

use tokenbucket_client::{Error, Limit};

use super::rule::Rule;
use crate::messages::{CurrentLimit, Unit};

const SECOND_MS: u64 = 1000;
const DAY_MS: u64 = 86_400 * SECOND_MS;

/// The units of replies, shortest first, with the module's names of their periods, flowing and by the calendar.
const UNITS: [(Unit, u64, &str, &str); 7] = [
    (Unit::Second, SECOND_MS, "s", "s"),
    (Unit::Minute, 60 * SECOND_MS, "m", "m"),
    (Unit::Hour, 3600 * SECOND_MS, "h", "h"),
    (Unit::Day, DAY_MS, "d", "d"),
    (Unit::Week, 7 * DAY_MS, "7d", "w"),
    (Unit::Month, 30 * DAY_MS, "30d", "mo"),
    (Unit::Year, 365 * DAY_MS, "365d", "y"),
];

/// Returns the unit of that name, in any case.
pub(super) fn unit(name: &str) -> Option<Unit> {
    UNITS.iter().map(|(unit, ..)| *unit).find(|unit| unit.as_str_name().eq_ignore_ascii_case(name))
}

/// `requests` in each `unit`: all the time, or at its boundaries by the calendar.
pub(super) fn per_unit(
    requests: u32,
    unit: Unit,
    capacity: Option<&str>,
    is_calendar: bool,
) -> Result<Rule, Error> {
    let current = CurrentLimit { name: String::new(), requests_per_unit: requests, unit: unit.into() };
    let period = UNITS.iter().find(|(each, ..)| *each == unit);
    let (_, unit_ms, flowing, calendar) = period.copied().unwrap_or((unit, 0, "s", "s"));
    let rate = if is_calendar { format!("{requests}@{calendar}") } else { format!("{requests}/{flowing}") };
    let limit = match requests {
        0 => nothing()?,
        _ => Limit::new(capacity.unwrap_or(&requests.to_string()), rate)?,
    };
    Ok(Rule::plain(limit, current, longest_ms(unit_ms, is_calendar), requests.into()))
}

/// Returns whether the file sets more of the bucket of a rule than `unit` and `requests_per_unit`.
pub(super) fn is_of_ours(rule: &Rule) -> bool {
    let requests = rule.current.requests_per_unit;
    per_unit(requests, rule.current.unit(), None, false).map_or(true, |plain| plain.limit != rule.limit)
}

/// Denies every cost above 0. The module has no rate of 0 for buckets.
pub(super) fn nothing() -> Result<Limit, Error> {
    Limit::new(0, "1/m")
}

/// Any rate of the module; the capacity is its count unless given.
pub(super) fn of_rate(rate: &str, capacity: Option<&str>) -> Result<Rule, Error> {
    let count = rate.split(['/', '@']).next().unwrap_or(rate);
    // A mistake in the count is the rate's, and no capacity's that nobody wrote.
    Limit::new(1, rate)?;
    let limit = Limit::new(capacity.unwrap_or(count), rate)?;
    let (tokens, is_calendar) = (limit.count(), rate.contains('@'));
    let period_ms = limit.period().as_micros().div_ceil(1000) as u64;
    let in_units = match period_ms / DAY_MS {
        // No unit has 90 days four times.
        90 if is_calendar => in_whole_units(4.0 * tokens, 365 * DAY_MS),
        _ => in_whole_units(tokens, period_ms),
    };
    let (requests_per_unit, unit) = in_units.unwrap_or((whole(tokens), Unit::Unknown));
    let current = CurrentLimit { name: String::new(), requests_per_unit, unit: unit.into() };
    // A rate of half a token an hour grants one in two hours.
    let unit_ms = longest_ms(period_ms.max(1), is_calendar) as f64 * (1.0 / tokens).max(1.0);
    Ok(Rule::plain(limit, current, unit_ms.ceil() as u64, tokens.max(1.0) as u64))
}

/// Returns whether a number of tokens is above 0 and grants no whole one.
pub(super) fn is_part_of_one(capacity: &str) -> bool {
    capacity.parse().is_ok_and(|tokens: f64| tokens > 0.0 && tokens < 1.0)
}

/// Returns whether it is a rate of 0, which the module accepts for pools.
pub(super) fn is_zero(rate: &str) -> bool {
    rate.parse().is_ok_and(|tokens: f64| tokens == 0.0)
}

/// By the calendar, a month may have 31 days, a quarter 92 and a year 366.
fn longest_ms(unit_ms: u64, is_calendar: bool) -> u64 {
    let more_days = match unit_ms / DAY_MS {
        90 if is_calendar => 2,
        30.. if is_calendar => 1,
        _ => 0,
    };
    unit_ms + more_days * DAY_MS
}

/// Returns the shortest unit of replies that is a multiple of the period, and how many whole tokens come in it.
fn in_whole_units(count: f64, period_ms: u64) -> Option<(u32, Unit)> {
    UNITS.iter().find_map(|(unit, unit_ms, ..)| {
        if unit_ms.checked_rem(period_ms)? != 0 {
            return None;
        }
        let tokens = count * unit_ms.checked_div(period_ms)? as f64;
        let is_whole =
            tokens >= 1.0 && tokens <= f64::from(u32::MAX) && (tokens - tokens.round()).abs() < 1e-6;
        is_whole.then(|| (whole(tokens.round()), *unit))
    })
}

/// Rounded down, and saturated as casts of floats are.
fn whole(tokens: f64) -> u32 {
    tokens as u32
}
