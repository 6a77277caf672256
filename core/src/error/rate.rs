//! Explains a malformed rate: the wrong part, and what to write instead.
//!
//! It reads again by the rules of [`crate::rate`], to find the reason.

use super::quote::{printable, quoted, MAX_QUOTED};
use crate::number::{Decimal, MAX_LEN};
use crate::rate::calendar::{anchored, delay_min, offset_min};
use crate::rate::unit::unit;

const FORMS: &str =
    "must be tokens per second (5, 0.25), count/period (100/m, 10/15s) or count@period (1000@d)";

/// Spellings of a unit, the right one behind a `/`, and the right one behind a `@`.
const UNITS: &[(&str, &str, &str)] = &[
    ("ms msec msecs milli millis millisecond milliseconds", "ms", "ms"),
    ("s sec secs second seconds", "s", "s"),
    ("m min mins minute minutes", "m", "m"),
    ("h hr hrs hour hours", "h", "h"),
    ("d day days", "d", "d"),
    ("w week weeks", "7d, or @w for calendar weeks", "w"),
    ("mo mon month months", "30d, or @mo for calendar months", "mo"),
    ("q quarter quarters", "90d, or @3mo for calendar quarters", "3mo"),
    ("y yr year years", "365d, or @y for calendar years", "y"),
];

/// Explains which part of `rate` is wrong, and how to write it.
pub(super) fn explain(rate: &[u8]) -> String {
    let sent = quoted(rate).map_or_else(String::new, |rate| format!(", not {rate}"));
    if rate.len() > MAX_LEN {
        return format!("{FORMS} with numbers of at most {MAX_LEN} bytes{sent}");
    }
    let Some(text) = printable(rate) else { return FORMS.to_owned() };
    let rate = Rate { text };
    let fault = match text.split_once(['/', '@']) {
        None => rate.count_fault(text).filter(|_| starts_as_number(text)),
        Some((count, behind)) if text.get(count.len()..).is_some_and(|rest| rest.starts_with('@')) => {
            rate.count_fault(count).or_else(|| rate.calendar_fault(behind))
        }
        Some((count, period)) => rate.count_fault(count).or_else(|| Some(rate.period_fault(period))),
    };
    fault.unwrap_or_else(|| format!("{FORMS}{sent}"))
}

/// Returns whether a text without its sign is a number.
fn starts_as_number(text: &str) -> bool {
    Decimal::parse(text.trim_start_matches('-').as_bytes()).is_some()
}

struct Rate<'a> {
    text: &'a str,
}

impl Rate<'_> {
    fn count_fault(&self, count: &str) -> Option<String> {
        let rule = match Decimal::parse(count.as_bytes()) {
            Some(number) if !number.is_zero() => return None,
            Some(_) => "must be above 0",
            None if count.starts_with('-') => "must not be negative",
            None => "must be a decimal number",
        };
        let what = if count == self.text { "" } else { "count " };
        Some(format!("{what}{} {rule}", self.part(count)))
    }

    /// Explains the fault behind the `/` of a malformed rate whose count is right.
    fn period_fault(&self, period: &str) -> String {
        let (number, name) = split_letters(period);
        if unit(name.as_bytes()).is_none() {
            return self.unit_fault(period, name);
        }
        let is_number = Decimal::parse(number.as_bytes()).is_some();
        let rule = if is_number { "must be above 0" } else { "must be a decimal number and a unit" };
        format!("period {} {rule}", self.part(period))
    }

    fn unit_fault(&self, period: &str, name: &str) -> String {
        const ANY: &str = "ms, s, m, h or d";
        if name.is_empty() {
            let what = if period.is_empty() { "period" } else { "unit" };
            return format!("no {what} in {}, use {ANY}", self.part(self.text));
        }
        let instead = spelling(name).map_or(ANY, |(_, steady, _)| steady);
        format!("unknown unit {}, use {instead}", self.part(name))
    }

    /// Explains the fault behind an `@`, if there is one.
    fn calendar_fault(&self, behind: &str) -> Option<String> {
        const ANY: &str = "ms, s, m, h, d, w, mo, 3mo or y";
        let sign = behind.find(['+', '-']).unwrap_or(behind.len());
        let (period, shift) = behind.split_at_checked(sign)?;
        let is_anchored = |period: &str| anchored(period.as_bytes()).is_some();
        let (number, name) = split_letters(period);
        if period.is_empty() {
            return Some(format!("no period in {}, use {ANY}", self.part(self.text)));
        }
        let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
        if is_anchored(name) && !is_anchored(period) {
            return Some(format!("period {} must be w, mo, 3mo or y", self.part(period)));
        }
        if unit(name.as_bytes()).is_none() && !is_anchored(name) {
            let wrong = if is_plain && !name.is_empty() { name } else { period };
            let instead = spelling(name).map_or(ANY, |(_, _, calendar)| calendar);
            return Some(format!("unknown period {}, use {instead}", self.part(wrong)));
        }
        if !is_plain || (!number.is_empty() && number.bytes().all(|digit| digit == b'0')) {
            return Some(format!("period {} must be a whole number above 0 and a unit", self.part(period)));
        }
        self.shift_fault(period, shift)
    }

    /// Explains the fault in the days or the offset behind a period that is right, if there is one.
    fn shift_fault(&self, period: &str, shift: &str) -> Option<String> {
        let sign = shift.get(1..).and_then(|behind| behind.find(['+', '-']));
        let parts = shift.split_at_checked(sign.map_or(shift.len(), |at| at.saturating_add(1)));
        let (days, offset) = parts.filter(|(days, _)| days.contains('d')).unwrap_or(("", shift));
        let most_days = anchored(period.as_bytes()).and_then(|(.., most_days)| most_days);
        let rule = match most_days {
            Some(6) => "must be +0d (Monday) to +6d (Sunday)",
            Some(_) => "must be +0d to +30d (the 31st or the last day)",
            None => "need a period of w, mo or 3mo",
        };
        if delay_min(period.as_bytes(), days.as_bytes()).is_none() {
            return Some(format!("days {} {rule}", self.part(days)));
        }
        let order = if most_days.is_some() && days.is_empty() { "; days (+1d) come before it" } else { "" };
        let rule = format!("must be +HH:MM or -HH:MM, up to 14:00{order}");
        let is_offset = offset_min(offset.as_bytes()).is_some();
        (!is_offset).then(|| format!("offset {} {rule}", self.part(offset)))
    }

    /// Quotes the part, and the whole rate too if that differs and is short.
    fn part(&self, part: &str) -> String {
        let quoted = quoted(part.as_bytes()).unwrap_or_default();
        let is_short = part.len().saturating_add(self.text.len()) <= MAX_QUOTED;
        if is_short && part != self.text {
            return format!("{quoted} in '{}'", self.text);
        }
        quoted
    }
}

/// Splits off the letters at the end.
fn split_letters(period: &str) -> (&str, &str) {
    let number = period.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    (number, period.strip_prefix(number).unwrap_or_default())
}

fn spelling(name: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    let name = name.to_ascii_lowercase();
    UNITS.iter().find(|(spellings, ..)| spellings.split(' ').any(|spelling| spelling == name))
}
