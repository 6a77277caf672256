//! Microseconds per call as the server itself counts them, without reading, dispatch and reply's way out.

use crate::calls::{Call, Shape};
use crate::instructions::Paths;
use crate::plot::{Bar, Bars};
use crate::progress::Progress;
use crate::random::Random;
use crate::report::{times, whole, Section, Table};
use crate::server::{Server, Setup};
use anyhow::Result;

const SHAPE: Shape = Shape { keys: 100_000, pipeline: 32 };

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Effort {
    pub rounds: usize,
    pub calls: usize,
}

pub const THOROUGH: Effort = Effort { rounds: 11, calls: 200_000 };
pub const QUICK: Effort = Effort { rounds: 3, calls: 50_000 };

/// The cost of one kind of call.
pub struct Cost {
    pub call: String,
    /// Microseconds per call of each round, ascending.
    pub rounds_us: Vec<f64>,
}

impl Cost {
    pub fn median_us(&self) -> f64 {
        self.rounds_us[self.rounds_us.len() / 2]
    }
}

/// Measures every call in turn, several times over: what disturbs a round disturbs all of them.
pub fn measure(paths: &Paths, effort: Effort) -> Result<Vec<Cost>> {
    let own = Server::start(&Setup::with_module(paths.server, paths.module))?;
    let mut calls = vec![(&own, Call::Get), (&own, Call::Incr)];
    if own.knows("INCREX")? {
        calls.push((&own, Call::Increx));
    }
    calls.extend([Call::TakeAllowed, Call::TakeDenied, Call::Peek, Call::Lua].map(|call| (&own, call)));
    let peers = paths.peers.iter().map(|peer| Server::start(&Setup::with_module(paths.server, &peer.module)));
    let peers = peers.collect::<Result<Vec<_>>>()?;
    calls.extend(peers.iter().zip(paths.peers).map(|(server, peer)| (server, Call::Peer(peer.clone()))));

    own.wait_until_settled()?;
    let mut progress = Progress::new(effort.rounds);
    let mut costs: Vec<Cost> =
        calls.iter().map(|(_, call)| Cost { call: call.name(), rounds_us: Vec::new() }).collect();
    for round in 1..=effort.rounds {
        progress.step(format_args!("round {round} of microseconds per call"));
        for ((server, call), cost) in calls.iter().zip(&mut costs) {
            cost.rounds_us.push(round_us(server, call, effort.calls)?);
        }
    }
    costs.iter_mut().for_each(|cost| cost.rounds_us.sort_by(f64::total_cmp));
    Ok(costs)
}

fn round_us(server: &Server, call: &Call, calls: usize) -> Result<f64> {
    let mut connection = server.connect()?;
    call.prepare(&mut connection, SHAPE)?;
    connection.say("CONFIG RESETSTAT")?;
    call.make(&mut connection, SHAPE, calls, &mut Random::new(1))?;
    connection.usec_per_call(call.command())
}

/// The costs for people.
pub fn section(costs: &[Cost], caption: &str) -> Section {
    Section {
        name: "commandstats",
        title: "Microseconds per call",
        text: format!(
            "As the server itself counts them (`INFO commandstats`): the command alone, without reading, dispatch and sending. \
             {} random keys, {} calls in each write, nobody listening to replication; the median of rounds in which all take turns.",
            whole(SHAPE.keys as f64),
            SHAPE.pipeline
        ),
        table: table(costs),
        groups: 0,
        plots: vec![("commandstats".to_owned(), plot(costs, caption))],
    }
}

fn table(costs: &[Cost]) -> Table {
    let mut table = Table::new(&["call", "median µs", "least", "most", "to INCR", "to INCREX"]);
    for cost in costs {
        let ratio = |call: &Call| {
            let base = costs.iter().find(|base| base.call == call.name());
            base.map_or_else(|| "-".to_owned(), |base| times(cost.median_us() / base.median_us()))
        };
        table.row([
            cost.call.clone(),
            format!("{:.3}", cost.median_us()),
            format!("{:.3}", cost.rounds_us[0]),
            format!("{:.3}", cost.rounds_us[cost.rounds_us.len() - 1]),
            ratio(&Call::Incr),
            ratio(&Call::Increx),
        ]);
    }
    table
}

fn plot(costs: &[Cost], caption: &str) -> String {
    let bar = |cost: &Cost| Bar {
        label: cost.call.clone(),
        value: cost.median_us(),
        text: format!("{:.2} µs", cost.median_us()),
        own: Bar::is_own(&cost.call),
    };
    let title = "Microseconds in the server per call, as it counts them";
    Bars { title, caption, bars: costs.iter().map(bar).collect(), mark: None }.svg()
}
