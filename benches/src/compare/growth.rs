//! What a call costs as the number of buckets grows.

use super::*;
use crate::approaches::{OWN, TAKE};
use crate::calls::PLAIN;

/// Clients without pipelining.
const CLIENTS: usize = 16;
/// Calls in one write, with it.
const PIPELINE: usize = 64;
const LIMIT: Limit = Limit { capacity: 1_000_000, count: 1, period_s: 1 };

/// Half empty, and refilled within a week: no measured call makes a difference to when the key has to expire.
const HALF: Call = Call {
    name: "TB.TAKE",
    call: TAKE,
    before: "TB.TAKE {key} {capacity} {rate} 500000",
    limit: LIMIT,
    ..PLAIN
};

pub fn measure(bench: &Bench) -> Table {
    let sizes = &[10_000, 100_000, 1_000_000, 10_000_000][..bench.pick(4, 3)];
    // With an expiry, as a counter that limits has.
    let incr = Call { before: "SET {key} 1 EX 500000", ..Call::named(INCR) };
    let [(in_take_us, process_us), (in_incr_us, _)] = [HALF, incr].map(|call| costs_us(bench, sizes, &call));
    let mut table = Table::new("growth", Plot::Bars("Server processor time of a take among so many buckets, in µs", &[], "TB.TAKE, server CPU µs"), "buckets | TB.TAKE, server CPU µs | to the first | TB.TAKE, in the call µs | to the first | INCR, in the call µs | to the first");
    for (place, keys) in sizes.iter().enumerate() {
        let columns = [&process_us, &in_take_us, &in_incr_us].into_iter();
        table.row(
            &[&whole(keys)],
            columns.flat_map(|us| [format!("{:.3}", us[place]), times(us[place] / us[0])]),
        );
    }
    table
}

/// What a bucket takes up just before the server doubles its hash tables, and just after, while it keeps the old ones too.
pub fn doubling(bench: &Bench) -> Table {
    note("memory while the hash tables double");
    let full = bench.pick(1 << 20, 1 << 17);
    // Keys move to the new tables with later calls only.
    let server = start_apart(Module::Own.server().option("activerehashing", "no"));
    let mut client = server.connect();
    let empty = client.used_memory();
    let mut filled = 0;
    let mut table = Table::new("doubling", Plot::None, "buckets | bytes a bucket");
    for buckets in [full - 1000, full + 1000] {
        HALF.prepare_keys(&mut client, filled..buckets);
        filled = buckets;
        let bytes = (client.used_memory() - empty) as f64 / buckets as f64;
        table.row(&[&whole(buckets)], [whole(bytes)]);
    }
    table
}

/// Microseconds of a call at each number of keys, the median of several rounds: in the command, by the server's own
/// count; and for a take without pipelining of the server's process, reading and sending included.
fn costs_us(bench: &Bench, sizes: &[u64], call: &Call) -> (Vec<f64>, Vec<f64>) {
    let server = dedicated_server(Module::Own);
    let mut client = server.connect();
    let (mut filled, mut random) = (0, Rng::with_seed(1));
    let duration = Some(Duration::from_millis(bench.pick(1000, 300)));
    let at_size = |&keys: &u64| {
        note(format_args!("growth to {} keys: {}", whole(keys), call.name));
        call.prepare_keys(&mut client, filled..keys);
        filled = keys;
        wait_for_hash_tables(&server);
        // Also for INCR: both find the machine in the same state.
        wait_for_uptime(&server, SETTLED_S);
        let load = Load { clients: CLIENTS, buckets: keys, limit: LIMIT, duration };
        let rounds = (0..bench.rounds).map(|_| {
            client.say("CONFIG RESETSTAT");
            let shape = Shape { keys, pipeline: PIPELINE };
            call.make(&mut client, shape, 0..bench.pick(500_000, 50_000), &mut random);
            let in_call_us = us_per_call(&mut client, call.command());
            let is_take = call.call == TAKE;
            (in_call_us, if is_take { run_load(&server, &OWN, load).cpu_us_per_decision() } else { f64::NAN })
        });
        let (in_call_us, process_us): (Vec<f64>, Vec<f64>) = rounds.unzip();
        (median(in_call_us), median(process_us))
    };
    sizes.iter().map(at_size).unzip()
}
