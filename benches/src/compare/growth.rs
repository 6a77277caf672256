//! What a call costs as the number of buckets grows.

use super::{tidy, Bench};
use crate::approaches::{take, TAKE};
use crate::calls::{Call, Shape, INCR, PLAIN};
use crate::common::Server;
use crate::load::{run, Load};
use crate::plot::{Lines, Series};
use crate::report::{median, note, times, whole, Section, Table};
use crate::server::{us_per_call, wait_for_hash_tables, wait_until_settled, Module};
use crate::template::Limit;
use fastrand::Rng;
use std::time::Duration;

/// Clients without pipelining.
const CLIENTS: usize = 16;
/// Calls in one write, with it.
const PIPELINE: usize = 64;
const LIMIT: Limit = Limit { capacity: 1_000_000, count: 1, period_s: 1 };

/// What a call costs at one number of keys, in microseconds.
struct Cost {
    /// In the command, by the server's own count.
    in_call_us: f64,
    /// Of the server's process, reading and sending included, without pipelining.
    process_us: f64,
}

pub fn measure(bench: &Bench) -> Section {
    // Half empty, and refilled within a week: no measured call makes a difference to when the key has to expire.
    let take = Call {
        name: "TB.TAKE",
        call: TAKE,
        before: "TB.TAKE {key} {capacity} {rate} 500000",
        limit: LIMIT,
        ..PLAIN
    };
    // With an expiry, as a counter that limits has.
    let incr = Call { before: "SET {key} 1 EX 500000", ..Call::named(INCR) };
    let [take, incr] = [costs(bench, &take), costs(bench, &incr)];
    let mut table = Table::new("buckets | TB.TAKE, server CPU µs | to the first | TB.TAKE, in the call µs | to the first | INCR, in the call µs | to the first");
    for ((keys, of_take), of_incr) in sizes(bench).iter().zip(&take).zip(&incr) {
        let columns = [
            (of_take.process_us, take[0].process_us),
            (of_take.in_call_us, take[0].in_call_us),
            (of_incr.in_call_us, incr[0].in_call_us),
        ];
        let cells = columns.into_iter().flat_map(|(cost, first)| [format!("{cost:.3}"), times(cost / first)]);
        table.row([whole(*keys as f64)].into_iter().chain(cells));
    }
    let text = format!(
        "What a call on a random one of so many keys costs. *Server CPU* is the processor time of the server's process for a \
         decision by {CLIENTS} clients without pipelining; *in the call* is the server's own count (`INFO commandstats`), \
         where pipelined calls find little in the processor's caches. INCR, of a key with an expiry, shows \
         what the server's tables and the machine's memory do to any command. The median of {} rounds.",
        bench.rounds
    );
    Section::new("growth", "Growth", text, table)
        .plot("growth", plot(bench, [("TB.TAKE", take), (INCR, incr)]))
}

/// The numbers of keys.
fn sizes(bench: &Bench) -> &'static [u64] {
    const SIZES: [u64; 4] = [10_000, 100_000, 1_000_000, 10_000_000];
    &SIZES[..bench.pick(4, 3)]
}

/// The cost at each number of keys.
fn costs(bench: &Bench, call: &Call) -> Vec<Cost> {
    let server = tidy(Module::Own);
    let mut client = server.connect();
    let mut filled = 0;
    let mut costs = Vec::new();
    for &keys in sizes(bench) {
        note(format_args!("growth to {} keys: {}", whole(keys as f64), call.name));
        call.prepare_keys(&mut client, filled..keys);
        filled = keys;
        wait_for_hash_tables(&server);
        // Also for INCR: both find the machine in the same state.
        wait_until_settled(&server);
        costs.push(cost(bench, &server, call, keys));
    }
    costs
}

fn cost(bench: &Bench, server: &Server, call: &Call, keys: u64) -> Cost {
    let mut client = server.connect();
    let mut random = Rng::with_seed(1);
    let (mut in_call_us, mut process_us) = (Vec::new(), Vec::new());
    let approach = take();
    let duration = Duration::from_millis(bench.pick(1000, 300));
    let load = Load { clients: CLIENTS, buckets: keys, limit: LIMIT, duration: Some(duration) };
    for _ in 0..bench.rounds {
        client.say("CONFIG RESETSTAT");
        let shape = Shape { keys, pipeline: PIPELINE };
        call.make(&mut client, shape, bench.pick(500_000, 50_000), &mut random);
        in_call_us.push(us_per_call(&mut client, call.command()));
        if call.command() == "TB.TAKE" {
            process_us.push(run(server, &approach, load).cpu_us_per_decision());
        }
    }
    let process_us = if process_us.is_empty() { f64::NAN } else { median(&process_us) };
    Cost { in_call_us: median(&in_call_us), process_us }
}

fn plot(bench: &Bench, costs: [(&str, Vec<Cost>); 2]) -> String {
    let series = costs.map(|(name, costs)| Series {
        name: name.to_owned(),
        values: costs.iter().map(|cost| cost.in_call_us).collect(),
    });
    let lines = Lines {
        places: sizes(bench).iter().map(|keys| whole(*keys as f64)).collect(),
        places_are: "buckets",
        values_are: "microseconds per call, as the server counts",
        panels: vec![("", series.into())],
    };
    lines.plot("Microseconds per call as buckets grow in number", &bench.caption)
}
