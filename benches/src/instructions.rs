//! Instructions in the server per call: the whole process, reading, dispatch and reply included.
//!
//! Counted on several servers started alike, of which the cheapest counts: each has hash tables with a random seed,
//! and a command whose name shares a slot with another's costs some 70 instructions more on one server than on
//! the next. On one server the count of the same calls repeats to a few tenths of a percent.

use crate::callgrind::{self, CountingServer};
use crate::calls::{Call, Shape, ALLOWED, CALLS, INCR, INCREX};
use crate::machine;
use crate::report::{note, write};
use crate::table::Plot;
use crate::table::{sorted, times, whole, Table};
use fastrand::Rng;
use std::path::Path;
use std::thread;

const KEYS: u64 = 1000;
const PIPELINE: usize = 50;

/// Calls before counting begins.
const WARM_UP: usize = 500;

/// Servers for a report.
const SERVERS: usize = 5;

/// A receiver of what the server replicates: its name, and the options that create it, and nothing else that would disturb
/// the count.
#[derive(Clone, Copy)]
pub struct Listener(pub &'static str, &'static [(&'static str, &'static str)]);
pub const NOBODY: Listener = Listener("no replica or AOF", &[]);
pub const APPEND_ONLY_FILE: Listener = Listener(
    "appendonly yes",
    &[("appendonly", "yes"), ("appendfsync", "no"), ("auto-aof-rewrite-percentage", "0")],
);

/// Calls that are counted on the same servers.
pub type Group = (Listener, Vec<Call>);

/// The cost of one kind of call.
pub struct Cost {
    pub call: &'static str,
    pub listener: &'static str,
    /// Instructions per call on the server where they were fewest.
    instructions: f64,
    /// The most over the fewest.
    spread: f64,
}

/// Every call of the table that Redis knows from its beginning on, and the module's.
pub fn countable() -> impl Iterator<Item = Call> {
    CALLS.into_iter().filter(|call| call.name != INCREX)
}

pub fn run(folder: &Path) {
    let caption = machine::caption();
    let groups: Vec<Group> = [NOBODY, APPEND_ONLY_FILE]
        .map(|listener| [(listener, countable().collect()), (listener, vec![Call::of_redis_cell()])])
        .concat();
    write(folder, "instructions.md", &caption, &[table(&count(&groups, SERVERS, 10_000))]);
}

/// Counts groups of calls on so many servers each, started alike: so many calls of each kind, fewer of those that do more.
pub fn count(groups: &[Group], servers: usize, calls: usize) -> Vec<Cost> {
    let profiles = callgrind::begin();
    let mut servers = start(profiles.path(), groups, servers);
    CountingServer::settle(servers.iter_mut().flatten().collect());
    let all: usize = groups.iter().map(|(_, kinds)| kinds.len()).sum();
    let mut costs = Vec::new();
    for ((Listener(listener, _), kinds), servers) in groups.iter().zip(&mut servers) {
        for call in kinds {
            note(format_args!("counting {} of {all}: {}, {listener}", costs.len() + 1, call.name));
            let number = calls / call.weight;
            // What names share a slot is nothing beside the cost of the work of ten.
            let servers = servers.iter_mut().take(if call.weight < 10 { usize::MAX } else { 1 });
            let counts = sorted(servers.map(|server| counted(server, call, number)).collect());
            let (instructions, spread) = (counts[0], counts[counts.len() - 1] / counts[0]);
            costs.push(Cost { call: call.name, listener, instructions, spread });
        }
    }
    costs
}

/// Starts the servers of each group, several at a time.
fn start<'a>(profiles: &'a Path, groups: &[Group], servers: usize) -> Vec<Vec<CountingServer<'a>>> {
    note(format_args!("starting {} servers under callgrind and letting them settle", groups.len() * servers));
    let start_one = |(Listener(_, options), calls): &Group| {
        let builder = calls[0].module.server();
        let builder = options.iter().fold(builder, |builder, (name, value)| builder.option(name, value));
        CountingServer::start(profiles, builder)
    };
    thread::scope(|scope| {
        let start_all = |group| move || (0..servers).map(|_| start_one(group)).collect();
        let threads: Vec<_> = groups.iter().map(|group| scope.spawn(start_all(group))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the servers start")).collect()
    })
}

/// Instructions per call over a number of calls.
fn counted(server: &mut CountingServer, call: &Call, calls: usize) -> f64 {
    let mut random = Rng::with_seed(1);
    let mut client = server.server.connect();
    let warm_up = WARM_UP / call.weight;
    let keys = if call.once_a_key { (warm_up + calls) as u64 } else { KEYS };
    let shape = Shape { keys, pipeline: PIPELINE };
    call.prepare(&mut client, shape);
    call.make(&mut client, shape, 0..warm_up, &mut random);
    server.instructions();
    call.make(&mut client, shape, warm_up..warm_up + calls, &mut random);
    server.instructions() / calls as f64
}

impl Cost {
    /// As a multiple of another call's on servers with the same listener, if that was counted.
    pub fn times(&self, costs: &[Self], other: &str) -> Option<f64> {
        let base = costs.iter().find(|cost| cost.call == other && cost.listener == self.listener)?;
        Some(self.instructions / base.instructions)
    }
}

/// The costs for people.
fn table(costs: &[Cost]) -> Table {
    let plot = Plot::Bars(
        "Instructions of the server per call, nobody listening",
        &["no replica or AOF"],
        "instructions",
    );
    let mut table = Table::new(
        "instructions",
        plot,
        "replication || call | instructions | to INCR | to TB.TAKE | spread",
    );
    for cost in costs {
        let ratio = |call| cost.times(costs, call).map_or_else(|| "-".to_owned(), times);
        let spread = format!("{:.2} %", (cost.spread - 1.0) * 100.0);
        let figures = [whole(cost.instructions), ratio(INCR), ratio(ALLOWED), spread];
        table.row(&[cost.listener, cost.call], figures);
    }
    table
}
