//! Instructions in the server per call: the whole process, reading, dispatch and reply included.
//!
//! Counted on several servers started alike, of which the cheapest counts: each has hash tables with a random seed,
//! and a command whose name shares a slot with another's costs some 70 instructions more on one server than on
//! the next. On one server the count of the same calls repeats to a few tenths of a percent.

use crate::arguments::Arguments;
use crate::callgrind::CountingServer;
use crate::calls::{Call, Shape, ALLOWED, INCR};
use crate::machine;
use crate::plot::Bar;
use crate::report::{note, times, whole, Section, Table};
use crate::server::Setup;
use anyhow::{bail, Context, Result};
use fastrand::Rng;
use std::path::Path;
use std::thread;

const SHAPE: Shape = Shape { keys: 1000, pipeline: 50 };

/// Calls before counting begins.
const WARM_UP: usize = 500;

/// What a report is made with.
const THOROUGH: Effort = Effort { servers: 5, calls: 10_000 };

const CALLS: [&str; 13] = [
    "PING",
    "GET",
    INCR,
    ALLOWED,
    "TB.TAKE, denied",
    "TB.TAKE, rate 17",
    "TB.TAKE, rate 16.6667",
    "TB.TAKE, cost 2",
    "TB.TAKE, cost 0.5",
    "TB.PEEK",
    "TB.PEEK, denied",
    "TB.MTAKE of 10",
    "Lua script, EVALSHA",
];

/// How much is counted.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Servers on which each call is counted.
    pub servers: usize,
    /// Calls of one measurement; fewer of those that do more.
    pub calls: usize,
}

/// Who takes what the server replicates: a name, and the options that bring it into being, and nothing else that would
/// disturb the count.
pub type Listener = (&'static str, &'static [(&'static str, &'static str)]);
pub const NOBODY: Listener = ("nobody listens", &[]);
pub const APPEND_ONLY_FILE: Listener =
    ("appendonly yes", &[("appendonly", "yes"), ("appendfsync", "no"), ("auto-aof-rewrite-percentage", "0")]);

/// Calls that are counted on the same servers.
pub struct Group {
    setup: Setup,
    listener: &'static str,
    calls: Vec<Call>,
}

impl Group {
    pub fn new(server: &Path, module: &Path, listener: Listener, calls: Vec<Call>) -> Self {
        let setup = Setup::new(server, Some(module));
        let setup = listener.1.iter().fold(setup, |setup, (name, value)| setup.option(name, value));
        Self { setup, listener: listener.0, calls }
    }

    /// Adds a line of configuration.
    pub fn option(mut self, name: &str, value: impl ToString) -> Self {
        self.setup = self.setup.option(name, value);
        self
    }
}

/// The cost of one kind of call.
pub struct Cost {
    pub call: String,
    pub listener: &'static str,
    /// Instructions per call on the server where they were fewest.
    pub instructions: f64,
    /// The most over the fewest.
    spread: f64,
}

/// Counts everything that there is.
pub fn run(arguments: &Arguments) -> Result<()> {
    let caption = machine::caption(arguments)?;
    let mut costs = Vec::new();
    for listener in [NOBODY, APPEND_ONLY_FILE] {
        let group = |module: &Path, calls| Group::new(&arguments.server, module, listener, calls);
        let mut groups = vec![group(&arguments.module, Call::all_named(&CALLS)?)];
        groups.extend(arguments.peers.iter().map(|peer| group(&peer.module, vec![Call::of_peer(peer)])));
        costs.extend(count(&groups, THOROUGH)?);
    }
    let section = section(&costs, &caption)?;
    section.write_page(&arguments.out, &caption)
}

/// Counts groups of calls, each on several servers started alike.
pub fn count(groups: &[Group], effort: Effort) -> Result<Vec<Cost>> {
    let mut servers = start(groups, effort)?;
    CountingServer::settle(servers.iter_mut().flatten())?;
    let mut costs = Vec::new();
    for (group, servers) in groups.iter().zip(&mut servers) {
        for call in &group.calls {
            note(format_args!("counting {}, {}", call.name, group.listener));
            let calls = effort.calls / call.weight;
            let counts = servers.iter_mut().map(|server| counted(server, call, calls));
            let counts: Vec<f64> =
                counts.collect::<Result<_>>().with_context(|| format!("counting {}", call.name))?;
            let fewest = counts.iter().copied().fold(f64::INFINITY, f64::min);
            let spread = counts.iter().copied().fold(0.0, f64::max) / fewest;
            let (call, listener) = (call.name.clone(), group.listener);
            costs.push(Cost { call, listener, instructions: fewest, spread });
        }
    }
    Ok(costs)
}

/// Starts the servers of each group, several at a time.
fn start(groups: &[Group], effort: Effort) -> Result<Vec<Vec<CountingServer>>> {
    let number = groups.len() * effort.servers;
    note(format_args!("starting {number} servers under callgrind and letting them settle"));
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
    let mut random = Rng::with_seed(1);
    let mut connection = server.server.connect()?;
    call.prepare(&mut connection, SHAPE)?;
    call.make(&mut connection, SHAPE, WARM_UP, &mut random)?;
    server.instructions()?;
    call.make(&mut connection, SHAPE, calls, &mut random)?;
    Ok(server.instructions()? / calls as f64)
}

/// Reads a cost out of a run.
pub fn find<'a>(costs: &'a [Cost], call: &str, listener: &str) -> Option<&'a Cost> {
    costs.iter().find(|cost| cost.call == call && cost.listener == listener)
}

/// The costs for people.
fn section(costs: &[Cost], caption: &str) -> Result<Section> {
    let mut table = Table::new("replication | call | instructions | to INCR | to TB.TAKE | spread");
    for cost in costs {
        let ratio = |call: &str| {
            let base = find(costs, call, cost.listener);
            base.map_or_else(|| "-".to_owned(), |base| times(cost.instructions / base.instructions))
        };
        table.row([
            cost.listener.to_owned(),
            cost.call.clone(),
            whole(cost.instructions),
            ratio(INCR),
            ratio(ALLOWED),
            format!("{:.2} %", (cost.spread - 1.0) * 100.0),
        ]);
    }
    let drawn = costs.iter().filter(|cost| cost.listener == NOBODY.0);
    let bars = drawn.map(|cost| Bar::new(&cost.call, cost.instructions, whole));
    let title = "Instructions in the server per call, nobody listening to replication";
    let text = format!(
        "Counted by callgrind in the whole process: reading, dispatch and reply included, housekeeping taken off. One \
         connection, {} calls in each write, {} random keys. The least of {} servers started alike, and by how much the \
         most is above it. *nobody listens*: no append-only file, backlog or replica. *appendonly yes*: with \
         `appendfsync no`.",
        SHAPE.pipeline,
        whole(SHAPE.keys as f64),
        THOROUGH.servers
    );
    Ok(Section::new("instructions", "Instructions in the server per call", text, table)
        .grouped_by(1)
        .plot("instructions", Bar::plot(title, caption, bars, None)?))
}
