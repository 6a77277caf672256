//! The comparison: every approach on the same server, one measurement after the other.

mod contest;
mod growth;
mod latency;
mod memory;
mod over_grant;
mod pipelined;
mod replication;

use crate::approaches::{self, Approach};
use crate::machine;
use crate::report::write_all;
use crate::server::{ask, Cores, Server, Setup};
use crate::subjects::Subjects;
use crate::template::Limit;
use anyhow::Result;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Buckets that are not refilled while anything is measured.
const SLOW: Limit = Limit { capacity: 1000, count: 1, period_s: 3600 };

/// How long everything is measured, and on how much.
struct Effort {
    /// Of one round of one approach under one load.
    contest: Duration,
    contest_rounds: usize,
    /// Not whole tokens' worth: whether the last token came before the end or after must not be a matter of microseconds.
    over_grant: Duration,
    memory_keys: u64,
    growth_keys: &'static [u64],
    growth_calls: usize,
    pipelined_calls: usize,
    rounds: usize,
    latency: Duration,
    replicated: u64,
}

const THOROUGH: Effort = Effort {
    contest: Duration::from_secs(1),
    contest_rounds: 3,
    over_grant: Duration::from_millis(3050),
    memory_keys: 1_000_000,
    growth_keys: &[10_000, 100_000, 1_000_000, 10_000_000],
    growth_calls: 500_000,
    pipelined_calls: 500_000,
    rounds: 7,
    latency: Duration::from_secs(1),
    replicated: 5000,
};

const QUICK: Effort = Effort {
    contest: Duration::from_millis(200),
    contest_rounds: 1,
    over_grant: Duration::from_millis(1050),
    memory_keys: 100_000,
    growth_keys: &[10_000, 100_000, 1_000_000],
    growth_calls: 50_000,
    pipelined_calls: 50_000,
    rounds: 3,
    latency: Duration::from_millis(300),
    replicated: 500,
};

/// What every measurement works with.
struct Bench<'a> {
    subjects: &'a Subjects,
    effort: &'a Effort,
    approaches: Rc<Vec<Box<dyn Approach>>>,
    /// What plots say below.
    caption: String,
    cores: Option<Cores>,
    fleet: HashMap<Option<PathBuf>, Server>,
}

/// Makes all measurements and writes what they found.
pub fn run(subjects: &Subjects, quick: bool, out: &Path) -> Result<()> {
    let mut bench = Bench::new(subjects, quick)?;
    let sections = [
        contest::measure(&mut bench)?,
        over_grant::measure(&mut bench)?,
        pipelined::measure(&mut bench)?,
        latency::measure(&mut bench)?,
        memory::measure(&mut bench)?,
        growth::measure(&mut bench)?,
        replication::measure(&mut bench)?,
    ];
    write_all(out, "README.md", &heading(&bench.caption, out), &sections)
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

impl<'a> Bench<'a> {
    fn new(subjects: &'a Subjects, quick: bool) -> Result<Self> {
        let caption = machine::caption(subjects)?;
        let cores = Cores::split();
        let plain = Server::start(&Setup { cores, ..Setup::new(&subjects.server, None) })?;
        let approaches = Rc::new(approaches::all(subjects, plain.knows("INCREX")?));
        let apart = cores.map_or("", |_| " Servers on one core, clients on another.");
        let noise = if quick { " A quick run: expect noise." } else { "" };
        let effort = if quick { &QUICK } else { &THOROUGH };
        let caption = caption + apart + noise;
        Ok(Self { subjects, effort, approaches, caption, cores, fleet: HashMap::from([(None, plain)]) })
    }

    /// A setup with a module, or without.
    fn setup(&self, module: Option<&Path>) -> Setup {
        Setup { cores: self.cores, ..Setup::new(&self.subjects.server, module) }
    }

    /// The same, of which the state of its hash tables can be asked, and which keeps them in order busily.
    fn inspectable(&self, module: Option<&Path>) -> Result<Setup> {
        let setup = self.setup(module).option("hz", 100);
        let asks_for_debug = !machine::version(&self.subjects.server)?.starts_with("redis 6.");
        Ok(if asks_for_debug { setup.option("enable-debug-command", "local") } else { setup })
    }

    /// The server on which an approach competes, emptied.
    fn server(&mut self, approach: &dyn Approach) -> Result<&Server> {
        let setup = self.setup(approach.module());
        if !self.fleet.contains_key(&setup.module) {
            let server = Server::start(&setup)?;
            if setup.module.as_ref() == Some(&self.subjects.module) {
                server.wait_until_settled()?;
            }
            self.fleet.insert(setup.module.clone(), server);
        }
        let server = &self.fleet[&setup.module];
        ask::<()>(&mut server.connect()?, &["FLUSHALL"])?;
        Ok(server)
    }
}
