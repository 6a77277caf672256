//! The program.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;
use tokenbucket_replay::options::Options;
use tokenbucket_replay::read::read;
use tokenbucket_replay::report::{json::json, render, Report};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let (mut log, reading) = read(options)?;
    reading.check(options)?;
    log.sort();
    if options.spread {
        log.spread();
    }
    let report = Report::new(options, &log, &reading)?;
    if let Some(path) = &options.html {
        std::fs::write(path, render::page(&report)?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let shown = if options.json { format!("{:#}\n", json(&report)) } else { render::text(&report)? };
    match io::stdout().lock().write_all(shown.as_bytes()) {
        // The reader has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| error.to_string()),
    }
}
