//! The guard against getting slower: instruction counts against recorded ceilings.
//!
//! A ceiling is a multiple of what `INCR` costs on the same server in the same run, so that it holds on every
//! machine. A change that makes a call dearer by more than the slack fails; one that makes it cheaper should record
//! new ceilings.

use crate::calls::Call;
use crate::instructions::{count, find, Cost, Effort, Group, Listener, Paths};
use crate::progress::Progress;
use crate::server::version;
use anyhow::{ensure, Context, Result};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// What counts may differ by from run to run without anything having changed, and a little more.
const SLACK: f64 = 0.03;

const EFFORT: Effort = Effort { servers: 3, calls: 3000 };

/// Beginning of a file of ceilings.
const HEADER: &str = "server,replication,call,times INCR\n";

/// Compares with the ceilings; whether all hold.
pub fn check(paths: &Paths, ceilings: &Path) -> Result<bool> {
    let text = fs::read_to_string(ceilings).with_context(|| ceilings.display().to_string())?;
    let server = version(paths.server)?;
    let of_server: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix(&server)?.strip_prefix(',')).collect();
    let known = || format!("{} has no ceiling for {server}: record some with --record", ceilings.display());
    ensure!(!of_server.is_empty(), known());
    let mut all_hold = true;
    for (name, ratio) in &measure(paths)? {
        let ceiling = of_server.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(','));
        let ceiling: f64 = ceiling.with_context(known)?.parse()?;
        let holds = *ratio <= ceiling * (1.0 + SLACK);
        all_hold &= holds;
        let verdict = if holds { "ok" } else { "DEARER" };
        println!("{:<45} {ratio:>6.3} x INCR, recorded {ceiling:.3}  {verdict}", name.replace(',', ", "));
    }
    Ok(all_hold)
}

/// Writes what is measured now as the ceilings of this server, and leaves those of others.
pub fn record(paths: &Paths, ceilings: &Path) -> Result<()> {
    let server = version(paths.server)?;
    let mut text = fs::read_to_string(ceilings).unwrap_or_else(|_| HEADER.to_owned());
    text = text
        .lines()
        .filter(|line| !line.starts_with(&format!("{server},")))
        .fold(String::new(), |kept, line| kept + line + "\n");
    for (name, ratio) in measure(paths)? {
        writeln!(text, "{server},{name},{ratio:.3}")?;
    }
    Ok(fs::write(ceilings, text)?)
}

/// The guarded calls, as multiples of `INCR` in the same setting.
fn measure(paths: &Paths) -> Result<Vec<(String, f64)>> {
    let costs = count(&groups(paths), EFFORT, &mut Progress::new(6))?;
    let guarded = costs.iter().filter(|cost| cost.call != Call::Incr.name());
    guarded.map(|cost| Ok((name(cost), ratio(&costs, cost)?))).collect()
}

/// The one that needs no settling first: the other's servers settle meanwhile.
fn groups(paths: &Paths) -> [Group; 2] {
    let group =
        |listener: Listener, calls: &[Call]| Group::new(paths.server, paths.module, listener, calls.to_vec());
    [
        group(Listener::AppendOnlyFile, &[Call::Incr, Call::TakeAllowed]),
        group(Listener::Nobody, &[Call::Incr, Call::TakeAllowed, Call::TakeDenied, Call::Peek]),
    ]
}

fn name(cost: &Cost) -> String {
    format!("{},{}", cost.listener.name(), cost.call.replace(", ", " "))
}

fn ratio(costs: &[Cost], cost: &Cost) -> Result<f64> {
    let incr = find(costs, &Call::Incr.name(), cost.listener).context("INCR was not counted")?;
    ensure!(incr.instructions > 0.0, "INCR cost nothing");
    Ok(cost.instructions / incr.instructions)
}
