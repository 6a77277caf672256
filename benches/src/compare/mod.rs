//! The comparison: every approach on the same server, one measurement after the other.

mod commandstats;
mod contest;
mod growth;
mod holding;
mod latency;
mod local;
mod memory;
mod over_grant;
mod pipelined;
mod replication;

use crate::approaches::{self, Approach};
use crate::calls::INCREX;
use crate::common::engine::executable;
use crate::common::Server;
use crate::machine;
use crate::report::{note, write_all};
use crate::server::{start, start_under, wait_until_settled, Module};
use crate::template::Limit;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use tempfile::TempDir;

/// Buckets that are not refilled while anything is measured.
const SLOW: Limit = Limit { capacity: 1000, count: 1, period_s: 3600 };

/// What every measurement works with.
struct Bench {
    is_quick: bool,
    approaches: Rc<Vec<Approach>>,
    /// Rounds of measurements of which the median is given.
    rounds: usize,
    /// What plots say below.
    caption: String,
    fleet: HashMap<Module, Server>,
    /// What starts servers apart from clients.
    _apart: Option<TempDir>,
}

/// Makes all measurements and writes what they found.
pub fn run(is_quick: bool, folder: &Path) {
    let mut bench = Bench::new(is_quick);
    let sections = [
        contest::measure(&mut bench),
        over_grant::measure(&mut bench),
        local::measure(&mut bench),
        pipelined::measure(&mut bench),
        latency::measure(&mut bench),
        memory::measure(&bench),
        growth::measure(&bench),
        replication::measure(&bench),
        holding::measure(&mut bench),
    ];
    write_all(folder, "README.md", &heading(&bench.caption, folder), &sections);
}

/// Measures what the server itself counts, and writes a page of it.
pub fn run_commandstats(is_quick: bool, folder: &Path) {
    let mut bench = Bench::new(is_quick);
    commandstats::measure(&mut bench).write_page(folder, &bench.caption);
}

fn heading(caption: &str, folder: &Path) -> String {
    let others = [("instructions.md", "Instructions per call"), ("commandstats.md", "Microseconds per call")];
    let there = others.iter().filter(|(page, _)| folder.join(page).exists());
    let links: String = there.map(|(page, title)| format!(" [{title}]({page}).")).collect();
    format!(
        "# Benchmarks\n\n\
         Written by `make bench`, which repeats everything below. Absolute speed is that of one machine; the ratios are what \
         carries over.{links}\n\n{caption}\n"
    )
}

/// Moves this thread to one core, and servers that are started from now on to another: sharing one, they would measure
/// how the scheduler takes turns. Done by a script in the folder; `None` on a machine with one core.
fn move_apart() -> Option<TempDir> {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let (Some(servers), Some(clients)) = (cores.iter().min(), cores.iter().max()) else { return None };
    let is_apart = servers != clients && core_affinity::set_for_current(*clients);
    is_apart.then(|| {
        let folder = tempfile::tempdir().unwrap();
        let command = format!("taskset --cpu-list {} '{}'", servers.id, executable().display());
        start_under(folder.path(), &command);
        folder
    })
}

impl Bench {
    fn new(is_quick: bool) -> Self {
        let mut caption = machine::caption();
        let apart = move_apart();
        if apart.is_some() {
            caption += " Servers on one core, clients on another.";
        }
        if is_quick {
            caption += " A quick run: expect noise.";
        }
        let plain = start(Module::None.server());
        let approaches = Rc::new(approaches::all(plain.connect().has_command(INCREX)));
        let (rounds, fleet) = (if is_quick { 3 } else { 7 }, HashMap::from([(Module::None, plain)]));
        Self { is_quick, approaches, rounds, caption, fleet, _apart: apart }
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
            let server = start(module.server());
            if module == Module::Own {
                wait_until_settled(&server);
            }
            server
        });
        server.connect().say("FLUSHALL");
        server
    }
}

/// A server of its own, which keeps its hash tables in order busily.
fn tidy(module: Module) -> Server {
    start(module.server().option("hz", 100))
}

/// What is measured of each item in each round. All take turns: what disturbs a round disturbs all of them.
fn in_turns<I, T>(rounds: usize, what: &str, items: &[I], mut measure: impl FnMut(&I) -> T) -> Vec<Vec<T>> {
    let mut figures: Vec<Vec<T>> = items.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds {
        note(format_args!("{what}, round {round} of {rounds}"));
        items.iter().zip(&mut figures).for_each(|(item, figures)| figures.push(measure(item)));
    }
    figures
}
