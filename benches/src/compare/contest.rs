//! Decisions without pipelining, as applications make them.

use super::{Bench, Effort};
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

pub fn steps(effort: &Effort, approaches: usize) -> usize {
    KEYS.len() * CLIENTS.len() * effort.contest_rounds * approaches
}

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let mut results = Vec::new();
    for keys in &KEYS {
        for clients in CLIENTS {
            results.extend(compete(bench, keys, clients)?);
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

/// All approaches in turn, several times over: what disturbs the machine for a while disturbs all of them.
fn compete(bench: &mut Bench, keys: &'static Keys, clients: usize) -> Result<Vec<Score>> {
    let approaches = bench.approaches.clone();
    let mut rounds: Vec<Vec<Outcome>> = approaches.iter().map(|_| Vec::new()).collect();
    for round in 1..=bench.effort.contest_rounds {
        for (approach, outcomes) in approaches.iter().zip(&mut rounds) {
            let (keys_name, name) = (keys.name, approach.name());
            bench.progress.step(format_args!("{keys_name}, {clients} clients, round {round}: {name}"));
            outcomes.push(decide(bench, approach.as_ref(), keys, clients)?);
        }
    }
    let mut scores = Vec::new();
    for (approach, outcomes) in approaches.iter().zip(rounds) {
        let (approach, outcome) = (approach.name().to_owned(), middle(outcomes));
        scores.push(Score { keys: keys.name, clients, approach, outcome });
    }
    Ok(scores)
}

fn decide(bench: &mut Bench, approach: &dyn Approach, keys: &Keys, clients: usize) -> Result<Outcome> {
    let load = Load { clients, buckets: keys.buckets, limit: keys.limit, duration: bench.effort.contest };
    let server = bench.server(approach)?;
    run(server, approach, Load { duration: load.duration / 10, ..load })?;
    let outcome = run(server, approach, load)?;
    check(approach, &outcome)?;
    Ok(outcome)
}

/// The round of median speed.
fn middle(mut outcomes: Vec<Outcome>) -> Outcome {
    outcomes.sort_by(|one, other| one.decisions_a_second().total_cmp(&other.decisions_a_second()));
    outcomes.swap_remove(outcomes.len() / 2)
}

/// A denial is less work than a decision that is allowed: nobody may get away with it.
fn check(approach: &dyn Approach, outcome: &Outcome) -> Result<()> {
    let denied = outcome.decisions - outcome.allowed - outcome.errors;
    ensure!(denied == 0 || !approach.has_any_limit(), "{} denied {denied} decisions", approach.name());
    Ok(())
}

fn text() -> String {
    "Each client has a connection of its own and wants one decision after the other, without pipelining; all of them are \
     allowed. The approaches take turns, and of each its round of median speed is given. Latency is \
     from a decision's first command to its last reply. *Errors* are error replies, and decisions that WATCH gave up \
     after 20 retries. *Server CPU* is the processor time of the server's process, user and system; reading and writing \
     connections is most of it, for every approach."
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
