//! What a call costs as the number of buckets grows.

use super::{tidy, Bench};
use crate::approaches::{take, TAKE};
use crate::calls::{Call, Shape, INCR, PLAIN};
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
    for (place, keys) in sizes(bench).iter().enumerate() {
        let columns = [&take.process_us, &take.in_call_us, &incr.in_call_us];
        let cells =
            columns.into_iter().flat_map(|us| [format!("{:.3}", us[place]), times(us[place] / us[0])]);
        table.row([whole(*keys as f64)].into_iter().chain(cells));
    }
    let text = format!(
        "What a call on a random one of so many keys costs. *Server CPU* is the processor time of the server's process for a \
         decision by {CLIENTS} clients without pipelining; *in the call* is the server's own count (`INFO commandstats`), \
         where pipelined calls find little in the processor's caches. INCR, of a key with an expiry, shows \
         what the server's tables and the machine's memory do to any command. The median of {} rounds.",
        bench.rounds
    );
    let lines = Lines {
        places: sizes(bench).iter().map(|keys| whole(*keys as f64)).collect(),
        places_are: "buckets",
        values_are: "microseconds per call, as the server counts",
        panels: vec![(
            "",
            [take, incr].map(|costs| Series { name: costs.name, values: costs.in_call_us }).into(),
        )],
    };
    Section::new("growth", "Growth", text, table)
        .plot("growth", lines.plot("Microseconds per call as buckets grow in number", &bench.caption))
}

/// The numbers of keys.
fn sizes(bench: &Bench) -> &'static [u64] {
    const SIZES: [u64; 4] = [10_000, 100_000, 1_000_000, 10_000_000];
    &SIZES[..bench.pick(4, 3)]
}

/// What a call costs at each number of keys, in microseconds: the median of several rounds.
struct Costs {
    name: String,
    /// In the command, by the server's own count.
    in_call_us: Vec<f64>,
    /// Of the server's process, reading and sending included, for a take without pipelining.
    process_us: Vec<f64>,
}

fn costs(bench: &Bench, call: &Call) -> Costs {
    let server = tidy(Module::Own);
    let mut client = server.connect();
    let mut costs = Costs { name: call.name.to_owned(), in_call_us: Vec::new(), process_us: Vec::new() };
    let (mut filled, mut random, approach) = (0, Rng::with_seed(1), take());
    let duration = Some(Duration::from_millis(bench.pick(1000, 300)));
    for &keys in sizes(bench) {
        note(format_args!("growth to {} keys: {}", whole(keys as f64), call.name));
        call.prepare_keys(&mut client, filled..keys);
        filled = keys;
        wait_for_hash_tables(&server);
        // Also for INCR: both find the machine in the same state.
        wait_until_settled(&server);
        let load = Load { clients: CLIENTS, buckets: keys, limit: LIMIT, duration };
        let rounds = (0..bench.rounds).map(|_| {
            client.say("CONFIG RESETSTAT");
            let shape = Shape { keys, pipeline: PIPELINE };
            call.make(&mut client, shape, 0..bench.pick(500_000, 50_000), &mut random);
            let process_us = || run(&server, &approach, load).cpu_us_per_decision();
            let is_take = call.call == TAKE;
            (us_per_call(&mut client, call.command()), if is_take { process_us() } else { f64::NAN })
        });
        let (in_call_us, process_us): (Vec<_>, Vec<_>) = rounds.unzip();
        costs.in_call_us.push(median(&in_call_us));
        costs.process_us.push(median(&process_us));
    }
    costs
}
