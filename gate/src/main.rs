//! `tokenbucket-gate`: see the README.

use std::process::ExitCode;

fn main() -> ExitCode {
    tokenbucket_gate::program::run(std::env::args_os())
}
