//! Decisions without pipelining, as applications make them.

use super::Bench;
use crate::approaches::Approach;
use crate::limit::Limit;
use crate::load::{run, Load, Outcome};
use crate::plot::{Bar, Bars, Lines, Panel, Series};
use crate::report::{times, whole, Section, Table};
use anyhow::{ensure, Result};

const CLIENTS: [usize; 4] = [1, 16, 64, 256];

/// The load whose processor time is drawn.
const DRAWN_CLIENTS: usize = 64;

/// Which buckets decisions are wanted on. Everything is allowed, so that every approach does all of its work.
struct Keys {
    name: &'static str,
    buckets: u64,
    limit: Limit,
}

const KEYS: [Keys; 2] = [
    Keys {
        name: "one hot key",
        buckets: 1,
        limit: Limit { capacity: 10_000_000, count: 100_000, period_s: 1 },
    },
    Keys {
        name: "a key per user, 10,000 users",
        buckets: 10_000,
        limit: Limit { capacity: 1000, count: 100, period_s: 1 },
    },
];

/// One approach under one load.
struct Score {
    keys: &'static str,
    clients: usize,
    approach: String,
    outcome: Outcome,
}

pub fn steps(approaches: usize) -> usize {
    KEYS.len() * CLIENTS.len() * approaches
}

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let mut results = Vec::new();
    let approaches = bench.approaches.clone();
    for keys in &KEYS {
        for clients in CLIENTS {
            for approach in approaches.iter() {
                bench.progress.step(format_args!("{}, {clients} clients: {}", keys.name, approach.name()));
                let (buckets, limit, duration) = (keys.buckets, keys.limit, bench.effort.contest);
                let load = Load { clients, buckets, limit, duration };
                let server = bench.server(approach.as_ref())?;
                run(server, approach.as_ref(), Load { duration: duration / 10, ..load })?;
                let outcome = run(server, approach.as_ref(), load)?;
                check(approach.as_ref(), &outcome)?;
                results.push(Score {
                    keys: keys.name,
                    clients,
                    approach: approach.name().to_owned(),
                    outcome,
                });
            }
        }
    }
    Ok(Section {
        name: "decisions",
        title: "Decisions by concurrent clients",
        text: text(),
        table: table(&results),
        groups: 2,
        plots: vec![
            ("decisions".to_owned(), speed(&results, &bench.caption)),
            ("server-cpu".to_owned(), processor_time(&results, &bench.caption)),
        ],
    })
}

/// A denial is less work than a decision that is allowed: nobody may get away with it.
fn check(approach: &dyn Approach, outcome: &Outcome) -> Result<()> {
    let denied = outcome.decisions - outcome.allowed - outcome.errors;
    ensure!(denied == 0 || !approach.has_any_limit(), "{} denied {denied} decisions", approach.name());
    Ok(())
}

fn text() -> String {
    "Each client has a connection of its own and wants one decision after the other, without pipelining; all of them are \
     allowed. Latency is from a decision's first command to its last reply. *Errors* are error replies, and decisions \
     that WATCH gave up after 20 retries. *Server CPU* is the processor time of the server's process, user and system; \
     reading and writing connections is most of it, for every approach."
        .to_owned()
}

fn table(results: &[Score]) -> Table {
    let mut table = Table::new(&[
        "keys",
        "clients",
        "approach",
        "decisions/s",
        "ns/decision",
        "p50 µs",
        "p99 µs",
        "p99.9 µs",
        "commands/decision",
        "retries",
        "errors",
        "server CPU µs/decision",
    ]);
    for Score { keys, clients, approach, outcome } in results {
        table.row([
            (*keys).to_owned(),
            if *clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") },
            approach.clone(),
            whole(outcome.decisions_a_second()),
            whole(1e9 / outcome.decisions_a_second()),
            format!("{:.0}", outcome.latency_us(0.5)),
            format!("{:.0}", outcome.latency_us(0.99)),
            format!("{:.0}", outcome.latency_us(0.999)),
            format!("{:.2}", outcome.per_decision(outcome.commands as f64)),
            whole(outcome.retries as f64),
            whole(outcome.errors as f64),
            format!("{:.2}", outcome.per_decision(outcome.server_cpu_us)),
        ]);
    }
    table
}

fn speed(results: &[Score], caption: &str) -> String {
    let series = |keys: &Keys, approach: &str| Series {
        name: approach.to_owned(),
        values: results
            .iter()
            .filter(|result| result.keys == keys.name && result.approach == approach)
            .map(|result| result.outcome.decisions_a_second())
            .collect(),
    };
    let mut names: Vec<&str> = results.iter().map(|result| result.approach.as_str()).collect();
    names.truncate(results.len() / (KEYS.len() * CLIENTS.len()));
    let panel = |keys: &'static Keys| Panel {
        title: keys.name,
        series: names.iter().map(|name| series(keys, name)).collect(),
    };
    Lines {
        title: "Decisions a second, without pipelining",
        caption,
        places: CLIENTS.map(|clients| clients.to_string()).to_vec(),
        places_are: "concurrent clients",
        values_are: "decisions a second",
        panels: KEYS.iter().map(panel).collect(),
    }
    .svg()
}

fn processor_time(results: &[Score], caption: &str) -> String {
    let drawn =
        results.iter().filter(|result| result.clients == DRAWN_CLIENTS && result.keys == KEYS[1].name);
    let cost = |result: &Score| result.outcome.per_decision(result.outcome.server_cpu_us);
    let own = drawn.clone().find(|result| Bar::is_own(&result.approach)).map_or(1.0, cost);
    let bar = |result: &Score| Bar {
        label: result.approach.clone(),
        value: cost(result),
        text: format!("{:.1} µs, {}", cost(result), times(cost(result) / own)),
        own: Bar::is_own(&result.approach),
    };
    Bars {
        title: "Server processor time for a decision: 64 clients, a key per user",
        caption,
        bars: drawn.map(bar).collect(),
        mark: None,
    }
    .svg()
}
