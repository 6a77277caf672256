//! The capacities at which limits of several rates would have denied a part of the keys.
//!
//! A bucket of any capacity that denies nothing lacks the same number of tokens after each request: what came before, less
//! what flowed in, and the cost. This is the backlog of a leaky bucket. Its maximum over the requests of a key is the least
//! capacity at which the key is never denied: the burst σ for the rate ρ of network calculus (Cruz, 1991). So one pass over
//! the requests gives it exactly. The flow is that of the module's own arithmetic, with all its rounding.

use tokenbucket_core::number::MICRO_PER_TOKEN;
use tokenbucket_core::rate::Rate;

use crate::log::{Event, Log};
use crate::options::NamedRate;

const MINUTE_US: i64 = 60_000_000;
const HOUR_US: i64 = 60 * MINUTE_US;
/// The most rates in a table.
const MOST_ROWS: usize = 12;

/// The parts of the keys for which capacities are shown, as one of so many.
const PARTS: [(usize, &str); 4] = [(1000, "1 of 1,000"), (100, "1 %"), (20, "5 %"), (10, "10 %")];

/// The table.
pub struct Table {
    /// How many of the keys a limit denies: at most so many, by the words for it. The first is 0.
    pub denied: Vec<(usize, &'static str)>,
    /// A row for each rate.
    pub rows: Vec<Row>,
}

/// The capacities for one rate.
pub struct Row {
    /// The rate.
    pub rate: NamedRate,
    /// In whole tokens, for each entry of [`Table::denied`].
    pub capacities: Vec<i64>,
}

/// A limit worth trying.
pub struct Suggestion {
    /// The capacity in tokens.
    pub capacity: i64,
    /// The rate.
    pub rate: NamedRate,
    /// The words for the part of the keys that it denies.
    pub denied: &'static str,
    /// The most that it lets through in the time `within`.
    pub passes: i64,
    /// `an hour` or `a minute`.
    pub within: &'static str,
}

/// Returns the least capacity, in micro-tokens, at which a bucket with this rate denies none of the requests. They are of one
/// key, and sorted.
#[must_use]
pub fn needed_micro(rate: &Rate, events: &[Event]) -> i64 {
    let (mut lacking, mut refilled_at_us, mut most) = (0i64, 0, 0);
    for event in events.iter().filter(|event| event.cost_micro > 0) {
        let flow = if lacking > 0 { rate.flow(refilled_at_us, event.at_us) } else { rate.flow(0, 0) };
        lacking = lacking.saturating_sub(flow.micro);
        // As in a bucket: what remains of a refill is dated back, unless the bucket is full.
        refilled_at_us = if lacking > 0 { event.at_us - flow.carry_us } else { event.at_us };
        lacking = lacking.max(0).saturating_add(event.cost_micro);
        most = lacking.max(most);
    }
    most
}

impl Table {
    /// Computes the table for these rates, or for rates that fit the log.
    #[must_use]
    pub fn new(log: &Log, rates: &[NamedRate]) -> Self {
        let keys = log.count_keys();
        let parts = PARTS.into_iter().map(|(of, words)| (keys / of, words)).filter(|(denied, _)| *denied > 0);
        let denied: Vec<_> = [(0, "nobody")].into_iter().chain(parts).collect();
        let fitting = if rates.is_empty() { fitting_rates(log) } else { rates.to_vec() };
        let rows = fitting.into_iter().map(|rate| {
            let mut needed: Vec<i64> = log.by_key().map(|events| needed_micro(&rate.rate, events)).collect();
            needed.sort_unstable();
            let capacity = |(denied, _): &(usize, _)| {
                let micro = needed.len().checked_sub(denied + 1).and_then(|place| needed.get(place));
                tokens_up(micro.copied().unwrap_or(0))
            };
            let capacities = denied.iter().map(capacity).collect();
            Row { rate, capacities }
        });
        let rows = rows.collect();
        Self { denied, rows }
    }

