//! Decisions without pipelining, as applications make them.

use super::*;
use crate::approaches::{GET, INTEGER_WITH_EXPIRY, IN_BATCHES, OWN, REMEMBERING};
use crate::load::Outcome;

const CLIENTS: [(usize, &str); 4] =
    [(1, "1 client"), (16, "16 clients"), (64, "64 clients"), (256, "256 clients")];
const MANY: usize = 64;

/// On which buckets all decisions are allowed, so that every approach does all of its work: what they are called, how
/// many they are, and their limit.
const KEYS: [(&str, u64, Limit); 2] = [
    ("one hot key", 1, Limit { capacity: 10_000_000, count: 100_000, period_s: 1 }),
    ("a key per user, 10,000 users", 10_000, Limit { capacity: 1000, count: 100, period_s: 1 }),
];
/// What is scarce.
const SCARCE: Limit = Limit { capacity: 10, count: 10, period_s: 1 };

pub fn decisions(bench: &mut Bench, approaches: &[Approach]) -> Table {
    let mut table = Table::new("decisions", Plot::Lines("Decisions a second, without pipelining", "decisions/s"), "keys | clients || approach | decisions/s | ns/decision | p50 µs | p99 µs | p99.9 µs | commands/decision | retries | errors | server CPU µs/decision");
    let duration = bench.pick(Duration::from_secs(1), Duration::from_millis(200));
    for (keys, buckets, limit) in KEYS {
        for (clients, shown) in CLIENTS {
            let load = Load { clients, buckets, limit, duration: Some(duration) };
            let outcomes = compete(bench, &format!("{keys}, {shown}"), approaches, |bench, approach| {
                let outcome = bench.on_server(approach.module, |server| {
                    run_load(server, approach, Load { duration: Some(duration / 10), ..load });
                    run_load(server, approach, load)
                });
                // A denial is less work than a decision that is allowed: nobody may get away with it.
                let denied = outcome.decisions - outcome.allowed - outcome.errors;
                assert_eq!(denied, 0, "{} denied some", approach.name);
                outcome
            });
            for (outcome, approach) in outcomes.iter().zip(approaches) {
                table.row(&[keys, shown, approach.name], figures(outcome));
            }
        }
    }
    table
}

/// Of each approach the round of median speed.
fn compete(
    bench: &mut Bench,
    what: &str,
    approaches: &[Approach],
    decide: impl FnMut(&mut Bench, &Approach) -> Outcome,
) -> Vec<Outcome> {
    let rounds = bench.pick(3, 1);
    let middle = |mut outcomes: Vec<Outcome>| {
        outcomes.sort_by(|one, other| one.decisions_a_second().total_cmp(&other.decisions_a_second()));
        outcomes.swap_remove(rounds / 2)
    };
    bench.in_turns(rounds, what, approaches, decide).into_iter().map(middle).collect()
}

fn figures(outcome: &Outcome) -> [String; 9] {
    let us = |quantile| format!("{:.0}", outcome.latency_us(quantile));
    [
        whole(outcome.decisions_a_second()),
        whole(1e9 / outcome.decisions_a_second()),
        us(0.5),
        us(0.99),
        us(0.999),
        format!("{:.2}", outcome.commands_per_decision()),
        whole(outcome.retries),
        whole(outcome.errors),
        format!("{:.2}", outcome.cpu_us_per_decision()),
    ]
}

/// How much passes that should not, when many clients want it at once.
pub fn over_grant(bench: &mut Bench, approaches: &[Approach]) -> Table {
    let columns = "approach | decisions | errors | allowed | possible | over % | under by";
    let mut table = Table::new(
        "over-grant",
        Plot::Bars("Allowed by 64 clients that want all of one key", &[], "allowed"),
        columns,
    );
    // Not whole tokens' worth: whether the last token came before the end must not be a matter of microseconds.
    let duration = Duration::from_millis(bench.pick(3050, 1050));
    let load = Load { clients: MANY, buckets: 1, limit: SCARCE, duration: Some(duration) };
    for approach in approaches {
        note(format_args!("over-grant: {}", approach.name));
        let outcome = bench.on_server(approach.module, |server| run_load(server, approach, load));
        let (possible, allowed) = (outcome.possible(), outcome.allowed);
        let over = format!("{:.2}", outcome.over_percent());
        let [decisions, errors] = [outcome.decisions, outcome.errors].map(whole);
        let under = whole(possible.saturating_sub(allowed));
        table.row(&[approach.name], [decisions, errors, whole(allowed), whole(possible), over, under]);
    }
    table
}

/// One hot key, when clients decide what they can by themselves.
pub fn local(bench: &mut Bench) -> Table {
    let mut table = Table::new("local", Plot::None, "the key || approach | decisions/s | allowed/s | possible/s | over % | commands/decision | server CPU µs/decision");
    let approaches = [OWN, IN_BATCHES, REMEMBERING];
    // Not whole tokens' worth, as above.
    let duration = Some(Duration::from_millis(bench.pick(1050, 250)));
    for (key, limit) in [("has plenty", KEYS[0].2), ("is empty", SCARCE)] {
        let load = Load { clients: MANY, buckets: 1, limit, duration };
        let what = format!("local decisions, the key {key}");
        let outcomes = compete(bench, &what, &approaches, |bench, approach| {
            run_load(bench.server(approach.module), approach, load)
        });
        for (outcome, approach) in outcomes.iter().zip(&approaches) {
            let counts = [outcome.decisions, outcome.allowed, outcome.possible()];
            let figures = [
                format!("{:.2}", outcome.over_percent()),
                format!("{:.4}", outcome.commands_per_decision()),
                format!("{:.3}", outcome.cpu_us_per_decision()),
            ];
            let a_second = counts.map(|count| whole(outcome.a_second(count)));
            table.row(&[key, approach.name], a_second.into_iter().chain(figures));
        }
    }
    table
}

/// How long a caller waits, beside a plain GET.
pub fn latency(bench: &mut Bench) -> Table {
    const BUCKETS: u64 = 10_000;
    // A user's limit, never reached.
    let limit = Limit { capacity: 10_000, count: 10, period_s: 1 };
    let quantiles = [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")];
    let mut table =
        Table::new("latency", Plot::None, "clients | quantile | GET µs | TB.TAKE µs | TB.TAKE / GET");
    let duration = Some(Duration::from_millis(bench.pick(1000, 300)));
    for clients in [1, 16] {
        let load = Load { clients, buckets: BUCKETS, limit, duration };
        let (what, turns) = (format!("latency, {clients} clients"), [(GET, INTEGER_WITH_EXPIRY), (OWN, OWN)]);
        let rounds = bench.in_turns(bench.rounds, &what, &turns, |bench, (approach, filler)| {
            let server = bench.server(approach.module);
            run_load(server, filler, Load { duration: None, ..load });
            run_load(server, approach, load)
        });
        for (quantile, name) in quantiles {
            let us = |rounds: &[Outcome]| median(rounds.iter().map(|outcome| outcome.latency_us(quantile)));
            let (get, take) = (us(&rounds[0]), us(&rounds[1]));
            let figures = [format!("{get:.1}"), format!("{take:.1}"), times(take / get)];
            table.row(&[&clients.to_string(), name], figures);
        }
    }
    table
}
