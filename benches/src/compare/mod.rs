//! The comparison: every approach on the same server, one measurement after the other.

mod commandstats;
mod contest;
mod growth;
mod holding;
mod latency;
mod memory;
mod over_grant;
mod pipelined;
mod replication;

use crate::approaches::{self, Approach};
use crate::arguments::Arguments;
use crate::calls::Call;
use crate::machine;
use crate::report::{note, write_all};
use crate::server::{ask, Server, Setup};
use crate::template::Limit;
use anyhow::Result;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Buckets that are not refilled while anything is measured.
const SLOW: Limit = Limit { capacity: 1000, count: 1, period_s: 3600 };

/// What every measurement works with.
struct Bench<'a> {
    arguments: &'a Arguments,
    approaches: Rc<Vec<Box<dyn Approach>>>,
    /// Rounds of measurements of which the median is given.
    rounds: usize,
    /// What plots say below.
    caption: String,
    /// What precedes the commands that start servers, to keep them off the clients' core.
    apart: Vec<OsString>,
    fleet: HashMap<Option<PathBuf>, Server>,
}

/// Makes all measurements and writes what they found.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut bench = Bench::new(arguments)?;
    let sections = [
        contest::measure(&mut bench)?,
        over_grant::measure(&mut bench)?,
        pipelined::measure(&mut bench)?,
        latency::measure(&mut bench)?,
        memory::measure(&mut bench)?,
        growth::measure(&mut bench)?,
        replication::measure(&mut bench)?,
        holding::measure(&mut bench)?,
    ];
    let out = &arguments.out;
    write_all(out, "README.md", &heading(&bench.caption, out), &sections)
}

/// Measures what the server itself counts, and writes a page of it.
pub fn run_commandstats(arguments: &Arguments) -> Result<()> {
    let mut bench = Bench::new(arguments)?;
    commandstats::measure(&mut bench)?.write_page(&arguments.out, &bench.caption)
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

/// Moves this thread to one core, and says how servers are started on another: sharing one, they would measure how the
/// scheduler takes turns. `None` on a machine with one core.
fn cores_apart() -> Option<Vec<OsString>> {
    let cores = core_affinity::get_core_ids()?;
    let (servers, clients) = (cores.iter().min()?, cores.iter().max()?);
    let apart = servers != clients && core_affinity::set_for_current(*clients);
    apart.then(|| vec!["taskset".into(), "--cpu-list".into(), servers.id.to_string().into()])
}

impl<'a> Bench<'a> {
    fn new(arguments: &'a Arguments) -> Result<Self> {
        let mut caption = machine::caption(arguments)?;
        let apart = cores_apart().unwrap_or_default();
        if !apart.is_empty() {
            caption += " Servers on one core, clients on another.";
        }
        if arguments.quick {
            caption += " A quick run: expect noise.";
        }
        let (approaches, rounds) = (Rc::new(Vec::new()), if arguments.quick { 3 } else { 7 });
        let mut bench = Self { arguments, approaches, rounds, caption, apart, fleet: HashMap::new() };
        let plain = Server::start(&bench.setup(None))?;
        bench.approaches = Rc::new(approaches::all(arguments, plain.knows("INCREX")?));
        bench.fleet.insert(None, plain);
        Ok(bench)
    }

    /// How long or how much is measured, thoroughly or quickly.
    fn pick<T>(&self, thorough: T, quick: T) -> T {
        if self.arguments.quick {
            quick
        } else {
            thorough
        }
    }

    /// A setup with a module, or without.
    fn setup(&self, module: Option<&Path>) -> Setup {
        let mut setup = Setup::new(&self.arguments.server, module);
        setup.command.splice(0..0, self.apart.iter().cloned());
        setup
    }

    /// The same, of which the state of its hash tables can be asked, and which keeps them in order busily.
    fn inspectable(&self, module: Option<&Path>) -> Result<Setup> {
        let setup = self.setup(module).option("hz", 100);
        let asks_for_debug = !machine::version(&self.arguments.server)?.starts_with("redis 6.");
        Ok(if asks_for_debug { setup.option("enable-debug-command", "local") } else { setup })
    }

    /// What is measured of each call in each round, on the server that has its module. All take turns: what disturbs a
    /// round disturbs all of them.
    fn in_turns(
        &mut self,
        what: &str,
        calls: &[Call],
        measure: impl Fn(&Server, &Call) -> Result<f64>,
    ) -> Result<Vec<Vec<f64>>> {
        let mut figures = vec![Vec::new(); calls.len()];
        for round in 1..=self.rounds {
            note(format_args!("{what}, round {round} of {}", self.rounds));
            for (call, figures) in calls.iter().zip(&mut figures) {
                let module = call.module.as_deref().unwrap_or(&self.arguments.module);
                figures.push(measure(self.server(Some(module))?, call)?);
            }
        }
        Ok(figures)
    }

    /// The server that has a module, or none, emptied.
    fn server(&mut self, module: Option<&Path>) -> Result<&Server> {
        let setup = self.setup(module);
        if !self.fleet.contains_key(&setup.module) {
            let server = Server::start(&setup)?;
            if module == Some(&self.arguments.module) {
                server.wait_until_settled()?;
            }
            self.fleet.insert(setup.module.clone(), server);
        }
        let server = &self.fleet[&setup.module];
        ask::<()>(&mut server.connect()?, &["FLUSHALL"])?;
        Ok(server)
    }
}
