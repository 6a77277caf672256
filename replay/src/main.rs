//! The program.

use std::error::Error;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;
use tokenbucket_replay::{options::Options, read::read, report::Report};

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let (mut log, reading) = read(options)?;
    log.sort();
    if options.spread {
        log.spread();
    }
    let report = Report::new(options, &log, reading)?;
    if let Some(path) = &options.html {
        std::fs::write(path, report.rendered("page.html")?)
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let shown = if options.json { report.json()? } else { report.rendered("report.txt")? };
    match io::stdout().lock().write_all(shown.as_bytes()) {
        // The reader has seen enough.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
