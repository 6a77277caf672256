//! How long a caller waits, beside a plain GET.

use super::{median, Bench, Effort};
use crate::approaches::{Approach, Get, SetWithExpiry, Take};
use crate::connection::Connection;
use crate::limit::Limit;
use crate::load::{run, Load};
use crate::report::{times, Section, Table};
use anyhow::Result;

const CLIENTS: [usize; 2] = [1, 16];
const BUCKETS: u64 = 10_000;
/// A user's limit, never reached.
const LIMIT: Limit = Limit { capacity: 10_000, count: 10, period_s: 1 };
const QUANTILES: [(f64, &str); 3] = [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")];

pub fn steps(effort: &Effort) -> usize {
    effort.rounds * CLIENTS.len()
}

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let mut table = Table::new(&["clients", "quantile", "GET µs", "TB.TAKE µs", "TB.TAKE / GET"]);
    for clients in CLIENTS {
        let load = Load { clients, buckets: BUCKETS, limit: LIMIT, duration: bench.effort.latency };
        let rounds = rounds(bench, load)?;
        for (place, (_, name)) in QUANTILES.iter().enumerate() {
            let of = |side: usize| median(rounds.iter().map(|round| round[side][place]).collect());
            let (get, take) = (of(0), of(1));
            let cells = [clients.to_string(), (*name).to_owned(), format!("{get:.1}"), format!("{take:.1}")];
            table.row(cells.into_iter().chain([times(take / get)]));
        }
    }
    Ok(Section {
        name: "latency",
        title: "Latency beside GET",
        text: format!(
            "Without pipelining, {BUCKETS} keys that are there; GET and TB.TAKE take turns, and of each the median of {} rounds \
             is given.",
            bench.effort.rounds
        ),
        table,
        groups: 0,
        plots: Vec::new(),
    })
}

/// The quantiles of each round, in microseconds: GET's and TB.TAKE's.
fn rounds(bench: &mut Bench, load: Load) -> Result<Vec<[Vec<f64>; 2]>> {
    (1..=bench.effort.rounds)
        .map(|round| {
            bench.progress.step(format_args!("latency, {} clients, round {round}", load.clients));
            Ok([quantiles_us(bench, &Get, &SetWithExpiry, load)?, quantiles_us(bench, &Take, &Take, load)?])
        })
        .collect()
}

fn quantiles_us(
    bench: &mut Bench,
    approach: &dyn Approach,
    filler: &dyn Approach,
    load: Load,
) -> Result<Vec<f64>> {
    let server = bench.server(approach)?;
    fill(&mut server.connect()?, filler)?;
    let outcome = run(server, approach, load)?;
    Ok(QUANTILES.iter().map(|(quantile, _)| outcome.latency_us(*quantile)).collect())
}

fn fill(connection: &mut Connection, filler: &dyn Approach) -> Result<()> {
    super::fill(connection, filler, 0..BUCKETS, LIMIT)
}
