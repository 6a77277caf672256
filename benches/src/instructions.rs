//! Instructions in the server per call: the whole process, reading, dispatch and reply included.
//!
//! Counted on several servers started alike, of which the cheapest counts: each has hash tables with a random seed,
//! and a command whose name shares a slot with another's costs some 70 instructions more on one server than on
//! the next. On one server the count of the same calls repeats to a few tenths of a percent.

use crate::callgrind::CountingServer;
use crate::calls::{Call, Shape};
use crate::peer::Peer;
use crate::plot::{Bar, Bars};
use crate::progress::Progress;
use crate::random::Random;
use crate::report::{times, whole, Section, Table};
use crate::server::Setup;
use anyhow::{bail, Context, Result};
use std::path::Path;
use std::thread;

const SHAPE: Shape = Shape { keys: 1000, pipeline: 50 };

/// Calls before counting begins.
const WARM_UP: usize = 500;

/// What a report is made with.
pub const THOROUGH: Effort = Effort { servers: 5, calls: 10_000 };

/// How much is counted.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Servers on which each call is counted.
    pub servers: usize,
    /// Calls of one measurement; fewer of those that do more.
    pub calls: usize,
}

/// What the servers of a run are started from.
#[derive(Clone)]
pub struct Paths<'a> {
    pub server: &'a Path,
    pub module: &'a Path,
    pub peers: &'a [Peer],
}

/// Who takes what the server replicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    Nobody,
    AppendOnlyFile,
}

impl Listener {
    pub const ALL: [Self; 2] = [Self::Nobody, Self::AppendOnlyFile];

    pub fn name(self) -> &'static str {
        match self {
            Self::Nobody => "nobody listens",
            Self::AppendOnlyFile => "appendonly yes",
        }
    }

    /// The options that bring the listener into being, and nothing else that would disturb the count.
    pub fn apply(self, setup: Setup) -> Setup {
        match self {
            Self::Nobody => setup,
            Self::AppendOnlyFile => setup
                .option("appendonly", "yes")
                .option("appendfsync", "no")
                .option("auto-aof-rewrite-percentage", "0"),
        }
    }
}

/// The cost of one kind of call.
#[derive(Clone, Debug)]
pub struct Cost {
    pub call: String,
    pub listener: Listener,
    /// Instructions per call on the server where they were fewest.
    pub instructions: f64,
    /// The most over the fewest.
    pub spread: f64,
}

/// Counts everything that there is.
pub fn count_all(paths: &Paths, effort: Effort) -> Result<Vec<Cost>> {
    let own = [
        Call::Ping,
        Call::Get,
        Call::Incr,
        Call::TakeAllowed,
        Call::TakeDenied,
        Call::Peek,
        Call::MultiTake,
        Call::Lua,
    ];
    let mut progress = Progress::new(Listener::ALL.len() * (own.len() + paths.peers.len()));
    let mut costs = Vec::new();
    for listener in Listener::ALL {
        let groups = Group::of_own_and_peers(paths, listener, &own);
        costs.extend(count(&groups, effort, &mut progress)?);
    }
    Ok(costs)
}

/// Calls that are counted on the same servers.
pub struct Group {
    pub setup: Setup,
    pub listener: Listener,
    pub calls: Vec<Call>,
}

impl Group {
    pub fn new(server: &Path, module: &Path, listener: Listener, calls: Vec<Call>) -> Self {
        Self { setup: listener.apply(Setup::with_module(server, module)), listener, calls }
    }

    fn of_own_and_peers(paths: &Paths, listener: Listener, own: &[Call]) -> Vec<Self> {
        let group = |module: &Path, calls: Vec<Call>| Self::new(paths.server, module, listener, calls);
        let mut groups = vec![group(paths.module, own.to_vec())];
        groups.extend(paths.peers.iter().map(|peer| group(&peer.module, vec![Call::Peer(peer.clone())])));
        groups
    }
}

/// Counts groups of calls, each on several servers started alike.
pub fn count(groups: &[Group], effort: Effort, progress: &mut Progress) -> Result<Vec<Cost>> {
    let mut servers = start(groups, effort, progress)?;
    CountingServer::settle(servers.iter_mut().flatten())?;
    let mut costs = Vec::new();
    for (group, servers) in groups.iter().zip(&mut servers) {
        for call in &group.calls {
            progress.step(format_args!("counting {}, {}", call.name(), group.listener.name()));
            let calls = effort.calls / call.weight();
            let counts: Result<Vec<f64>> =
                servers.iter_mut().map(|server| counted(server, call, calls)).collect();
            let counts = counts.with_context(|| format!("counting {}", call.name()))?;
            costs.push(Cost::of(call.name(), group.listener, &counts));
        }
    }
    Ok(costs)
}

