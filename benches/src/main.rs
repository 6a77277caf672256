//! Compares the module with other ways to limit, on real servers. `tokenbucket-bench` alone says how to call it.

mod arguments;
mod callgrind;
mod calls;
mod connection;
mod instructions;
mod peer;
mod progress;
mod random;
mod resp;
mod script;
mod server;

use anyhow::Result;
use arguments::{Arguments, USAGE};
use instructions::{Paths, THOROUGH};
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
    match arguments.command.as_str() {
        "instructions" => count_instructions(arguments),
        _ => {
            eprintln!("{USAGE}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn count_instructions(arguments: &Arguments) -> Result<ExitCode> {
    let (server, module) = (arguments.server()?, arguments.module()?);
    let paths = Paths { server: &server, module: &module, peers: &arguments.peers };
    let costs = instructions::count_all(&paths, THOROUGH)?;
    print!("{}", instructions::table(&costs));
    if let Some(file) = &arguments.json {
        std::fs::write(file, instructions::json(&costs))?;
    }
    Ok(ExitCode::SUCCESS)
}
