//! The comparison: every approach on the same server, one measurement after the other.

mod contest;
mod growth;
mod latency;
mod memory;
mod over_grant;
mod pipelined;
mod replication;

use crate::approaches::{self, Approach, Bucket};
use crate::connection::Connection;
use crate::cores::Cores;
use crate::instructions::Paths;
use crate::progress::Progress;
use crate::report::write_all;
use crate::server::{version, Server, Setup};
use crate::{limit::Limit, machine};
use anyhow::Result;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// Buckets that are not refilled while anything is measured.
const SLOW: Limit = Limit { capacity: 1000, count: 1, period_s: 3600 };

/// How long everything is measured, and on how much.
pub struct Effort {
    /// Of one round of one approach under one load.
    pub contest: Duration,
    pub contest_rounds: usize,
    /// Not whole tokens' worth: whether the last token came before the end or after must not be a matter of microseconds.
    pub over_grant: Duration,
    pub memory_keys: u64,
    pub growth_keys: &'static [u64],
    pub growth_calls: u64,
    pub pipelined_calls: u64,
    pub rounds: usize,
    pub latency: Duration,
    pub replicated: u64,
}

pub const THOROUGH: Effort = Effort {
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

pub const QUICK: Effort = Effort {
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
pub struct Bench<'a> {
    pub paths: &'a Paths<'a>,
    pub effort: &'a Effort,
    pub approaches: Rc<Vec<Box<dyn Approach>>>,
    pub progress: Progress,
    /// What plots say below.
    pub caption: String,
    cores: Option<Cores>,
    fleet: HashMap<Option<PathBuf>, Server>,
}

/// Makes all measurements and writes what they found.
pub fn run(paths: &Paths, quick: bool, out: &Path) -> Result<()> {
    let effort = if quick { &QUICK } else { &THOROUGH };
    let mut bench = Bench::new(paths, effort, quick)?;
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
    fn new(paths: &'a Paths, effort: &'a Effort, quick: bool) -> Result<Self> {
        let caption = machine::caption(paths)?;
        let cores = Cores::split();
        let plain = Server::start(&Setup { cores, ..Setup::plain(paths.server) })?;
        let approaches = approaches::all(paths.peers, plain.knows("INCREX")?);
        let steps = contest::steps(effort, approaches.len())
            + over_grant::steps(&approaches)
            + pipelined::steps(effort)
            + latency::steps(effort)
            + memory::steps(&approaches)
            + growth::steps(effort)
            + replication::steps(&approaches);
        let apart = cores.map_or("", |_| " Servers on one core, clients on another.");
        let noise = if quick { " A quick run: expect noise." } else { "" };
        let caption = caption + apart + noise;
        Ok(Self {
            paths,
            effort,
            approaches: Rc::new(approaches),
            progress: Progress::new(steps),
            caption,
            cores,
            fleet: HashMap::from([(None, plain)]),
        })
    }

    /// A setup with a module, or without.
    pub fn setup(&self, module: Option<&Path>) -> Setup {
        let plain = Setup::plain(self.paths.server);
        Setup { module: module.map(Path::to_owned), cores: self.cores, ..plain }
    }

    /// The same, of which the state of its hash tables can be asked, and which keeps them in order busily.
    pub fn inspectable(&self, module: Option<&Path>) -> Result<Setup> {
        let setup = self.setup(module).option("hz", 100);
        let asks_for_debug = !version(self.paths.server)?.starts_with("redis 6.");
        Ok(if asks_for_debug { setup.option("enable-debug-command", "local") } else { setup })
    }

    /// The server on which an approach competes, emptied.
    pub fn server(&mut self, approach: &dyn Approach) -> Result<&Server> {
        let setup = self.setup(approach.module(self.paths.module));
        if !self.fleet.contains_key(&setup.module) {
            let server = Server::start(&setup)?;
            if setup.module.as_deref() == Some(self.paths.module) {
                server.wait_until_settled()?;
            }
            self.fleet.insert(setup.module.clone(), server);
        }
        let server = &self.fleet[&setup.module];
        server.connect()?.say("FLUSHALL")?;
        Ok(server)
    }
}

/// Makes one decision on each of a range of new buckets.
fn fill(
    connection: &mut Connection,
    approach: &dyn Approach,
    numbers: Range<u64>,
    limit: Limit,
) -> Result<()> {
    connection.pipeline(numbers, |number, batch| {
        approach.write_at_once(&Bucket::of_user(number, limit), batch).map(drop)
    })
}

/// The middle one of several.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