/// Starts the servers of each group, several at a time.
fn start(groups: &[Group], effort: Effort, progress: &Progress) -> Result<Vec<Vec<CountingServer>>> {
    let number = groups.len() * effort.servers;
    progress.note(format_args!("starting {number} servers under callgrind and letting them settle"));
    thread::scope(|scope| {
        let start_all = |group| move || (0..effort.servers).map(|_| CountingServer::start(group)).collect();
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(start_all(&group.setup))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a thread panicked")))
            .collect()
    })
}

/// Instructions per call over a number of calls.
fn counted(server: &mut CountingServer, call: &Call, calls: usize) -> Result<f64> {
    let mut random = Random::new(1);
    let mut connection = server.server.connect()?;
    call.prepare(&mut connection, SHAPE)?;
    call.make(&mut connection, SHAPE, WARM_UP, &mut random)?;
    server.instructions()?;
    call.make(&mut connection, SHAPE, calls, &mut random)?;
    Ok(server.instructions()? / calls as f64)
}

impl Cost {
    fn of(call: String, listener: Listener, counts: &[f64]) -> Self {
        let smallest = counts.iter().copied().fold(f64::INFINITY, f64::min);
        let largest = counts.iter().copied().fold(0.0, f64::max);
        Self { call, listener, instructions: smallest, spread: largest / smallest }
    }
}

/// Reads a cost out of a run.
pub fn find<'a>(costs: &'a [Cost], call: &str, listener: Listener) -> Option<&'a Cost> {
    costs.iter().find(|cost| cost.call == call && cost.listener == listener)
}

/// The costs for people.
pub fn section(costs: &[Cost], caption: &str) -> Section {
    Section {
        name: "instructions",
        title: "Instructions in the server per call",
        text: format!(
            "Counted by callgrind in the whole process: reading, dispatch and reply included, housekeeping taken off. One \
             connection, {} calls in each write, {} random keys. The least of {} servers started alike, and by how much the \
             most is above it. *nobody listens*: no append-only file, backlog or replica. *appendonly yes*: with \
             `appendfsync no`.",
            SHAPE.pipeline,
            whole(SHAPE.keys as f64),
            THOROUGH.servers
        ),
        table: table(costs),
        groups: 1,
        plots: vec![("instructions".to_owned(), plot(costs, caption))],
    }
}

fn table(costs: &[Cost]) -> Table {
    let mut table = Table::new(&["replication", "call", "instructions", "to INCR", "to TB.TAKE", "spread"]);
    for cost in costs {
        let ratio = |call: &Call| {
            let base = find(costs, &call.name(), cost.listener);
            base.map_or_else(|| "-".to_owned(), |base| times(cost.instructions / base.instructions))
        };
        table.row([
            cost.listener.name().to_owned(),
            cost.call.clone(),
            whole(cost.instructions),
            ratio(&Call::Incr),
            ratio(&Call::TakeAllowed),
            format!("{:.2} %", (cost.spread - 1.0) * 100.0),
        ]);
    }
    table
}

fn plot(costs: &[Cost], caption: &str) -> String {
    let drawn = costs.iter().filter(|cost| cost.listener == Listener::Nobody);
    let bar = |cost: &Cost| Bar {
        label: cost.call.clone(),
        value: cost.instructions,
        text: whole(cost.instructions),
        own: Bar::is_own(&cost.call),
    };
    Bars {
        title: "Instructions in the server per call, nobody listening to replication",
        caption,
        bars: drawn.map(bar).collect(),
        mark: None,
    }
    .svg()
}

/// The costs for programs.
pub fn json(costs: &[Cost]) -> String {
    let entry = |cost: &Cost| {
        format!(
            "  {{\"call\": {:?}, \"replication\": {:?}, \"instructions\": {:.1}, \"spread\": {:.4}}}",
            cost.call,
            cost.listener.name(),
            cost.instructions,
            cost.spread
        )
    };
    format!("[\n{}\n]\n", costs.iter().map(entry).collect::<Vec<_>>().join(",\n"))
}
