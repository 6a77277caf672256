//! Numbers, times and keys as people read them.

use jiff::Timestamp;

/// The longest key that is shown whole.
const LONGEST: usize = 60;

/// Returns `1,234,567`.
pub fn count(number: impl Into<i128>) -> String {
    let digits = number.into().to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Returns a part of a whole as `3.46 %`.
pub fn percent(part: f64, whole: f64) -> String {
    let share = if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
    format!("{share:.2} %")
}

/// Returns the time of Unix microseconds as `2015-05-17 10:05:03`, in UTC.
pub fn time(us: i64) -> String {
    Timestamp::from_microsecond(us).map_or_else(|_| us.to_string(), |time| time.strftime("%F %T").to_string())
}

/// Returns `250 ms`, `12 s`, `3 min 20 s`, `5 h 12 min` or `3.9 days`.
pub fn duration(us: i64) -> String {
    let s = us / 1_000_000;
    match s {
        0 => format!("{} ms", us / 1000),
        1..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..172_800 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{:.1} days", s as f64 / 86_400.0),
    }
}

/// Returns what can be shown of bytes from a log, which are not to move a cursor.
pub fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut shown: String = text.chars().take(LONGEST).flat_map(|char| {
        let is_hidden = char.is_control() || matches!(char, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let escaped = is_hidden.then(|| char.escape_unicode());
        escaped.into_iter().flatten().chain((!is_hidden).then_some(char))
    }).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns a row of blocks as high as the numbers, at most 60: neighbours share one.
pub fn blocks(numbers: &[u64]) -> String {
    const BLOCKS: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let sums: Vec<u64> =
        numbers.chunks(numbers.len().div_ceil(60).max(1)).map(|some| some.iter().sum()).collect();
    let most = sums.iter().max().copied().unwrap_or(0).max(1);
    sums.iter().map(|sum| BLOCKS.get((sum * 8).div_ceil(most) as usize).copied().unwrap_or('█')).collect()
}

/// Returns the time of Unix microseconds in RFC 3339.
pub fn moment(us: i64) -> String {
    Timestamp::from_microsecond(us).map_or_else(|_| us.to_string(), |time| time.to_string())
}