    /// Suggests the limit that denies at most 1 of 1,000 keys (1 % of fewer than 1,000, none of fewer than 100), and of those
    /// the one that lets the least through in the long run.
    #[must_use]
    pub fn suggestion(&self, log: &Log) -> Option<Suggestion> {
        let (first_us, last_us) = log.span_us();
        let (within_us, within) =
            if last_us - first_us >= 4 * HOUR_US { (HOUR_US, "an hour") } else { (MINUTE_US, "a minute") };
        let column = usize::from(self.denied.len() > 1);
        let denied = self.denied.get(column)?.1;
        let suggestions = self.rows.iter().filter_map(|row| {
            let (capacity, rate) = (round_up(*row.capacities.get(column)?), row.rate.clone());
            let flow = rate.rate.flow(first_us, first_us + within_us).micro / MICRO_PER_TOKEN;
            Some(Suggestion { capacity, rate, denied, passes: capacity.saturating_add(flow), within })
        });
        suggestions.min_by_key(|suggestion| suggestion.passes)
    }
}

/// Returns two digits and zeros.
fn round_up(tokens: i64) -> i64 {
    let unit = 10i64.pow(tokens.max(1).ilog10().saturating_sub(1));
    tokens.saturating_add(unit - 1) / unit * unit
}

/// Returns whole tokens, rounded up.
fn tokens_up(micro: i64) -> i64 {
    micro / MICRO_PER_TOKEN + i64::from(micro % MICRO_PER_TOKEN > 0)
}

/// Returns round rates between the average of the busiest keys over the whole log, below which capacities grow with the
/// log, and that of the busiest minute of a key, above which only single bursts count.
fn fitting_rates(log: &Log) -> Vec<NamedRate> {
    let (first_us, last_us) = log.span_us();
    let seconds = ((last_us - first_us) as f64 / 1e6).max(1.0);
    let mut totals: Vec<i64> = log.by_key().map(|events| sum(events.iter())).collect();
    totals.sort_unstable();
    let high_total = totals.get((totals.len() * 99 / 100).min(totals.len().saturating_sub(1))).copied();
    let slowest = high_total.unwrap_or(0) as f64 / 1e6 / seconds;
    let fastest = log.by_key().map(busiest_minute_micro).max().unwrap_or(0) as f64 / 1e6 / 60.0;

    let ladder = ladder();
    let above = |bound: f64| ladder.iter().position(|(per_s, _)| *per_s >= bound).unwrap_or(ladder.len() - 1);
    let last = above(fastest).max(4);
    let first = above(slowest).saturating_sub(1).min(last - 4);
    let rungs = ladder.get(first..=last).unwrap_or_default();
    let step = rungs.len().div_ceil(MOST_ROWS);
    let rungs = rungs.iter().rev().step_by(step).rev();
    rungs.filter_map(|(_, name)| name.parse().ok()).collect()
}

/// Returns round rates and their tokens per second, from one a day to 10^9 a second.
fn ladder() -> Vec<(f64, String)> {
    let units: [(&str, f64, &[u32]); 3] = [
        ("d", 86_400.0, &[1, 2, 5, 10]),
        ("h", 3600.0, &[1, 2, 5, 10, 20, 30]),
        ("m", 60.0, &[1, 2, 5, 10, 20, 30]),
    ];
    let slow = units.into_iter().flat_map(|(unit, seconds, counts)| {
        counts.iter().map(move |count| (f64::from(*count) / seconds, format!("{count}/{unit}")))
    });
    let powers = (0..10).map(|power| 10u32.pow(power));
    let fast = powers.flat_map(|power| [1, 2, 5].map(|digit| u64::from(power) * digit));
    slow.chain(fast.map(|count| (count as f64, format!("{count}/s")))).collect()
}

fn busiest_minute_micro(events: &[Event]) -> i64 {
    let (mut within, mut most, mut oldest) = (0i64, 0, events.iter());
    let mut next = oldest.next();
    for event in events {
        within = within.saturating_add(event.cost_micro);
        while let Some(old) = next.filter(|old| old.at_us + MINUTE_US <= event.at_us) {
            within = within.saturating_sub(old.cost_micro);
            next = oldest.next();
        }
        most = within.max(most);
    }
    most
}

fn sum<'a>(events: impl Iterator<Item = &'a Event>) -> i64 {
    events.fold(0, |sum, event| sum.saturating_add(event.cost_micro))
}
