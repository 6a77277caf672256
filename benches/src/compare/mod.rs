//! The comparison: every approach on the same server, one measurement after the other.

mod calls;
mod contest;
mod growth;
mod holding;
mod sharing;
mod storage;
mod waiting;

// What the measurements work with, too.
use crate::approaches::{self, Approach};
use crate::calls::{Call, Shape, INCR, INCREX};
use crate::client::{block_on, Client};
use crate::common::{Server, ServerBuilder};
use crate::load::{run as run_load, Load};
use crate::machine;
use crate::report::{note, write};
use crate::server::*;
use crate::table::Plot;
use crate::table::{median, times, whole, Table};
use crate::target::Target;
use crate::template::{key, Limit};
use crate::throttlecrab::ThrottleCrab;
use core_affinity::{get_core_ids, set_for_current, CoreId};
use fastrand::Rng;
use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// What every measurement works with.
struct Bench {
    is_quick: bool,
    /// Rounds of measurements of which the median is given.
    rounds: usize,
    fleet: HashMap<Module, Server>,
}

/// Makes all measurements and writes what they found.
pub fn run(is_quick: bool, folder: &Path, only: Option<&str>) {
    let (mut bench, caption) = Bench::new(is_quick);
    let approaches = approaches::all();
    let rivals = [&approaches[..], &[approaches::throttlecrab()]].concat();
    type Measure<'a> = (&'static str, &'a dyn Fn(&mut Bench) -> Table);
    let measures: [Measure; 15] = [
        ("decisions", &|bench| contest::decisions(bench, &rivals)),
        ("over-grant", &|bench| contest::over_grant(bench, &rivals)),
        ("local", &|bench| contest::local(bench)),
        ("pipelined", &|bench| calls::pipelined(bench)),
        ("latency", &|bench| contest::latency(bench)),
        ("memory", &|bench| storage::memory(bench, &approaches)),
        ("growth", &|bench| growth::measure(bench)),
        ("doubling", &|bench| growth::doubling(bench)),
        ("replication", &|bench| storage::replication(bench, &approaches)),
        ("holding", &|bench| holding::measure(bench)),
        ("waiting", &|bench| waiting::measure(bench)),
        ("waiters", &|bench| waiting::cost(bench)),
        ("release", &|bench| waiting::release(bench)),
        ("shares", &|bench| sharing::by_weight(bench)),
        ("sharing", &|bench| sharing::cost(bench)),
    ];
    let wanted = measures.into_iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
    let tables: Vec<Table> = wanted.map(|(_, measure)| measure(&mut bench)).collect();
    assert!(!tables.is_empty(), "no table is called {only:?}");
    // The longest table has a page of its own.
    let (decisions, others): (Vec<Table>, Vec<Table>) =
        tables.into_iter().partition(|table| table.name == "decisions");
    for (page, tables) in [("decisions.md", decisions), ("README.md", others)] {
        if !tables.is_empty() {
            write(folder, page, &caption, &tables);
        }
    }
}

/// Measures what the server itself counts, and writes a page of it.
pub fn run_commandstats(is_quick: bool, folder: &Path) {
    let (mut bench, caption) = Bench::new(is_quick);
    write(folder, "commandstats.md", &caption, &[calls::commandstats(&mut bench)]);
}

impl Bench {
    /// With what is to be said below plots.
    fn new(is_quick: bool) -> (Self, String) {
        let quick_note = if is_quick { " A quick run: expect noise." } else { "" };
        let rounds = if is_quick { 3 } else { 7 };
        (Self { is_quick, rounds, fleet: HashMap::new() }, machine::caption() + quick_note)
    }

    /// How long or how much is measured, thoroughly or quickly.
    fn pick<T>(&self, thorough: T, quick: T) -> T {
        if self.is_quick {
            quick
        } else {
            thorough
        }
    }

    /// The server that has a module, or none, emptied.
    fn server(&mut self, module: Module) -> &Server {
        let server = self.fleet.entry(module).or_insert_with(|| {
            let server = start_apart(module.server());
            if module == Module::Own {
                wait_for_uptime(&server, SETTLED_S);
            }
            server
        });
        server.connect().say("FLUSHALL");
        server
    }

    /// Measures on the server that an approach needs, without buckets.
    fn on_server<T>(&mut self, module: Module, measure: impl FnOnce(Target) -> T) -> T {
        match module {
            Module::ThrottleCrab => measure(apart(ThrottleCrab::start).target()),
            _ => measure(self.server(module).into()),
        }
    }

    /// What is measured of each item in each round. All take turns: what disturbs a round disturbs all of them.
    fn in_turns<I, T>(
        &mut self,
        rounds: usize,
        what: &str,
        items: &[I],
        mut measure: impl FnMut(&mut Self, &I) -> T,
    ) -> Vec<Vec<T>> {
        let mut figures: Vec<Vec<T>> = items.iter().map(|_| Vec::new()).collect();
        for round in 1..=rounds {
            note(format_args!("{what}, round {round} of {rounds}"));
            items.iter().zip(&mut figures).for_each(|(item, figures)| figures.push(measure(self, item)));
        }
        figures
    }
}

fn start_apart(builder: ServerBuilder) -> Server {
    apart(|| start(builder))
}

/// Starts a server on one core, and leaves this thread on another: sharing one, they would measure how the scheduler
/// takes turns.
fn apart<T>(start: impl FnOnce() -> T) -> T {
    static CORES: LazyLock<Vec<CoreId>> = LazyLock::new(|| get_core_ids().unwrap_or_default());
    CORES.first().map(|core| set_for_current(*core));
    let server = start();
    CORES.last().map(|core| set_for_current(*core));
    server
}

/// A server of its own, which keeps its hash tables in order busily.
fn dedicated_server(module: Module) -> Server {
    start_apart(module.server().option("hz", 100))
}
