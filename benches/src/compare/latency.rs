//! How long a caller waits, beside a plain GET.

use super::{in_turns, Bench};
use crate::approaches::{get, integer_with_expiry, take, Approach};
use crate::load::{run, Load};
use crate::report::{median, times, Section, Table};
use crate::template::Limit;
use std::time::Duration;

const CLIENTS: [usize; 2] = [1, 16];
const BUCKETS: u64 = 10_000;
/// A user's limit, never reached.
const LIMIT: Limit = Limit { capacity: 10_000, count: 10, period_s: 1 };
const QUANTILES: [(f64, &str); 3] = [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")];

pub fn measure(bench: &mut Bench) -> Section {
    let (get, set, take) = (get(), integer_with_expiry(), take());
    let mut table = Table::new("clients | quantile | GET µs | TB.TAKE µs | TB.TAKE / GET");
    for clients in CLIENTS {
        let what = format!("latency, {clients} clients");
        let rounds = in_turns(bench.rounds, &what, &[(&get, &set), (&take, &take)], |(approach, filler)| {
            quantiles_us(bench, approach, filler, clients)
        });
        for (place, (_, name)) in QUANTILES.iter().enumerate() {
            let of =
                |rounds: &[[f64; 3]]| median(&rounds.iter().map(|round| round[place]).collect::<Vec<_>>());
            let (get, take) = (of(&rounds[0]), of(&rounds[1]));
            let figures = [format!("{get:.1}"), format!("{take:.1}"), times(take / get)];
            table.row([clients.to_string(), (*name).to_owned()].into_iter().chain(figures));
        }
    }
    let text = format!(
        "Without pipelining, {BUCKETS} keys that are there; GET and TB.TAKE take turns, and of each the median of {} rounds \
         is given.",
        bench.rounds
    );
    Section::new("latency", "Latency beside GET", text, table)
}

/// The quantiles of one round, in microseconds.
fn quantiles_us(bench: &mut Bench, approach: &Approach, filler: &Approach, clients: usize) -> [f64; 3] {
    let duration = Duration::from_millis(bench.pick(1000, 300));
    let load = Load { clients, buckets: BUCKETS, limit: LIMIT, duration: Some(duration) };
    let server = bench.server(approach.module);
    run(server, filler, Load { duration: None, ..load });
    let outcome = run(server, approach, load);
    QUANTILES.map(|(quantile, _)| outcome.latency_us(quantile))
}
