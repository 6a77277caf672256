//! Decisions without pipelining, as applications make them.

use super::{in_turns, Bench};
use crate::approaches::Approach;
use crate::load::{run, Load, Outcome};
use crate::plot::{Lines, Series};
use crate::report::{whole, Section, Table};
use crate::template::Limit;
use std::time::Duration;

const CLIENTS: [(usize, &str); 4] =
    [(1, "1 client"), (16, "16 clients"), (64, "64 clients"), (256, "256 clients")];

/// Which buckets decisions are wanted on. Everything is allowed, so that every approach does all of its work.
pub struct Keys {
    pub name: &'static str,
    buckets: u64,
    pub limit: Limit,
}

pub const KEYS: [Keys; 2] = [
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

pub fn measure(bench: &mut Bench) -> Section {
    let mut table = Table::new("keys | clients | approach | decisions/s | ns/decision | p50 µs | p99 µs | p99.9 µs | commands/decision | retries | errors | server CPU µs/decision");
    let approaches = bench.approaches.clone();
    for keys in &KEYS {
        for (clients, shown) in CLIENTS {
            let what = format!("{}, {shown}", keys.name);
            let rounds = bench.pick(3, 1);
            let outcomes =
                in_turns(rounds, &what, &approaches, |approach| decide(bench, approach, keys, clients));
            for (approach, outcomes) in approaches.iter().zip(outcomes) {
                let group = [keys.name, shown, &approach.name].map(str::to_owned);
                table.row(group.into_iter().chain(figures(&middle(outcomes))));
            }
        }
    }
    let text = "Each client has a connection of its own and wants one decision after the other, without pipelining; all of \
        them are allowed. The approaches take turns, and of each its round of median speed is given. Latency is from a \
        decision's first command to its last reply. *Errors* are error replies, and decisions that WATCH gave up after 20 \
        retries. *Server CPU* is the processor time of the server's process, user and system; reading and writing connections \
        is most of it, for every approach.";
    let speed = speed(&table, &bench.caption);
    let title = "Server processor time for a decision: 64 clients, a key per user";
    Section::new("decisions", "Decisions by concurrent clients", text, table)
        .grouped_by(2)
        .plot("decisions", speed)
        .bars(
            ("server-cpu", title),
            &[KEYS[1].name, "64 clients"],
            ("server CPU µs/decision", " µs"),
            &bench.caption,
        )
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
pub fn middle(mut outcomes: Vec<Outcome>) -> Outcome {
    outcomes.sort_by(|one, other| one.decisions_a_second().total_cmp(&other.decisions_a_second()));
    outcomes.swap_remove(outcomes.len() / 2)
}

fn figures(outcome: &Outcome) -> [String; 9] {
    let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|quantile| format!("{:.0}", outcome.latency_us(quantile)));
    [
        whole(outcome.decisions_a_second()),
        whole(1e9 / outcome.decisions_a_second()),
        p50,
        p99,
        p999,
        format!("{:.2}", outcome.commands_per_decision()),
        whole(outcome.retries as f64),
        whole(outcome.errors as f64),
        format!("{:.2}", outcome.cpu_us_per_decision()),
    ]
}

fn speed(table: &Table, caption: &str) -> String {
    let panel = |keys: &Keys| {
        let columns = CLIENTS.map(|(_, shown)| table.numbers(&[keys.name, shown], "decisions/s"));
        let line = |place: usize| Series {
            name: columns[0][place].0.clone(),
            values: columns.iter().map(|column| column[place].1).collect(),
        };
        (keys.name, (0..columns[0].len()).map(line).collect())
    };
    let lines = Lines {
        places: CLIENTS.map(|(clients, _)| clients.to_string()).to_vec(),
        places_are: "concurrent clients",
        values_are: "decisions a second",
        panels: KEYS.iter().map(panel).collect(),
    };
    lines.plot("Decisions a second, without pipelining", caption)
}
