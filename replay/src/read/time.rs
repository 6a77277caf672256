//! Times as logs write them, to Unix microseconds.

use jiff::civil::Date;

const SECOND_US: i64 = 1_000_000;
const DAY_S: i64 = 86_400;

/// 1990 to 2100, in Unix seconds. Times outside are mistakes, and these bounds also tell seconds from milliseconds.
const YEARS: std::ops::Range<i64> = 631_152_000..4_102_444_800;

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// Reads times. Neighbouring lines often share theirs, so the last one is remembered.
#[derive(Default)]
pub struct Times {
    last: Vec<u8>,
    last_us: Option<i64>,
}

impl Times {
    /// Reads the form of the common log format, RFC 3339 with its relatives, or a Unix time in seconds, milliseconds,
    /// microseconds or nanoseconds. Without an offset it is UTC.
    ///
    /// `None` for anything else, and for times before 1990 or after 2099.
    pub fn us(&mut self, text: &[u8]) -> Option<i64> {
        if self.last != text {
            self.last.clear();
            self.last.extend_from_slice(text);
            self.last_us = time_us(text).filter(|us| YEARS.contains(&us.div_euclid(SECOND_US)));
        }
        self.last_us
    }
}

fn time_us(text: &[u8]) -> Option<i64> {
    match text {
        [_, _, b'/', _, _, _, b'/', ..] => common_us(text),
        [_, _, _, _, b'-', _, _, b'-', ..] => rfc3339_us(text),
        _ => unix_us(text),
    }
}

/// Reads `17/May/2015:10:05:03 +0000`, also with a fraction or without the offset.
fn common_us(text: &[u8]) -> Option<i64> {
    let (day, rest) = (number(text.get(..2)?)?, text.get(3..)?);
    let month = MONTHS.iter().zip(1..).find(|(name, _)| rest.starts_with(name.as_slice()))?.1;
    let year = number(rest.get(4..8)?)?;
    clock_us(day_s(year, month, day)?, rest.get(8..)?)
}

/// Reads `2015-05-17T10:05:03.25Z`, also with a space, a comma or `+0200`.
fn rfc3339_us(text: &[u8]) -> Option<i64> {
    let part = |range| number(text.get(range)?);
    clock_us(day_s(part(0..4)?, part(5..7)?, part(8..10)?)?, text.get(10..)?)
}

/// Reads the time of day behind its separator, and the offset.
fn clock_us(day_s: i64, text: &[u8]) -> Option<i64> {
    let [b':' | b'T' | b't' | b' ' | b'_', h1, h2, b':', m1, m2, b':', s1, s2, rest @ ..] = text else {
        return None;
    };
    let (hour, minute, second) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?, number(&[*s1, *s2])?);
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (fraction_us, rest) = match rest {
        [b'.' | b',', rest @ ..] => fraction_us(rest)?,
        rest => (0, rest),
    };
    let s = day_s + (hour * 60 + minute) * 60 + second - offset_s(rest.trim_ascii_start())?;
    Some(s * SECOND_US + fraction_us)
}

fn offset_s(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [] | [b'Z' | b'z'] | b"UTC" | b"GMT" => return Some(0),
        [b'+', digits @ ..] => (1, digits),
        [b'-', digits @ ..] => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match digits {
        [h1, h2, b':', m1, m2] | [h1, h2, m1, m2] => (number(&[*h1, *h2])?, number(&[*m1, *m2])?),
        [h1, h2] => (number(&[*h1, *h2])?, 0),
        _ => return None,
    };
    Some(sign * (hours * 60 + minutes) * 60)
}

/// Reads a Unix time. Its size tells its unit.
fn unix_us(text: &[u8]) -> Option<i64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (whole, rest) = text.split_at_checked(digits)?;
    let whole = number(whole)?;
    let fraction_us = match rest {
        [] => 0,
        [b'.', rest @ ..] => fraction_us(rest).filter(|(_, rest)| rest.is_empty())?.0,
        _ => return None,
    };
    let per_second = [1, 1_000, SECOND_US, 1_000_000_000];
    let unit = per_second.into_iter().find(|unit| YEARS.contains(&(whole / unit)))?;
    Some(match SECOND_US / unit {
        0 => whole / 1000,
        us => whole * us + fraction_us / unit,
    })
}

/// Reads the digits behind a decimal point: whole microseconds, and what follows.
fn fraction_us(text: &[u8]) -> Option<(i64, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (fraction, rest) = text.split_at_checked(digits)?;
    let padded = fraction.iter().chain(b"000000").take(6);
    Some((padded.fold(0, |us, digit| us * 10 + i64::from(digit - b'0')), rest))
}

/// Returns the beginning of a day, in Unix seconds.
fn day_s(year: i64, month: i64, day: i64) -> Option<i64> {
    let date = Date::new(year.try_into().ok()?, month.try_into().ok()?, day.try_into().ok()?).ok()?;
    let since = date.duration_since(Date::constant(1970, 1, 1));
    Some(since.as_secs() / DAY_S * DAY_S)
}

fn number(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() || digits.len() > 18 + 1 {
        return None;
    }
    digits.iter().try_fold(0i64, |number, digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}
