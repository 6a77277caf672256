//! Calls in pipelines, where connections cost little and commands show.

use super::{in_turns, Bench};
use crate::calls::{Call, Shape, ALLOWED, DENIED, FALLBACK, INCR, SCRIPT};
use crate::client::{block_on, Client};
use crate::common::Server;
use crate::report::{median, times, whole, Section, Table};
use fastrand::Rng;
use futures_util::future::join_all;
use std::time::Instant;

const SHAPE: Shape = Shape { keys: 100_000, pipeline: 32 };

/// The server never waits for a client: while one reads, the others' calls are there.
const CONNECTIONS: usize = 4;

const CALLS: [&str; 8] = ["GET", "SET", INCR, ALLOWED, DENIED, "TB.PEEK", SCRIPT, FALLBACK];

pub fn measure(bench: &mut Bench) -> Section {
    let number = bench.pick(500_000, 50_000);
    let rounds = in_turns(bench.rounds, "pipelined calls", &CALLS.map(Call::named), |call| {
        calls_a_second(bench.server(call.module), call, number / call.weight)
    });
    let speeds: Vec<f64> = rounds.iter().map(|speeds| median(speeds)).collect();
    let (get, incr) = (speeds[0], speeds[2]);
    let mut table = Table::new("call | calls/s | of INCR's | of GET's");
    for (name, speed) in CALLS.iter().zip(&speeds) {
        table.row([(*name).to_owned(), whole(*speed), times(speed / incr), times(speed / get)]);
    }
    let text = format!(
        "{CONNECTIONS} connections, {} calls in each write, {} random keys; the median of {} rounds in which all take turns. \
         GET, SET and INCR show what the server does for any command.",
        SHAPE.pipeline,
        whole(SHAPE.keys as f64),
        bench.rounds
    );
    Section::new("pipelined", "Pipelined calls", text, table).bars(
        ("pipelined", "Calls a second, 32 in a pipeline"),
        &[],
        ("calls/s", " a second"),
        &bench.caption,
    )
}

fn calls_a_second(server: &Server, call: &Call, calls: usize) -> f64 {
    call.prepare(&mut server.connect(), SHAPE);
    // Written before the clock starts: the client is to be no slower than the server.
    let mut random = Rng::with_seed(1);
    let batches = call.batches(SHAPE, 0..calls, &mut random);
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
