//! Microseconds per call as the server itself counts them, without reading, dispatch and reply's way out.

use super::{in_turns, Bench};
use crate::calls::{Call, Shape, ALLOWED, DENIED, FALLBACK, INCR, INCREX, SCRIPT};
use crate::common::Server;
use crate::report::{least, median, most, times, whole, Section, Table};
use crate::server::{us_per_call, Module};
use fastrand::Rng;

const SHAPE: Shape = Shape { keys: 100_000, pipeline: 32 };
const CALLS: [&str; 8] = ["GET", INCR, INCREX, ALLOWED, DENIED, "TB.PEEK", SCRIPT, FALLBACK];

pub fn measure(bench: &mut Bench) -> Section {
    let has_increx = bench.server(Module::Own).connect().has_command(INCREX);
    let calls: Vec<Call> =
        CALLS.into_iter().filter(|name| has_increx || *name != INCREX).map(Call::named).collect();
    let number = bench.pick(200_000, 50_000);
    let costs = in_turns(bench.rounds, "microseconds per call", &calls, |call| {
        us(bench.server(call.module), call, number)
    });
    let costs: Vec<(Call, Vec<f64>)> = calls.into_iter().zip(costs).collect();
    let text = format!(
        "As the server itself counts them (`INFO commandstats`): the command alone, without reading, dispatch and sending. \
         {} random keys, {} calls in each write, nobody listening to replication; the median of rounds in which all take turns.",
        whole(SHAPE.keys as f64),
        SHAPE.pipeline
    );
    let title = "Microseconds in the server per call, as it counts them";
    Section::new("commandstats", "Microseconds per call", text, table(&costs)).bars(
        ("commandstats", title),
        &[],
        ("median µs", " µs"),
        &bench.caption,
    )
}

fn us(server: &Server, call: &Call, calls: usize) -> f64 {
    let mut client = server.connect();
    call.prepare(&mut client, SHAPE);
    client.say("CONFIG RESETSTAT");
    call.make(&mut client, SHAPE, 0..calls, &mut Rng::with_seed(1));
    us_per_call(&mut client, call.command())
}

fn table(costs: &[(Call, Vec<f64>)]) -> Table {
    let mut table = Table::new("call | median µs | least | most | to INCR | to INCREX");
    for (call, us) in costs {
        let ratio = |name: &str| {
            let base = costs.iter().find(|(base, _)| base.name == name);
            base.map_or_else(|| "-".to_owned(), |(_, base_us)| times(median(us) / median(base_us)))
        };
        let figures = [median(us), least(us), most(us)].map(|us| format!("{us:.3}"));
        table.row([call.name.to_owned()].into_iter().chain(figures).chain([ratio(INCR), ratio(INCREX)]));
    }
    table
}
