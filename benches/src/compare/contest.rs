//! Decisions without pipelining, as applications make them.

use super::{in_turns, Bench};
use crate::approaches::Approach;
use crate::load::{run, Load, Outcome};
use crate::plot::{Bar, Lines, Series};
use crate::report::{times, whole, Section, Table};
use crate::template::Limit;
use std::time::Duration;

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

pub fn measure(bench: &mut Bench) -> Section {
    let mut scores = Vec::new();
    for keys in &KEYS {
        for clients in CLIENTS {
            scores.extend(compete(bench, keys, clients));
        }
    }
    let text = "Each client has a connection of its own and wants one decision after the other, without pipelining; all of \
        them are allowed. The approaches take turns, and of each its round of median speed is given. Latency is from a \
        decision's first command to its last reply. *Errors* are error replies, and decisions that WATCH gave up after 20 \
        retries. *Server CPU* is the processor time of the server's process, user and system; reading and writing connections \
        is most of it, for every approach.";
    Section::new("decisions", "Decisions by concurrent clients", text, table(&scores))
        .grouped_by(2)
        .plot("decisions", speed(&scores, &bench.caption))
        .plot("server-cpu", processor_time(&scores, &bench.caption))
}

/// All approaches, several times over.
fn compete(bench: &mut Bench, keys: &'static Keys, clients: usize) -> Vec<Score> {
    let (approaches, what) = (bench.approaches.clone(), format!("{}, {clients} clients", keys.name));
    let rounds =
        in_turns(bench.pick(3, 1), &what, &approaches, |approach| decide(bench, approach, keys, clients));
    let scores = approaches.iter().zip(rounds).map(|(approach, outcomes)| Score {
        keys: keys.name,
        clients,
        approach: approach.name.clone(),
        outcome: middle(outcomes),
    });
    scores.collect()
}

fn decide(bench: &mut Bench, approach: &Approach, keys: &Keys, clients: usize) -> Outcome {
    let duration = bench.pick(Duration::from_secs(1), Duration::from_millis(200));
    let load = Load { clients, buckets: keys.buckets, limit: keys.limit, duration: Some(duration) };
    let server = bench.server(approach.module);
    run(server, approach, Load { duration: Some(duration / 10), ..load });
    let outcome = run(server, approach, load);
    // A denial is less work than a decision that is allowed: nobody may get away with it.
    let denied = outcome.decisions - outcome.allowed - outcome.errors;
    assert_eq!(denied, 0, "{} denied some", approach.name);
    outcome
}

/// The round of median speed.
fn middle(mut outcomes: Vec<Outcome>) -> Outcome {
    outcomes.sort_by(|one, other| one.decisions_a_second().total_cmp(&other.decisions_a_second()));
    outcomes.swap_remove(outcomes.len() / 2)
}

fn table(scores: &[Score]) -> Table {
    let mut table = Table::new("keys | clients | approach | decisions/s | ns/decision | p50 µs | p99 µs | p99.9 µs | commands/decision | retries | errors | server CPU µs/decision");
    for Score { keys, clients, approach, outcome } in scores {
        let quantiles = [0.5, 0.99, 0.999].map(|quantile| format!("{:.0}", outcome.latency_us(quantile)));
        let [p50, p99, p999] = quantiles;
        table.row([
            (*keys).to_owned(),
            if *clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") },
            approach.clone(),
            whole(outcome.decisions_a_second()),
            whole(1e9 / outcome.decisions_a_second()),
            p50,
            p99,
            p999,
            format!("{:.2}", outcome.commands_per_decision()),
            whole(outcome.retries as f64),
            whole(outcome.errors as f64),
            format!("{:.2}", outcome.cpu_us_per_decision()),
        ]);
    }
    table
}

fn speed(scores: &[Score], caption: &str) -> String {
    let panel = |keys: &Keys| {
        let of_keys = scores.iter().filter(|score| score.keys == keys.name);
        let names = of_keys.clone().filter(|score| score.clients == CLIENTS[0]);
        let lines = names.map(|Score { approach, .. }| {
            let values = of_keys.clone().filter(|score| score.approach == *approach);
            let values = values.map(|score| score.outcome.decisions_a_second()).collect();
            Series { name: approach.clone(), values }
        });
        lines.collect()
    };
    let lines = Lines {
        places: CLIENTS.map(|clients| clients.to_string()).to_vec(),
        places_are: "concurrent clients",
        values_are: "decisions a second",
        panels: KEYS.iter().map(|keys| (keys.name, panel(keys))).collect(),
    };
    lines.plot("Decisions a second, without pipelining", caption)
}

fn processor_time(scores: &[Score], caption: &str) -> String {
    let drawn = |score: &&Score| score.clients == DRAWN_CLIENTS && score.keys == KEYS[1].name;
    let costs = scores.iter().filter(drawn);
    let costs = costs.map(|score| (&score.approach, score.outcome.cpu_us_per_decision()));
    let own = costs.clone().next().map_or(1.0, |(_, cost)| cost);
    let bars = costs.map(|(approach, cost)| {
        Bar::new(approach, cost, |cost| format!("{cost:.1} µs, {}", times(cost / own)))
    });
    Bar::plot("Server processor time for a decision: 64 clients, a key per user", caption, bars, None)
}
