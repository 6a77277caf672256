//! Calls in pipelines, where connections cost little and commands show.

use super::{median, Bench, Effort};
use crate::approaches::Take;
use crate::calls::{Call, Shape};
use crate::connection::Connection;
use crate::plot::{Bar, Bars};
use crate::random::Random;
use crate::report::{times, whole, Section, Table};
use crate::server::Server;
use anyhow::Result;
use std::time::Instant;

const SHAPE: Shape = Shape { keys: 100_000, pipeline: 32 };

/// The server never waits for a client: while one reads, the others' calls are there.
const CONNECTIONS: usize = 4;

const CALLS: [Call; 7] =
    [Call::Get, Call::Set, Call::Incr, Call::TakeAllowed, Call::TakeDenied, Call::Peek, Call::Lua];

pub fn steps(effort: &Effort) -> usize {
    effort.rounds
}

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let mut rounds: Vec<Vec<f64>> = CALLS.iter().map(|_| Vec::new()).collect();
    for round in 1..=bench.effort.rounds {
        bench.progress.step(format_args!("pipelined calls, round {round}"));
        for (call, rounds) in CALLS.iter().zip(&mut rounds) {
            let calls = bench.effort.pipelined_calls as usize / call.weight();
            rounds.push(calls_a_second(bench.server(&Take)?, call, calls)?);
        }
    }
    let speeds: Vec<(String, f64)> =
        CALLS.iter().map(Call::name).zip(rounds.into_iter().map(median)).collect();
    Ok(Section {
        name: "pipelined",
        title: "Pipelined calls",
        text: format!(
            "{CONNECTIONS} connections, {} calls in each write, {} random keys; the median of {} rounds in which all take turns. \
             GET, SET and INCR show what the server does for any command.",
            SHAPE.pipeline,
            whole(SHAPE.keys as f64),
            bench.effort.rounds
        ),
        table: table(&speeds),
        groups: 0,
        plots: vec![("pipelined".to_owned(), plot(&speeds, &bench.caption))],
    })
}

fn calls_a_second(server: &Server, call: &Call, calls: usize) -> Result<f64> {
    let mut connections = (0..CONNECTIONS).map(|_| server.connect()).collect::<Result<Vec<Connection>>>()?;
    call.prepare(&mut connections[0], SHAPE)?;
    // Written before the clock starts: the client is to be no slower than the server.
    let batches = call.batches(SHAPE, calls, &mut Random::new(1));
    let start = Instant::now();
    for (number, batch) in batches.iter().enumerate() {
        let connection = &mut connections[number % CONNECTIONS];
        if number >= CONNECTIONS {
            receive(connection, call, batches[number - CONNECTIONS].commands())?;
        }
        connection.send(batch)?;
    }
    for number in batches.len().saturating_sub(CONNECTIONS)..batches.len() {
        receive(&mut connections[number % CONNECTIONS], call, batches[number].commands())?;
    }
    Ok(calls as f64 / start.elapsed().as_secs_f64())
}

fn receive(connection: &mut Connection, call: &Call, replies: usize) -> Result<()> {
    (0..replies).try_for_each(|_| call.judge(&connection.receive()?))
}

fn table(speeds: &[(String, f64)]) -> Table {
    let mut table = Table::new(&["call", "calls/s", "of INCR's", "of GET's"]);
    let of = |name: String| speeds.iter().find(|(call, _)| *call == name).map_or(1.0, |(_, speed)| *speed);
    let (incr, get) = (of(Call::Incr.name()), of(Call::Get.name()));
    for (call, speed) in speeds {
        table.row([call.clone(), whole(*speed), times(speed / incr), times(speed / get)]);
    }
    table
}

fn plot(speeds: &[(String, f64)], caption: &str) -> String {
    let bar = |(call, speed): &(String, f64)| Bar {
        label: call.clone(),
        value: *speed,
        text: format!("{} a second", whole(*speed)),
        own: Bar::is_own(call),
    };
    Bars {
        title: "Calls a second, 32 in a pipeline",
        caption,
        bars: speeds.iter().map(bar).collect(),
        mark: None,
    }
    .svg()
}
