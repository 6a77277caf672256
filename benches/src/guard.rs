//! The guard against getting slower: instruction counts against recorded ceilings.
//!
//! A ceiling is a multiple of what `INCR` costs on the same server in the same run, so that it holds on every
//! machine. A change that makes a call dearer by more than the slack fails; one that makes it cheaper should record
//! new ceilings: `target/bench/ceilings.csv`, where what is measured is written, copied over `benches/ceilings.csv`. What is
//! promised of holds, as multiples of one another, has only what counts repeat to.

use crate::calls::*;
use crate::instructions::{count, countable, APPEND_ONLY_FILE, NOBODY};
use crate::machine::{compiler_release, server_release};
use crate::table::Plot;
use crate::table::Table;
use std::path::Path;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/ceilings.csv");

/// What counts may differ by from run to run without anything having changed, and a little more.
const SLACK: f64 = 0.03;

/// The slack where another compiler built the module: Rust 1.85 makes a take 3 % dearer than 1.95.
const SLACK_OF_OTHER_COMPILERS: f64 = 0.06;

/// What the same calls count from run to run: a ratio that is promised may be measured so much above itself.
const NOISE: f64 = 0.01;

/// What a call may cost at most, as a multiple of another in the same run: holds are to stay near a take, and many of
/// them near one; so are calendars, and denials that are counted by key near those that are not. A denial costs no more than
/// a grant.
const PROMISES: [(&str, &str, f64); 10] = [
    (FIRST, ALLOWED, 1.6),
    (RENEWED, ALLOWED, 1.6),
    (BESIDE_1000, BESIDE_1, 2.2),
    (BESIDE_10000, BESIDE_1, 11.0),
    (DAILY, ALLOWED, 1.2),
    (MONTHLY, ALLOWED, 1.4),
    (DENIED, DENIED_UNCOUNTED, 1.06),
    (DENIED, ALLOWED, 1.0),
    (TAKE_ANY, TAKE_TOGETHER, 1.1),
    (TAKE_LAST, PEEKS_AND_TAKE, 1.0),
];

/// Servers, of which one at least has no other command in the slot of the one that is counted.
const SERVERS: usize = 4;

/// Calls of each kind on each server.
const CALLS: usize = 2000;

/// A line of the file of ceilings: server, replication, call, how many times `INCR` it costs, and what built the module.
type Ceiling = (String, String, String, f64, String);

/// Fails unless all ceilings hold.
pub fn check(folder: &Path) -> Result<(), String> {
    let mut measured = measure();
    let mut broken = dearer(&measured)?;
    if broken > 0 {
        println!(
            "Counting again: where nothing has changed, the lesser of two counts is near what was recorded."
        );
        for (line, again) in measured.iter_mut().zip(measure()) {
            line.3 = line.3.min(again.3);
        }
        broken = dearer(&measured)?;
    }
    let mut table = Table::new("ceilings", Plot::None, "server | replication | call | times INCR | compiler");
    for (server, listener, call, times, compiler) in &measured {
        table.row(&[server, listener, call], [format!("{times:.3}"), compiler.clone()]);
    }
    table.csv(folder);
    match broken {
        0 => Ok(()),
        broken => Err(format!("{broken} calls cost more than recorded or promised")),
    }
}

/// How many calls cost more than recorded or promised.
fn dearer(measured: &[Ceiling]) -> Result<usize, String> {
    Ok(dearer_than_recorded(measured)? + dearer_than_promised(measured))
}

fn dearer_than_recorded(measured: &[Ceiling]) -> Result<usize, String> {
    let lines = csv::Reader::from_path(FILE).unwrap().into_deserialize().map(Result::unwrap);
    let recorded: Vec<Ceiling> = lines.collect();
    println!(
        "Instructions of each call as multiples of INCR's in the same run, beside those in {FILE}. More than {:.0} % above \
         them fails, or {:.0} % with another compiler.",
        SLACK * 100.0,
        SLACK_OF_OTHER_COMPILERS * 100.0
    );
    let mut broken = 0;
    for (server, listener, call, times, compiler) in measured {
        let known = recorded.iter().find(|line| (&line.0, &line.1, &line.2) == (server, listener, call));
        let Some((.., ceiling, recorded_with)) = known else {
            return Err(format!(
                "{FILE} has no ceiling for {call} on {server}: copy target/bench/ceilings.csv there"
            ));
        };
        let slack = if compiler == recorded_with { SLACK } else { SLACK_OF_OTHER_COMPILERS };
        let line = format!("{server}  {listener}  {call:<33} {times:>6.3} x INCR, recorded {ceiling:>6.3}");
        broken += judge(&line, *times <= ceiling * (1.0 + slack));
    }
    Ok(broken)
}

fn dearer_than_promised(measured: &[Ceiling]) -> usize {
    println!("Multiples of one another, and the most that is promised.");
    let times_incr = |name: &str| {
        let counted = measured.iter().find(|line| line.1 == NOBODY.0 && line.2 == name);
        counted.unwrap_or_else(|| panic!("{name} was not counted")).3
    };
    let broken = PROMISES.map(|(call, other, most)| {
        let measured = times_incr(call) / times_incr(other);
        let line = format!("{call:<33} {measured:>6.3} x {other}, promised {most:.2}");
        judge(&line, measured <= most * (1.0 + NOISE))
    });
    broken.into_iter().sum()
}

/// How many calls are too dear by this line.
fn judge(line: &str, holds: bool) -> usize {
    println!("{line}  {}", if holds { "ok" } else { "SLOWER" });
    usize::from(!holds)
}

/// What each call of the module costs now.
fn measure() -> Vec<Ceiling> {
    let is_own = |call: &str| call.starts_with("TB.");
    let known = countable().filter(|call| call.name == INCR || is_own(call.name));
    let guarded = known.chain([UNCOUNTED]).collect();
    // The file's servers need no settling first: the others settle meanwhile.
    let groups = [(APPEND_ONLY_FILE, [INCR, ALLOWED].map(Call::named).to_vec()), (NOBODY, guarded)];
    let (server, compiler) = (server_release(), compiler_release());
    let costs = count(&groups, SERVERS, CALLS);
    let own = costs.iter().filter(|cost| is_own(cost.call));
    let ceilings = own.map(|cost| {
        let times = cost.times(&costs, INCR).expect("INCR was counted");
        (server.clone(), cost.listener.to_owned(), cost.call.to_owned(), times, compiler.clone())
    });
    ceilings.collect()
}
