//! The guard against getting slower: instruction counts against recorded ceilings.
//!
//! A ceiling is a multiple of what `INCR` costs on the same server in the same run, so that it holds on every
//! machine. A change that makes a call dearer by more than the slack fails; one that makes it cheaper should record
//! new ceilings. What is promised of holds, as multiples of one another, has no slack.

use crate::calls::{Call, ALLOWED, BESIDE_1, BESIDE_1000, BESIDE_10000, INCR, RENEWED};
use crate::instructions::{count, countable, find, Cost, Effort, Group, APPEND_ONLY_FILE, NOBODY};
use crate::machine::server_release;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/ceilings.csv");
const HEADER: [&str; 4] = ["server", "replication", "call", "times INCR"];

/// What counts may differ by from run to run without anything having changed, and a little more.
const SLACK: f64 = 0.03;

const EFFORT: Effort = Effort { servers: 3, calls: 3000 };

/// What a call may cost at most, as a multiple of another in the same run: holds are to stay near a take, and many of
/// them near one.
const PROMISES: [(&str, &str, f64); 3] =
    [(RENEWED, ALLOWED, 1.6), (BESIDE_1000, BESIDE_1, 1.5), (BESIDE_10000, BESIDE_1, 3.0)];

/// A line of the file of ceilings: server, replication, call and how many times `INCR` it costs.
type Ceiling = (String, String, String, f64);

/// Fails unless all ceilings hold.
pub fn check() -> Result<(), String> {
    let (server, ceilings) = (server_release(), read());
    let missing = format!("{FILE} has no ceiling for all calls on {server}: record some with --record");
    if !ceilings.iter().any(|ceiling| ceiling.0 == server) {
        return Err(missing);
    }
    println!(
        "Instructions of each call on {server}, as multiples of INCR's in the same run, beside those in {FILE}; more than \
         {:.0} % above them fails.",
        SLACK * 100.0
    );
    let costs = measure();
    let mut broken = 0;
    let mut judge = |holds: bool| {
        broken += usize::from(!holds);
        if holds {
            "ok"
        } else {
            "DEARER"
        }
    };
    for cost in own(&costs) {
        let known = (server.as_str(), cost.listener, cost.call);
        let ceiling = ceilings.iter().find(|ceiling| (&*ceiling.0, &*ceiling.1, &*ceiling.2) == known);
        let (measured, recorded) = (times_incr(&costs, cost), ceiling.ok_or_else(|| missing.clone())?.3);
        let verdict = judge(measured <= recorded * (1.0 + SLACK));
        let Cost { listener, call, instructions, .. } = cost;
        println!("{listener}  {call:<33} {instructions:>7.0}  {measured:>6.3} x INCR, recorded {recorded:>6.3}  {verdict}");
    }
    println!("Multiples of one another, and the most that is promised.");
    for (call, other, most) in PROMISES {
        let [cost, base] = [call, other].map(|name| find(&costs, name, NOBODY.0).expect("it was counted"));
        let measured = cost.instructions / base.instructions;
        let verdict = judge(measured <= most);
        println!("{call:<33} {measured:>6.3} x {other}, promised {most:.1}  {verdict}");
    }
    if broken > 0 {
        return Err(format!("{broken} calls cost more than recorded or promised"));
    }
    Ok(())
}

/// Writes what is measured now as the ceilings of this server, and leaves those of others.
pub fn record() {
    let (server, mut ceilings) = (server_release(), read());
    ceilings.retain(|ceiling| ceiling.0 != server);
    let costs = measure();
    ceilings.extend(own(&costs).map(|cost| {
        (server.clone(), cost.listener.to_owned(), cost.call.to_owned(), times_incr(&costs, cost))
    }));
    let mut csv = csv::Writer::from_path(FILE).unwrap();
    csv.write_record(HEADER).unwrap();
    for (server, listener, call, times) in ceilings {
        csv.write_record([server, listener, call, format!("{times:.3}")]).unwrap();
    }
    csv.flush().unwrap();
}

fn read() -> Vec<Ceiling> {
    csv::Reader::from_path(FILE).unwrap().deserialize().map(Result::unwrap).collect()
}

/// Counts every call of the module, and what it is compared with.
fn measure() -> Vec<Cost> {
    let is_guarded = |call: &Call| call.name == INCR || is_own(call.name);
    count(
        &[
            // The one that needs no settling first: the other's servers settle meanwhile.
            Group { listener: APPEND_ONLY_FILE, calls: [INCR, ALLOWED].map(Call::named).to_vec() },
            Group { listener: NOBODY, calls: countable().filter(is_guarded).collect() },
        ],
        EFFORT,
    )
}

fn own(costs: &[Cost]) -> impl Iterator<Item = &Cost> {
    costs.iter().filter(|cost| is_own(cost.call))
}

fn is_own(call: &str) -> bool {
    call.starts_with("TB.")
}

/// How many times as much as `INCR` in the same setting.
fn times_incr(costs: &[Cost], cost: &Cost) -> f64 {
    cost.instructions / find(costs, INCR, cost.listener).expect("INCR was counted").instructions
}
