//! What only the pure code meets: rates of all kinds, amounts that nobody may ask for twice, and either end of time.

use super::model::{number, Flow, Limit};
use super::strategies::{amounts, pauses_us, spread};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::string::string_regex;
use tokenbucket_core::bucket::MAX_TIME_US;
use tokenbucket_core::number::{MAX_MICRO, MAX_TOKENS};

/// Whole numbers of tokens per second, in several spellings.
pub fn whole_rates() -> impl Strategy<Value = String> {
    (spread(MAX_TOKENS), 0..4).prop_map(|(count, spelling)| match (spelling, count.max(1)) {
        (0, count) if count <= MAX_TOKENS / 60 => format!("{}/m", count * 60),
        (1, count) if count % 1000 == 0 => format!("{}/ms", count / 1000),
        (2, count) if count <= MAX_TOKENS / 10 => format!("{}/10s", count * 10),
        (_, count) => count.to_string(),
    })
}

/// Rates by the calendar.
pub fn calendar_rates() -> impl Strategy<Value = String> {
    let usual = select(vec![
        "1000@d",
        "10@mo",
        "5@10s",
        "3@w",
        "100@15m",
        "1@y",
        "1000@d+09:00",
        "10@3mo+14d-05:00",
        "20@mo+30d",
    ]);
    let later = "(w([+][0-6]d|)|(mo|3mo)([+]([0-9]|1[0-9]|2[0-7])d|)|y)";
    let period = format!("([1-9][0-9]{{0,4}}(ms|s|m|h|d)|(ms|s|m|h|d)|{later}|{later})");
    let behind = format!("(|e-6|\\.5)@{period}(|[+-](0[0-9]|1[0-3]):[0-5][0-9])");
    let any = (spread(MAX_TOKENS), string_regex(&behind).unwrap());
    let any = any.prop_map(|(count, behind)| format!("{count}{behind}"));
    prop_oneof![1 => usual.prop_map(str::to_owned), 3 => any]
        .prop_map(|words| Flow::read(words.as_bytes()).map_or("1@d-14:00".to_owned(), |_| words))
}

/// Rates that are no calendar's, many of them within bounds; some with more decimal places than fit a machine word.
pub fn steady_rates() -> impl Strategy<Value = String> {
    let usual = select(vec!["100/m", "1/250ms", "5000/h", "37/10s", "1/d", "7/3s"]);
    let size = || spread(MAX_TOKENS - 1).prop_map(|size| size.max(1));
    let any = (size(), "(||||||e1?[0-9])/", size(), "(||||||e1?[0-9]|e-[1-9])(ms|s|m|h|d)");
    let any = any.prop_map(|(count, up, number, down)| format!("{count}{up}{number}{down}"));
    prop_oneof![1 => usual.prop_map(str::to_owned), 3 => any]
}

/// All rates.
pub fn rates() -> impl Strategy<Value = String> {
    let steady = steady_rates().prop_map(|words| match number::rate(words.as_bytes()) {
        Err(_) if words.len() % 2 == 0 => "1e12".to_owned(),
        Err(_) => "1/36525d".to_owned(),
        Ok(_) => words,
    });
    prop_oneof![3 => steady, 1 => calendar_rates()]
}

/// Amounts near what matters to a limit, and all others.
pub fn any_amounts(limit: &Limit) -> impl Strategy<Value = i64> + Clone {
    prop_oneof![9 => amounts(limit), 2 => spread(MAX_MICRO)]
}

/// Now, or at either end of time.
pub fn starts() -> impl Strategy<Value = i64> {
    prop_oneof![
        4 => 1_700_000_000_000_000..1_700_000_001_000_000i64,
        1 => Just(0),
        1 => spread(1_000_000_000).prop_map(|us| MAX_TIME_US - us),
    ]
}

/// What the clock does between two calls.
#[derive(Clone, Copy, Debug)]
pub enum Pause {
    /// Microseconds, back if negative.
    By(i64),
    /// What the last reply told to wait, or next to it, in milliseconds.
    AsTold(i64),
}

impl Pause {
    pub fn after(self, now_us: i64, told_ms: i64) -> i64 {
        let by_us = match self {
            Self::By(us) => us,
            Self::AsTold(off_by_ms) => (told_ms + off_by_ms).max(0).saturating_mul(1000),
        };
        now_us.saturating_add(by_us).clamp(0, MAX_TIME_US)
    }
}

/// So many quarters of them on a clock that was set back.
pub fn pauses(limit: &Limit, set_back: u8) -> impl Strategy<Value = Pause> {
    let by = (pauses_us(limit), 0..4u8);
    prop_oneof![
        12 => by.prop_map(move |(us, quarter)| Pause::By(if quarter < set_back { -us } else { us })),
        2 => (-1..=1i64).prop_map(Pause::AsTold),
    ]
}
