//! Compares the module with other ways to limit, on real servers. The environment says which: `SERVER`, the executable,
//! `MODULE`, `REDIS_CELL`, the library of redis-cell, and `THROTTLECRAB`, the program of throttlecrab-server.
//!
//! | file | what is done there |
//! |---|---|
//! | `compare/*` | the comparison: one function per measurement, each ends in a table |
//! | `approaches/*` | ways to limit, and to hold a place. One command that decides is a row in `all` |
//! | `client`, `load`, `target` | one client, and many at once that make decisions by an approach |
//! | `calls` | single calls in a known state, whose cost is measured one by one: a row each |
//! | `instructions`, `callgrind`, `guard` | counts of instructions, and the ceilings that they must stay under |
//! | `server` | servers with one rate limiter or another, started as the tests start theirs |
//! | `throttlecrab` | throttlecrab-server, which is not Redis |
//! | `template` | commands with places for keys and limits |
//! | `table`, `report`, `plot`, `machine` | what comes out; `docs/benchmarks` says how it was measured |

mod approaches;
mod callgrind;
mod calls;
mod client;
mod compare;
mod guard;
mod instructions;
mod load;
mod machine;
mod plot;
mod report;
mod server;
mod table;
mod target;
mod template;
mod throttlecrab;

/// The launcher of the tests.
#[path = "../../tests/common"]
#[allow(dead_code)] // Tests use the rest.
mod common {
    pub mod clock;
    pub mod engine;
    pub mod reply;
    pub mod server;
    pub mod wait;

    pub use server::{Connection, Server, ServerBuilder};
}

use clap::Parser;
use std::path::PathBuf;

/// Compares the module with other ways to limit, on real servers
#[derive(Parser)]
struct Arguments {
    measurement: Measurement,
    /// Measure for a tenth of the time
    #[arg(long)]
    quick: bool,
    /// Measure this table alone, as decisions or holding
    #[arg(long)]
    only: Option<String>,
    /// The folder that the report is written to
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Measurement {
    /// Every approach side by side: speed, over-grant, latency, memory, growth, replication, holds
    Compare,
    /// Instructions of each call, by callgrind
    Instructions,
    /// Microseconds of each call, as the server counts them
    Commandstats,
    /// Fails if a call costs more instructions than recorded
    Guard,
}

fn main() -> Result<(), String> {
    let Arguments { measurement, quick, only, out } = Arguments::parse();
    match measurement {
        Measurement::Compare => compare::run(quick, &out, only.as_deref()),
        Measurement::Instructions => instructions::run(&out),
        Measurement::Commandstats => compare::run_commandstats(quick, &out),
        Measurement::Guard => return guard::check(&out),
    }
    Ok(())
}
