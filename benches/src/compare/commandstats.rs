//! Microseconds per call as the server itself counts them, without reading, dispatch and reply's way out.

use super::Bench;
use crate::calls::{Call, Shape, ALLOWED, INCR, INCREX};
use crate::plot::Bar;
use crate::report::{median, times, whole, Section, Table};
use crate::server::{ask, usec_per_call, Server};
use anyhow::Result;
use fastrand::Rng;

const SHAPE: Shape = Shape { keys: 100_000, pipeline: 32 };
const CALLS: [&str; 6] = ["GET", INCR, ALLOWED, "TB.TAKE, denied", "TB.PEEK", "Lua script, EVALSHA"];

pub fn measure(bench: &mut Bench) -> Result<Section> {
    let mut calls = Call::all_named(&CALLS)?;
    if bench.server(Some(&bench.arguments.module))?.knows(INCREX)? {
        calls.insert(2, Call::named(INCREX)?);
    }
    calls.extend(bench.arguments.peers.iter().map(Call::of_peer));
    let number = bench.pick(200_000, 50_000);
    let costs = bench.in_turns("microseconds per call", &calls, |server, call| us(server, call, number))?;
    let costs: Vec<(Call, Vec<f64>)> = calls.into_iter().zip(costs).collect();
    let text = format!(
        "As the server itself counts them (`INFO commandstats`): the command alone, without reading, dispatch and sending. \
         {} random keys, {} calls in each write, nobody listening to replication; the median of rounds in which all take turns.",
        whole(SHAPE.keys as f64),
        SHAPE.pipeline
    );
    Ok(Section::new("commandstats", "Microseconds per call", text, table(&costs))
        .plot("commandstats", plot(&costs, &bench.caption)?))
}

fn us(server: &Server, call: &Call, calls: usize) -> Result<f64> {
    let mut connection = server.connect()?;
    call.prepare(&mut connection, SHAPE)?;
    ask::<()>(&mut connection, &["CONFIG", "RESETSTAT"])?;
    call.make(&mut connection, SHAPE, calls, &mut Rng::with_seed(1))?;
    usec_per_call(&mut connection, call.command())
}

fn table(costs: &[(Call, Vec<f64>)]) -> Table {
    let mut table = Table::new("call | median µs | least | most | to INCR | to INCREX");
    for (call, us) in costs {
        let ratio = |name: &str| {
            let base = costs.iter().find(|(base, _)| base.name == name);
            base.map_or_else(|| "-".to_owned(), |(_, base_us)| times(median(us) / median(base_us)))
        };
        let least = us.iter().copied().fold(f64::INFINITY, f64::min);
        let most = us.iter().copied().fold(0.0, f64::max);
        let figures = [median(us), least, most].map(|us| format!("{us:.3}"));
        table.row([call.name.clone()].into_iter().chain(figures).chain([ratio(INCR), ratio(INCREX)]));
    }
    table
}

fn plot(costs: &[(Call, Vec<f64>)], caption: &str) -> Result<String> {
    let bars = costs.iter().map(|(call, us)| Bar::new(&call.name, median(us), |us| format!("{us:.2} µs")));
    Bar::plot("Microseconds in the server per call, as it counts them", caption, bars, None)
}
