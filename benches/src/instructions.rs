//! Instructions in the server per call: the whole process, reading, dispatch and reply included.
//!
//! Counted on several servers started alike, of which the cheapest counts: each has hash tables with a random seed,
//! and a command whose name shares a slot with another's costs some 70 instructions more on one server than on
//! the next. On one server the count of the same calls repeats to a few tenths of a percent.

use crate::callgrind::{Callgrind, CountingServer};
use crate::calls::{Call, Shape, ALLOWED, CALLS, INCR, INCREX};
use crate::machine;
use crate::report::{least, most, note, times, whole, Section, Table};
use crate::server::{redis_cell, Module};
use fastrand::Rng;
use std::path::Path;
use std::thread;

const SHAPE: Shape = Shape { keys: 1000, pipeline: 50 };

/// Calls before counting begins.
const WARM_UP: usize = 500;

/// What a report is made with.
const THOROUGH: Effort = Effort { servers: 5, calls: 10_000 };

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
#[derive(Clone, Copy)]
pub struct Listener(pub &'static str, &'static [(&'static str, &'static str)]);
pub const NOBODY: Listener = Listener("nobody listens", &[]);
/// The same, and no denial is counted by its key.
pub const UNCOUNTED: Listener = Listener("nobody listens, top-keys 0", &[("tokenbucket.top-keys", "0")]);
pub const APPEND_ONLY_FILE: Listener = Listener(
    "appendonly yes",
    &[("appendonly", "yes"), ("appendfsync", "no"), ("auto-aof-rewrite-percentage", "0")],
);

/// Calls that are counted on the same servers.
pub struct Group {
    pub listener: Listener,
    pub calls: Vec<Call>,
}

/// The cost of one kind of call.
pub struct Cost {
    pub call: &'static str,
    pub listener: &'static str,
    /// Instructions per call on the server where they were fewest.
    pub instructions: f64,
    /// The most over the fewest.
    spread: f64,
}

/// Every call of the table that Redis knows from its beginning on, and the module's.
pub fn countable() -> impl Iterator<Item = Call> {
    CALLS.into_iter().filter(|call| call.name != INCREX)
}

/// Counts everything that there is.
pub fn run(folder: &Path) {
    let caption = machine::caption();
    let mut groups = Vec::new();
    for listener in [NOBODY, APPEND_ONLY_FILE] {
        groups.push(Group { listener, calls: countable().collect() });
        groups.extend(redis_cell().map(|_| Group { listener, calls: vec![Call::of_redis_cell()] }));
    }
    let costs = count(&groups, THOROUGH);
    section(&costs, &caption).write_page(folder, &caption);
}

/// Counts groups of calls, each on several servers started alike.
pub fn count(groups: &[Group], effort: Effort) -> Vec<Cost> {
    let callgrind = Callgrind::begin();
    let mut servers = start(&callgrind, groups, effort);
    CountingServer::settle(servers.iter_mut().flatten());
    let mut costs = Vec::new();
    for (group, servers) in groups.iter().zip(&mut servers) {
        for call in &group.calls {
            note(format_args!("counting {}, {}", call.name, group.listener.0));
            let calls = effort.calls / call.weight;
            let counts: Vec<f64> = servers.iter_mut().map(|server| counted(server, call, calls)).collect();
            let (call, listener, instructions) = (call.name, group.listener.0, least(&counts));
            costs.push(Cost { call, listener, instructions, spread: most(&counts) / instructions });
        }
    }
    costs
}

/// Starts the servers of each group, several at a time.
fn start<'a>(callgrind: &'a Callgrind, groups: &[Group], effort: Effort) -> Vec<Vec<CountingServer<'a>>> {
    let number = groups.len() * effort.servers;
    note(format_args!("starting {number} servers under callgrind and letting them settle"));
    let start_one = |group: &Group| {
        let builder = match group.calls[0].module {
            // The hold that comes beside 10,000 is one more than are allowed otherwise.
            Module::Own => Module::Own.server().option("tokenbucket.max-holds", 10_001),
            other => other.server(),
        };
        let options = group.listener.1.iter();
        CountingServer::start(
            callgrind,
            options.fold(builder, |builder, (name, value)| builder.option(name, value)),
        )
    };
    thread::scope(|scope| {
        let start_all = |group| move || (0..effort.servers).map(|_| start_one(group)).collect();
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(start_all(group))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the servers start")).collect()
    })
}

/// Instructions per call over a number of calls.
fn counted(server: &mut CountingServer, call: &Call, calls: usize) -> f64 {
    let mut random = Rng::with_seed(1);
    let mut client = server.server.connect();
    let keys = if call.once_a_key { (WARM_UP + calls) as u64 } else { SHAPE.keys };
    let shape = Shape { keys, ..SHAPE };
    call.prepare(&mut client, shape);
    call.make(&mut client, shape, 0..WARM_UP, &mut random);
    server.instructions();
    call.make(&mut client, shape, WARM_UP..WARM_UP + calls, &mut random);
    server.instructions() / calls as f64
}

/// Reads a cost out of a run.
pub fn find<'a>(costs: &'a [Cost], call: &str, listener: &str) -> Option<&'a Cost> {
    costs.iter().find(|cost| cost.call == call && cost.listener == listener)
}

/// The costs for people.
fn section(costs: &[Cost], caption: &str) -> Section {
    let mut table = Table::new("replication | call | instructions | to INCR | to TB.TAKE | spread");
    for cost in costs {
        let ratio = |call: &str| {
            let base = find(costs, call, cost.listener);
            base.map_or_else(|| "-".to_owned(), |base| times(cost.instructions / base.instructions))
        };
        table.row([
            cost.listener.to_owned(),
            cost.call.to_owned(),
            whole(cost.instructions),
            ratio(INCR),
            ratio(ALLOWED),
            format!("{:.2} %", (cost.spread - 1.0) * 100.0),
        ]);
    }
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
    Section::new("instructions", "Instructions in the server per call", text, table).grouped_by(1).bars(
        ("instructions", title),
        &[NOBODY.0],
        ("instructions", ""),
        caption,
    )
}
