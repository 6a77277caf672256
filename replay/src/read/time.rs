//! Times as logs write them, to Unix microseconds.

use jiff::{civil::DateTime, tz::TimeZone, Error, Timestamp};

/// 1990 to 2100, in Unix seconds. Times outside are mistakes, and these bounds also tell seconds from milliseconds.
const YEARS: std::ops::Range<i128> = 631_152_000..4_102_444_800;

/// Reads times. Neighbouring lines often share theirs, so the last one is remembered.
#[derive(Default)]
pub struct Times {
    last: Vec<u8>,
    last_us: Option<i64>,
}

impl Times {
    /// Reads the form of the common log format or of werkzeug, RFC 3339 with its relatives, gin's among them, or a Unix time
    /// in seconds, milliseconds, microseconds or nanoseconds. Without an offset it is UTC.
    ///
    /// `None` for anything else, and for times before 1990 or after 2099.
    pub fn us(&mut self, text: &[u8]) -> Option<i64> {
        if self.last != text {
            self.last.clear();
            self.last.extend_from_slice(text);
            self.last_us = time_us(text);
        }
        self.last_us
    }
}

fn time_us(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let time = match text.as_bytes() {
        [_, _, b'/', _, _, _, b'/', _, _, _, _, b' ', ..] => common(&text.replacen(' ', ":", 1)).ok()?,
        [_, _, b'/', _, _, _, b'/', ..] => common(text).ok()?,
        [_, _, _, _, b'/' | b'-', _, _, b'/' | b'-', _, _, _, ..] => {
            // Its relatives have slashes, a space before the offset, or something else before the time.
            let joined = || text.replacen('/', "-", 2).replace(" - ", " ").replace('\t', " ");
            let joined = || joined().replace(" UTC", "Z").replace(" +", "+").replace(" -", "-");
            rfc3339(text).or_else(|_| rfc3339(&joined())).ok()?
        }
        _ => return unix_us(text),
    };
    YEARS.contains(&time.as_second().into()).then(|| time.as_microsecond())
}

/// Reads the form of the common log format, with an offset or in UTC.
fn common(text: &str) -> Result<Timestamp, Error> {
    let with_offset = Timestamp::strptime("%d/%b/%Y:%H:%M:%S%.f %z", text);
    with_offset.or_else(|_| TimeZone::UTC.to_timestamp(DateTime::strptime("%d/%b/%Y:%H:%M:%S%.f", text)?))
}

/// Reads RFC 3339, with an offset or in UTC.
fn rfc3339(text: &str) -> Result<Timestamp, Error> {
    text.parse().or_else(|_| TimeZone::UTC.to_timestamp(text.parse()?))
}

/// Reads a Unix time. Its size tells its unit.
fn unix_us(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = whole.bytes().chain(fraction.bytes().chain(std::iter::repeat(b'0')).take(9));
    let is_number = whole.len() < 20 && digits.clone().all(|digit| digit.is_ascii_digit());
    let billionths = is_number.then(|| digits.fold(0, |sum, digit| sum * 10 + i128::from(digit - b'0')))?;
    let per_second = [1, 1_000, 1_000_000, 1_000_000_000];
    let unit = per_second.into_iter().find(|unit| YEARS.contains(&(billionths / 1_000_000_000 / unit)))?;
    i64::try_from(billionths / 1000 / unit).ok()
}
