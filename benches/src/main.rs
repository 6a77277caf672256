//! Compares the module with other ways to limit, on real servers. `tokenbucket-bench` alone says how to call it.

mod approaches;
mod arguments;
mod callgrind;
mod calls;
mod commandstats;
mod compare;
mod connection;
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

use anyhow::Result;
use arguments::{Arguments, USAGE};
use instructions::Paths;
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
    let costs = instructions::count_all(paths, instructions::THOROUGH)?;
    print!("{}", instructions::table(&costs));
    if let Some(file) = &arguments.json {
        std::fs::write(file, instructions::json(&costs))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn ask_the_server(arguments: &Arguments, paths: &Paths) -> Result<ExitCode> {
    let effort = if arguments.quick { commandstats::QUICK } else { commandstats::THOROUGH };
    print!("{}", commandstats::table(&commandstats::measure(paths, effort)?)?);
    Ok(ExitCode::SUCCESS)
}

fn compare(arguments: &Arguments, paths: &Paths) -> Result<ExitCode> {
    compare::run(paths, arguments.quick, &arguments.out()?)?;
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
