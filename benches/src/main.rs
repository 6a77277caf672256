//! Compares the module with other ways to limit, on real servers. `tokenbucket-bench --help` says how to call it.
//!
//! | file | what is done there |
//! |---|---|
//! | `compare/*` | the comparison: one file per measurement, each ends in a section of the report |
//! | `approaches/*` | ways to limit, and to hold a place. One command that decides is a row in `approaches`; what takes several has a file |
//! | `load` | concurrent clients that make decisions by an approach |
//! | `calls` | single calls in a known state, whose cost is measured one by one: a row each |
//! | `instructions`, `callgrind`, `guard` | counts of instructions, and the ceilings that they must stay under |
//! | `server`, `replies` | real servers, and reading what they say without delay |
//! | `template` | commands with places for keys and limits |
//! | `report`, `plot`, `machine` | what comes out |

mod approaches;
mod arguments;
mod callgrind;
mod calls;
mod compare;
mod guard;
mod instructions;
mod load;
mod machine;
mod plot;
mod replies;
mod report;
mod server;
mod template;

use arguments::{Arguments, Measurement};
use clap::Parser;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    match arguments.measurement {
        Measurement::Compare => compare::run(&arguments),
        Measurement::Instructions => instructions::run(&arguments),
        Measurement::Commandstats => compare::run_commandstats(&arguments),
        Measurement::Guard if arguments.record => guard::record(&arguments),
        Measurement::Guard => guard::check(&arguments),
    }
}
