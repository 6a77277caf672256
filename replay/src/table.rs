//! The capacities at which limits of several rates would have denied a part of the keys.
//!
//! A bucket of any capacity that denies nothing lacks the same number of tokens after each request: what came before, less
//! what flowed in, and the cost. This is the backlog of a leaky bucket. Its maximum over the requests of a key is the least
//! capacity at which the key is never denied: the burst σ for the rate ρ of network calculus (Cruz, 1991). So one pass over
//! the requests gives it exactly. The flow is that of the module's own arithmetic, with all its rounding.

use serde::Serialize;
use tokenbucket_core::number::MICRO_PER_TOKEN;
use tokenbucket_core::rate::Rate;

use crate::log::{Event, Log};
use crate::options::Named;

const MINUTE_US: i64 = 60_000_000;
const HOUR_US: i64 = 60 * MINUTE_US;
/// The most rates in a table.
const MOST_ROWS: usize = 12;

/// The parts of the keys for which capacities are shown, as one of so many.
const PARTS: [(usize, &str); 4] = [(1000, "1 of 1,000"), (100, "1 %"), (20, "5 %"), (10, "10 %")];

#[derive(Serialize)]
pub struct Table {
    /// How many of the keys a limit denies. The first is nobody.
    pub denied: Vec<Part>,
    pub rows: Vec<Row>,
}

/// A part of the keys.
#[derive(Serialize)]
pub struct Part {
    /// At most so many.
    pub keys: usize,
    /// In words.
    part: &'static str,
}

#[derive(Serialize)]
pub struct Row {
    pub rate: Named<Rate>,
    /// In whole tokens, for each entry of [`Table::denied`].
    pub capacities: Vec<i64>,
}

/// A limit worth trying.
#[derive(Serialize)]
pub struct Suggestion {
    pub capacity: i64,
    pub rate: Named<Rate>,
    /// The words for the part of the keys that it denies.
    denies: &'static str,
    /// The most that it lets through in the time `within`.
    passes: i64,
    /// `an hour` or `a minute`.
    within: &'static str,
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
    pub fn new(log: &Log, rates: &[Named<Rate>]) -> Self {
        let keys = log.count_keys();
        let parts = PARTS.into_iter().map(|(of, part)| Part { keys: keys / of, part });
        let nobody = [Part { keys: 0, part: "nobody" }];
        let denied: Vec<Part> = nobody.into_iter().chain(parts.filter(|part| part.keys > 0)).collect();
        let rates = if rates.is_empty() { fitting_rates(log) } else { rates.to_vec() };
        let rows = rates.into_iter().map(|rate| {
            let mut needed: Vec<i64> = log.by_key().map(|events| needed_micro(&rate.value, events)).collect();
            needed.sort_unstable();
            let capacity = |part: &Part| {
                let micro = needed.iter().nth_back(part.keys).copied().unwrap_or(0);
                micro / MICRO_PER_TOKEN + i64::from(micro % MICRO_PER_TOKEN > 0)
            };
            let capacities = denied.iter().map(capacity).collect();
            Row { rate, capacities }
        });
        Self { rows: rows.collect(), denied }
    }

    /// Suggests the limit that denies at most 1 of 1,000 keys (1 % of fewer than 1,000, none of fewer than 100), and of those
    /// the one that lets the least through in the long run.
    #[must_use]
    pub fn suggestion(&self, log: &Log) -> Option<Suggestion> {
        let (first_us, last_us) = log.span_us();
        let (within_us, within) =
            if last_us - first_us >= 4 * HOUR_US { (HOUR_US, "an hour") } else { (MINUTE_US, "a minute") };
        let column = usize::from(self.denied.len() > 1);
        let denies = self.denied.get(column)?.part;
        let suggestions = self.rows.iter().filter_map(|row| {
            let (capacity, rate) = (round_up(*row.capacities.get(column)?), row.rate.clone());
            let flow = rate.value.flow(first_us, first_us + within_us).micro / MICRO_PER_TOKEN;
            Some(Suggestion { capacity, rate, denies, passes: capacity.saturating_add(flow), within })
        });
        suggestions.min_by_key(|suggestion| suggestion.passes)
    }
}

/// Returns two digits and zeros.
fn round_up(tokens: i64) -> i64 {
    let unit = 10i64.pow(tokens.max(1).ilog10().saturating_sub(1));
    tokens.saturating_add(unit - 1) / unit * unit
}

/// Returns round rates between the average of the busiest keys over the whole log, below which capacities grow with the
/// log, and that of the busiest minute of a key, above which only single bursts count.
fn fitting_rates(log: &Log) -> Vec<Named<Rate>> {
    let (first_us, last_us) = log.span_us();
    let seconds = ((last_us - first_us) as f64 / 1e6).max(1.0);
    let sum = |events: &[Event]| events.iter().fold(0i64, |sum, event| sum.saturating_add(event.cost_micro));
    let mut totals: Vec<i64> = log.by_key().map(sum).collect();
    totals.sort_unstable();
    let high_total = totals.iter().nth_back(totals.len().div_ceil(100).saturating_sub(1));
    let slowest = high_total.copied().unwrap_or(0) as f64 / 1e6 / seconds;
    let fastest = log.by_key().map(busiest_minute_micro).max().unwrap_or(0) as f64 / 1e6 / 60.0;

    let rungs: Vec<(f64, String)> = ladder().collect();
    let above = |bound: f64| rungs.iter().position(|(per_s, _)| *per_s >= bound).unwrap_or(rungs.len() - 1);
    let last = above(fastest).max(4);
    let first = above(slowest).saturating_sub(1).min(last - 4);
    let rungs = rungs.get(first..=last).unwrap_or_default();
    let step = rungs.len().div_ceil(MOST_ROWS);
    rungs.iter().rev().step_by(step).rev().filter_map(|(_, name)| name.parse().ok()).collect()
}

/// Returns round rates and their tokens per second, from one a day to 10^9 a second.
fn ladder() -> impl Iterator<Item = (f64, String)> {
    let slow = [("d", 86_400.0, 10), ("h", 3600.0, 30), ("m", 60.0, 30)].into_iter().flat_map(
        |(unit, seconds, most)| {
            let counts = [1, 2, 5, 10, 20, 30].into_iter().filter(move |count| *count <= most);
            counts.map(move |count| (f64::from(count) / seconds, format!("{count}/{unit}")))
        },
    );
    let fast = (0..10).flat_map(|power| [1, 2, 5].map(|digit| digit * 10u64.pow(power)));
    slow.chain(fast.map(|count| (count as f64, format!("{count}/s"))))
}

fn busiest_minute_micro(events: &[Event]) -> i64 {
    let (mut within, mut most, mut oldest) = (0i64, 0, events.iter().peekable());
    for event in events {
        within = within.saturating_add(event.cost_micro);
        while let Some(old) = oldest.next_if(|old| old.at_us + MINUTE_US <= event.at_us) {
            within = within.saturating_sub(old.cost_micro);
        }
        most = within.max(most);
    }
    most
}
