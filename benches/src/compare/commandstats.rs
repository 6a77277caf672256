//! Microseconds per call as the server itself counts them, without reading, dispatch and reply's way out.

use crate::arguments::Arguments;
use crate::calls::{Call, Shape, ALLOWED, INCR, INCREX};
use crate::machine;
use crate::plot::Bar;
use crate::report::{median, note, times, whole, Section, Table};
use crate::server::{ask, usec_per_call, Server, Setup};
use anyhow::Result;
use fastrand::Rng;

const SHAPE: Shape = Shape { keys: 100_000, pipeline: 32 };
const CALLS: [&str; 6] = ["GET", INCR, ALLOWED, "TB.TAKE, denied", "TB.PEEK", "Lua script, EVALSHA"];

pub fn run(arguments: &Arguments) -> Result<()> {
    let (rounds, calls) = if arguments.quick { (3, 50_000) } else { (11, 200_000) };
    let caption = machine::caption(arguments)?;
    let costs = measure(arguments, rounds, calls)?;
    let text = format!(
        "As the server itself counts them (`INFO commandstats`): the command alone, without reading, dispatch and sending. \
         {} random keys, {} calls in each write, nobody listening to replication; the median of rounds in which all take turns.",
        whole(SHAPE.keys as f64),
        SHAPE.pipeline
    );
    let section = Section::new("commandstats", "Microseconds per call", text, table(&costs))
        .plot("commandstats", plot(&costs, &caption)?);
    section.write_page(&arguments.out, &caption)
}

/// Microseconds of each call in each round. All take turns: what disturbs a round disturbs all of them.
fn measure(arguments: &Arguments, rounds: usize, calls: usize) -> Result<Vec<(Call, Vec<f64>)>> {
    let start = |module| Server::start(&Setup::new(&arguments.server, Some(module)));
    let own = start(&arguments.module)?;
    let mut costs = Vec::new();
    for name in CALLS {
        costs.push((&own, Call::named(name)?, Vec::new()));
    }
    if own.knows(INCREX)? {
        costs.insert(2, (&own, Call::named(INCREX)?, Vec::new()));
    }
    let peers: Vec<Server> = arguments.peers.iter().map(|peer| start(&peer.module)).collect::<Result<_>>()?;
    let peer_calls = peers.iter().zip(&arguments.peers);
    costs.extend(peer_calls.map(|(server, peer)| (server, Call::of_peer(peer), Vec::new())));
    own.wait_until_settled()?;
    for round in 1..=rounds {
        note(format_args!("round {round} of {rounds}: microseconds per call"));
        for (server, call, us) in &mut costs {
            us.push(round_us(server, call, calls)?);
        }
    }
    Ok(costs.into_iter().map(|(_, call, us)| (call, us)).collect())
}

fn round_us(server: &Server, call: &Call, calls: usize) -> Result<f64> {
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
