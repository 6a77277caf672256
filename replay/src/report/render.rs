//! Templates, and how they show numbers, times and keys.

use minijinja::{Environment, Value};
use serde::Serialize;

/// The longest key that is shown whole.
const LONGEST: usize = 60;

const TEMPLATES: [(&str, &str); 5] = [
    ("report.txt", include_str!("report.txt")),
    ("page.html", include_str!("page.html")),
    ("plots.html", include_str!("plots.html")),
    ("client.txt", include_str!("client.txt")),
    ("paste.txt", include_str!("paste.txt")),
];

/// Renders a template. One whose name ends in `html` escapes what it shows.
pub fn render(name: &str, values: &impl Serialize) -> Result<String, String> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_keep_trailing_newline(true);
    environment.add_filter("count", count);
    environment.add_filter("short", short);
    environment.add_filter("percent", percent);
    environment.add_filter("duration", duration);
    environment.add_filter("time", |time: &str| time.replace('T', " ").chars().take(19).collect::<String>());
    environment.add_filter("shown", printable);
    environment.add_filter("right", |text: &str, width: usize| format!("{text:>width$}"));
    environment.add_filter("left", |text: &str, width: usize| format!("{text:width$}"));
    environment.add_filter("width", |text: &str| text.chars().count());
    environment.add_filter("blocks", |numbers: Vec<u64>| blocks(&numbers));
    environment.add_filter("last_name", |path: &str| path.rsplit('.').next().unwrap_or(path).to_owned());
    environment.add_function("scale", scale);
    let added = TEMPLATES.into_iter().try_for_each(|(name, source)| environment.add_template(name, source));
    let rendered = added.and_then(|()| environment.get_template(name)?.render(Value::from_serialize(values)));
    rendered.map_err(|error| error.to_string())
}

/// Returns `1,234,567`.
fn count(number: i64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// Returns `300`, `10k` or `3M`.
fn short(number: i64) -> String {
    let units = [(1_000_000_000, "G"), (1_000_000, "M"), (1000, "k")];
    let unit = units.into_iter().find(|(unit, _)| number >= *unit);
    unit.map_or_else(|| number.to_string(), |(unit, name)| format!("{}{name}", number / unit))
}

/// Returns a part of a whole as `3.46 %`.
fn percent(part: f64, whole: f64) -> String {
    let share = if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
    format!("{share:.2} %")
}

/// Returns `250 ms`, `12 s`, `3 min 20 s`, `5 h 12 min` or `3.9 days`.
fn duration(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds else { return "for ever".to_owned() };
    let s = seconds as u64;
    match s {
        0 => format!("{} ms", (seconds * 1e3) as u64),
        1..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        3600..172_800 => format!("{} h {} min", s / 3600, s % 3600 / 60),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

/// Returns what can be shown of text from a log, which is not to move a cursor.
#[must_use]
pub fn printable(text: &str) -> String {
    let is_hidden = |char: char| {
        char.is_control()
            || matches!(char, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::new();
    for char in text.chars().take(LONGEST) {
        if is_hidden(char) {
            shown.extend(char.escape_unicode());
        } else {
            shown.push(char);
        }
    }
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns a row of blocks as high as the numbers, at most 60: neighbours share one.
fn blocks(numbers: &[u64]) -> String {
    const BLOCKS: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let sums: Vec<u64> =
        numbers.chunks(numbers.len().div_ceil(60).max(1)).map(|some| some.iter().sum()).collect();
    let most = sums.iter().max().copied().unwrap_or(0).max(1);
    sums.iter().filter_map(|sum| BLOCKS.get((sum * 8).div_ceil(most) as usize)).collect()
}

/// Returns the place of a number between the places of 1 and of the largest one, on a logarithmic scale.
fn scale(number: f64, largest: f64, from: f64, to: f64) -> f64 {
    from + (to - from) * number.max(1.0).ln() / largest.ln()
}
