//! The guard against getting slower: instruction counts against recorded ceilings.
//!
//! A ceiling is a multiple of what `INCR` costs on the same server in the same run, so that it holds on every
//! machine. A change that makes a call dearer by more than the slack fails; one that makes it cheaper should record
//! new ceilings. What is promised of holds, as multiples of one another, has no slack.

use crate::arguments::Arguments;
use crate::calls::{Call, ALLOWED, BESIDE_1, BESIDE_1000, BESIDE_10000, INCR, RENEWED};
use crate::instructions::{count, find, Cost, Effort, Group, Listener, APPEND_ONLY_FILE, NOBODY};
use crate::machine::version;
use anyhow::{ensure, Context, Result};
use std::path::Path;

/// What counts may differ by from run to run without anything having changed, and a little more.
const SLACK: f64 = 0.03;

const EFFORT: Effort = Effort { servers: 3, calls: 3000 };

const HEADER: [&str; 4] = ["server", "replication", "call", "times INCR"];

const CALLS: [&str; 14] = [
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
    RENEWED,
    BESIDE_1,
    BESIDE_1000,
    BESIDE_10000,
];

/// What a call may cost at most, as a multiple of another in the same run: holds are to stay near a take, and many of
/// them near one.
const PROMISES: [(&str, &str, f64); 3] =
    [(RENEWED, ALLOWED, 1.6), (BESIDE_1000, BESIDE_1, 1.5), (BESIDE_10000, BESIDE_1, 3.0)];

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
    let costs = measure(arguments)?;
    for (cost, measured) in &costs {
        let known = (server.as_str(), cost.listener, cost.call.as_str());
        let ceiling = ceilings.iter().find(|ceiling| (&*ceiling.0, &*ceiling.1, &*ceiling.2) == known);
        let recorded = ceiling.with_context(missing)?.3;
        let holds = *measured <= recorded * (1.0 + SLACK);
        dearer += usize::from(!holds);
        let verdict = if holds { "ok" } else { "DEARER" };
        let (listener, call, instructions) = (cost.listener, &cost.call, cost.instructions);
        println!("{listener}  {call:<33} {instructions:>7.0}  {measured:>6.3} x INCR, recorded {recorded:>6.3}  {verdict}");
    }
    let broken = broken_promises(&costs)?;
    ensure!(dearer == 0, "{dearer} calls cost more than recorded");
    ensure!(broken == 0, "{broken} calls cost more than promised");
    Ok(())
}

/// How many of the promises this run breaks; it prints all of them.
fn broken_promises(costs: &[(Cost, f64)]) -> Result<usize> {
    let times_incr = |call: &str| {
        let found = costs.iter().find(|(cost, _)| cost.call == call && cost.listener == NOBODY.0);
        found.map(|(_, times)| times).with_context(|| format!("{call} was not counted"))
    };
    println!("Multiples of one another, and the most that is promised.");
    let mut broken = 0;
    for (call, other, most) in PROMISES {
        let measured = times_incr(call)? / times_incr(other)?;
        broken += usize::from(measured > most);
        let verdict = if measured > most { "DEARER" } else { "ok" };
        println!("{call:<33} {measured:>6.3} x {other}, promised {most:.1}  {verdict}");
    }
    Ok(broken)
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
    // The hold that comes beside 10,000 is one more than are allowed otherwise.
    let all = group(NOBODY, &CALLS)?.option("tokenbucket.max-holds", 10_001);
    let groups = [group(APPEND_ONLY_FILE, &[INCR, ALLOWED])?, all];
    let costs = count(&groups, EFFORT)?;
    let times = |cost: &Cost| -> Result<f64> {
        let incr = find(&costs, INCR, cost.listener).context("INCR was not counted")?;
        Ok(cost.instructions / incr.instructions)
    };
    let times: Vec<f64> = costs.iter().map(times).collect::<Result<_>>()?;
    Ok(costs.into_iter().zip(times).filter(|(cost, _)| cost.call != INCR).collect())
}
