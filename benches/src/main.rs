//! Compares the module with other ways to limit, on real servers. `tokenbucket-bench --help` says how to call it.
//!
//! | file | what is done there |
//! |---|---|
//! | `compare/*` | the comparison: one file per measurement, each ends in a section of the report |
//! | `approaches/*` | ways to limit. One command that decides is a row in `approaches`; what takes several has a file |
//! | `load` | concurrent clients that make decisions by an approach |
//! | `calls` | single calls in a known state, whose cost is measured one by one: a row each |
//! | `instructions`, `callgrind`, `guard` | counts of instructions, and the ceilings that they must stay under |
//! | `commandstats` | the server's own microseconds per call |
//! | `server`, `replies` | real servers, and reading what they say without delay |
//! | `template` | commands with places for keys and limits |
//! | `report`, `plot`, `machine` | what comes out |

mod approaches;
mod callgrind;
mod calls;
mod commandstats;
mod compare;
mod guard;
mod instructions;
mod load;
mod machine;
mod plot;
mod replies;
mod report;
mod server;
mod subjects;
mod template;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use subjects::Subjects;

#[derive(Parser)]
#[command(about = "Compares the module with other ways to limit, on real servers")]
struct Arguments {
    #[command(subcommand)]
    measurement: Measurement,
}

#[derive(Subcommand)]
enum Measurement {
    /// Every approach side by side: speed, over-grant, latency, memory, growth, replication
    Compare {
        #[command(flatten)]
        subjects: Subjects,
        /// Measure for a tenth of the time
        #[arg(long)]
        quick: bool,
        /// The folder that the report is written to
        #[arg(long)]
        out: PathBuf,
    },
    /// Instructions of each call, by callgrind
    Instructions {
        #[command(flatten)]
        subjects: Subjects,
        /// The folder that the report is written to
        #[arg(long)]
        out: PathBuf,
    },
    /// Microseconds of each call, as the server counts them
    Commandstats {
        #[command(flatten)]
        subjects: Subjects,
        /// Measure for a tenth of the time
        #[arg(long)]
        quick: bool,
        /// The folder that the report is written to
        #[arg(long)]
        out: PathBuf,
    },
    /// Fails if a call costs more instructions than recorded
    Guard {
        #[command(flatten)]
        subjects: Subjects,
        /// The file of what was recorded
        #[arg(long)]
        ceilings: PathBuf,
        /// Record what is measured now instead
        #[arg(long)]
        record: bool,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().measurement) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(measurement: Measurement) -> Result<()> {
    match measurement {
        Measurement::Compare { subjects, quick, out } => compare::run(&subjects, quick, &out),
        Measurement::Instructions { subjects, out } => instructions::run(&subjects, &out),
        Measurement::Commandstats { subjects, quick, out } => commandstats::run(&subjects, quick, &out),
        Measurement::Guard { subjects, ceilings, record: false } => guard::check(&subjects, &ceilings),
        Measurement::Guard { subjects, ceilings, record: true } => guard::record(&subjects, &ceilings),
    }
}
