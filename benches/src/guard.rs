//! The guard against getting slower: instruction counts against recorded ceilings.
//!
//! A ceiling is a multiple of what `INCR` costs on the same server in the same run, so that it holds on every
//! machine. A change that makes a call dearer by more than the slack fails; one that makes it cheaper should record
//! new ceilings.

use crate::arguments::Arguments;
use crate::calls::{Call, ALLOWED, INCR};
use crate::instructions::{count, find, Cost, Effort, Group, Listener, APPEND_ONLY_FILE, NOBODY};
use crate::machine::version;
use anyhow::{ensure, Context, Result};
use std::path::Path;

/// What counts may differ by from run to run without anything having changed, and a little more.
const SLACK: f64 = 0.03;

const EFFORT: Effort = Effort { servers: 3, calls: 3000 };

const HEADER: [&str; 4] = ["server", "replication", "call", "times INCR"];

const CALLS: [&str; 10] = [
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
];

/// A line of the file of ceilings: server, replication, call and how many times `INCR` it costs.
type Ceiling = (String, String, String, f64);

/// Fails unless all ceilings hold.
pub fn check(arguments: &Arguments) -> Result<()> {
    let (server, file) = (version(&arguments.server)?, arguments.ceilings.as_path());
    let ceilings = read(file)?;
    let missing =
        || format!("{} has no ceiling for all calls on {server}: record some with --record", file.display());
    ensure!(ceilings.iter().any(|ceiling| ceiling.0 == server), missing());
    println!(
        "Instructions of each call on {server}, as multiples of INCR's in the same run, beside those in {}; more than {:.0} % \
         above them fails.",
        file.display(),
        SLACK * 100.0
    );
    let mut dearer = 0;
    for (cost, measured) in measure(arguments)? {
        let known = (server.as_str(), cost.listener, cost.call.as_str());
        let ceiling = ceilings.iter().find(|ceiling| (&*ceiling.0, &*ceiling.1, &*ceiling.2) == known);
        let recorded = ceiling.with_context(missing)?.3;
        let holds = measured <= recorded * (1.0 + SLACK);
        dearer += usize::from(!holds);
        let verdict = if holds { "ok" } else { "DEARER" };
        let (listener, call, instructions) = (cost.listener, &cost.call, cost.instructions);
        println!("{listener}  {call:<22} {instructions:>7.0}  {measured:>6.3} x INCR, recorded {recorded:>6.3}  {verdict}");
    }
    ensure!(dearer == 0, "{dearer} calls cost more than recorded");
    Ok(())
}

/// Writes what is measured now as the ceilings of this server, and leaves those of others.
pub fn record(arguments: &Arguments) -> Result<()> {
    let (server, file) = (version(&arguments.server)?, arguments.ceilings.as_path());
    let mut ceilings = if file.exists() { read(file)? } else { Vec::new() };
    ceilings.retain(|ceiling| ceiling.0 != server);
    for (cost, times) in measure(arguments)? {
        ceilings.push((server.clone(), cost.listener.to_owned(), cost.call, times));
    }
    let mut csv = csv::Writer::from_path(file)?;
    csv.write_record(HEADER)?;
    for (server, listener, call, times) in ceilings {
        csv.write_record([server, listener, call, format!("{times:.3}")])?;
    }
    Ok(csv.flush()?)
}

fn read(file: &Path) -> Result<Vec<Ceiling>> {
    let mut csv = csv::Reader::from_path(file).with_context(|| file.display().to_string())?;
    Ok(csv.deserialize().collect::<Result<_, _>>()?)
}

/// The guarded calls, and their multiples of `INCR` in the same setting.
fn measure(arguments: &Arguments) -> Result<Vec<(Cost, f64)>> {
    let group = |listener: Listener, calls: &[&str]| -> Result<Group> {
        Ok(Group::new(&arguments.server, &arguments.module, listener, Call::all_named(calls)?))
    };
    // The one that needs no settling first: the other's servers settle meanwhile.
    let groups = [group(APPEND_ONLY_FILE, &[INCR, ALLOWED])?, group(NOBODY, &CALLS)?];
    let costs = count(&groups, EFFORT)?;
    let times = |cost: &Cost| -> Result<f64> {
        let incr = find(&costs, INCR, cost.listener).context("INCR was not counted")?;
        Ok(cost.instructions / incr.instructions)
    };
    let times: Vec<f64> = costs.iter().map(times).collect::<Result<_>>()?;
    Ok(costs.into_iter().zip(times).filter(|(cost, _)| cost.call != INCR).collect())
}
