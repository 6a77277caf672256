//! Compares the module with other ways to limit, on real servers. `tokenbucket-bench` alone says how to call it.
//!
//! | file | what is done there |
//! |---|---|
//! | `compare/*` | the comparison: one file per measurement, each ends in a section of the report |
//! | `approaches/*` | one file per way to limit, all behind the trait `Approach`. A new one: its file, and a line in `all` |
//! | `load` | concurrent clients that make decisions by an approach |
//! | `calls` | single calls in a known state, whose cost is measured one by one |
//! | `instructions`, `callgrind`, `guard` | counts of instructions, and the ceilings that they must stay under |
//! | `commandstats` | the server's own microseconds per call |
//! | `server`, `connection`, `resp` | real servers, and talking to them |
//! | `cores` | keeps servers and clients out of each other's way |
//! | `report`, `plot`, `machine`, `progress` | what comes out |

mod approaches;
mod arguments;
mod callgrind;
mod calls;
mod commandstats;
mod compare;
mod connection;
mod cores;
mod guard;
mod instructions;
mod limit;
mod load;
mod machine;
mod peer;
mod plot;
mod progress;
mod random;
mod report;
mod resp;
mod script;
mod server;

use anyhow::{Context, Result};
use arguments::{Arguments, USAGE};
use instructions::Paths;
use report::Section;
use std::process::ExitCode;

fn main() -> ExitCode {
    match Arguments::read(std::env::args().skip(1)).and_then(|arguments| run(&arguments)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode> {
    if !["compare", "instructions", "commandstats", "guard"].contains(&arguments.command.as_str()) {
        eprintln!("{USAGE}");
        return Ok(ExitCode::FAILURE);
    }
    let (server, module) = (arguments.server()?, arguments.module()?);
    let paths = Paths { server: &server, module: &module, peers: &arguments.peers };
    match arguments.command.as_str() {
        "instructions" => count_instructions(arguments, &paths),
        "commandstats" => ask_the_server(arguments, &paths),
        "guard" => guard(arguments, &paths),
        _ => compare(arguments, &paths),
    }
}

fn count_instructions(arguments: &Arguments, paths: &Paths) -> Result<ExitCode> {
    let caption = machine::caption(paths)?;
    let costs = instructions::count_all(paths, instructions::THOROUGH)?;
    if let Some(file) = &arguments.json {
        std::fs::write(file, instructions::json(&costs))?;
    }
    show(arguments, "instructions.md", instructions::section(&costs, &caption), &caption)
}

fn ask_the_server(arguments: &Arguments, paths: &Paths) -> Result<ExitCode> {
    let caption = machine::caption(paths)?;
    let effort = if arguments.quick { commandstats::QUICK } else { commandstats::THOROUGH };
    let costs = commandstats::measure(paths, effort)?;
    show(arguments, "commandstats.md", commandstats::section(&costs, &caption), &caption)
}

/// Prints what was found, and writes it as a page if a folder for it is given.
fn show(arguments: &Arguments, page: &str, section: Section, caption: &str) -> Result<ExitCode> {
    print!("{}", section.table.text());
    if let Some(folder) = &arguments.out {
        report::write_all(folder, page, &format!("# Benchmark\n\n{caption}\n"), &[section])?;
    }
    Ok(ExitCode::SUCCESS)
}

fn compare(arguments: &Arguments, paths: &Paths) -> Result<ExitCode> {
    let out = arguments.out.as_ref().context("--out is needed")?;
    compare::run(paths, arguments.quick, out)?;
    Ok(ExitCode::SUCCESS)
}

fn guard(arguments: &Arguments, paths: &Paths) -> Result<ExitCode> {
    let ceilings = arguments.ceilings()?;
    if arguments.record {
        guard::record(paths, &ceilings)?;
        return Ok(ExitCode::SUCCESS);
    }
    let all_hold = guard::check(paths, &ceilings)?;
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
