//! Single calls in pipelines, where connections cost little and commands show: how many a second, and how many
//! microseconds of each the server itself counts.

use super::*;
use crate::calls::{ALLOWED, DENIED, FALLBACK, SCRIPT};
use crate::table::sorted;
use futures_util::future::join_all;

const KEYS: u64 = 100_000;
const PIPELINE: usize = 32;
const SHAPE: Shape = Shape { keys: KEYS, pipeline: PIPELINE };

/// The server never waits for a client: while one reads, the others' calls are there.
const CONNECTIONS: usize = 4;

pub fn pipelined(bench: &mut Bench) -> Table {
    let calls = ["GET", "SET", INCR, ALLOWED, DENIED, "TB.PEEK", SCRIPT, FALLBACK].map(Call::named);
    let number = bench.pick(500_000, 50_000);
    let rounds = bench.in_turns(bench.rounds, "pipelined calls", &calls, |bench, call| {
        calls_a_second(bench.server(call.module), call, number / call.weight)
    });
    let speeds: Vec<f64> = rounds.into_iter().map(median).collect();
    let mut table = Table::new(
        "pipelined",
        Plot::Bars("Calls a second, 32 in a pipeline", &[], "calls/s"),
        "call | calls/s | of INCR's | of GET's",
    );
    for (call, speed) in calls.iter().zip(&speeds) {
        table.row(&[call.name], [whole(*speed), times(speed / speeds[2]), times(speed / speeds[0])]);
    }
    table
}

fn calls_a_second(server: &Server, call: &Call, calls: usize) -> f64 {
    call.prepare(&mut server.connect(), SHAPE);
    // Written before the clock starts: the client is to be no slower than the server.
    let mut random = Rng::with_seed(1);
    let batches = call.written(SHAPE, 0..calls, &mut random);
    let batches: Vec<_> = batches.map(|batch| (batch.get_packed_pipeline(), batch.len())).collect();
    let batches = &batches;
    block_on(async {
        let opening = (0..CONNECTIONS).map(|number| Client::open(server.port(), number, call.limit));
        let clients = join_all(opening).await;
        let start = Instant::now();
        let making = clients.into_iter().enumerate().map(|(number, mut client)| async move {
            for (bytes, len) in batches.iter().skip(number).step_by(CONNECTIONS) {
                client.exchange(bytes, *len).await.iter().for_each(|reply| call.judge(reply));
            }
        });
        join_all(making).await;
        calls as f64 / start.elapsed().as_secs_f64()
    })
}

/// Few enough keys for the CPU's caches to hold them.
const HOT: Shape = Shape { keys: 1000, pipeline: PIPELINE };

pub fn commandstats(bench: &mut Bench) -> Table {
    let calls = ["GET", INCR, INCREX, ALLOWED, DENIED, "TB.PEEK", SCRIPT, FALLBACK].map(Call::named);
    let plot =
        Plot::Bars("Microseconds in the server per call, as it counts them", &["100,000 keys"], "median µs");
    let mut table =
        Table::new("commandstats", plot, "keys || call | median µs | least | most | to INCR | to INCREX");
    let (middle, last) = (bench.rounds / 2, bench.rounds - 1);
    for (shape, keys) in [(HOT, "1,000 keys"), (SHAPE, "100,000 keys")] {
        let us = microseconds(bench, &calls, shape, keys);
        for (call, own_us) in calls.iter().zip(&us) {
            let figures = [middle, 0, last].map(|place| format!("{:.3}", own_us[place]));
            let ratios = [&us[1], &us[2]].map(|base_us| times(own_us[middle] / base_us[middle]));
            table.row(&[keys, call.name], figures.into_iter().chain(ratios));
        }
    }
    table
}

/// Returns the microseconds of each call in each round, in order.
fn microseconds(bench: &mut Bench, calls: &[Call], shape: Shape, keys: &str) -> Vec<Vec<f64>> {
    let number = bench.pick(200_000, 50_000);
    let us = bench.in_turns(bench.rounds, &format!("microseconds per call, {keys}"), calls, |bench, call| {
        let mut client = bench.server(call.module).connect();
        call.prepare(&mut client, shape);
        client.say("CONFIG RESETSTAT");
        call.make(&mut client, shape, 0..number, &mut Rng::with_seed(1));
        us_per_call(&mut client, call.command())
    });
    us.into_iter().map(sorted).collect()
}
