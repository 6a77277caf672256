//! What the program is told: what to measure, on a server, the module, and the rate limiters of others.

use anyhow::{ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Compares the module with other ways to limit, on real servers
#[derive(clap::Parser)]
pub struct Arguments {
    pub measurement: Measurement,
    /// The server's executable
    #[arg(long, value_parser = existing)]
    pub server: PathBuf,
    /// The module
    #[arg(long, value_parser = existing)]
    pub module: PathBuf,
    /// Another rate limiter's module and the call that decides: 'name=path.so:COMMAND {key} ARGUMENTS', among which
    /// {capacity}, {burst} (one less), {count} and {period_s} stand for the limit. Several are separated by semicolons.
    /// One whose call does not name the limit takes no part where the limit matters
    #[arg(long = "peer", value_delimiter = ';')]
    pub peers: Vec<Peer>,
    /// What the report is to say of the peers
    #[arg(long, default_value = "")]
    pub note: String,
    /// Measure for a tenth of the time
    #[arg(long)]
    pub quick: bool,
    /// The folder that the report is written to
    #[arg(long, default_value = "target/bench")]
    pub out: PathBuf,
    /// The file of what the guard compares with
    #[arg(long, default_value = "benches/ceilings.csv")]
    pub ceilings: PathBuf,
    /// Let the guard record what it measures instead
    #[arg(long)]
    pub record: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Measurement {
    /// Every approach side by side: speed, over-grant, latency, memory, growth, replication, holds
    Compare,
    /// Instructions of each call, by callgrind
    Instructions,
    /// Microseconds of each call, as the server counts them
    Commandstats,
    /// Fails if a call costs more instructions than recorded
    Guard,
}

/// A module of others and the call that makes one decision.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name and release.
    pub name: String,
    pub module: PathBuf,
    pub call: String,
}

impl Peer {
    /// What its call is named in reports.
    pub fn label(&self) -> String {
        format!("{} ({})", self.call.split(' ').next().unwrap_or_default(), self.name)
    }
}

impl FromStr for Peer {
    type Err = anyhow::Error;

    /// A blank may stand behind the path instead of the colon.
    fn from_str(text: &str) -> Result<Self> {
        let form = || format!("a peer is given as 'name=path.so:COMMAND {{key}} ARGUMENTS', not '{text}'");
        let (name, rest) = text.trim().split_once('=').with_context(form)?;
        let (module, call) = rest.split_once([':', ' ']).with_context(form)?;
        ensure!(call.contains("{key}"), form());
        let module = existing(module).with_context(|| format!("the module of peer {name}"))?;
        Ok(Self { name: name.to_owned(), module, call: call.to_owned() })
    }
}

fn existing(path: &str) -> Result<PathBuf> {
    ensure!(Path::new(path).exists(), "{path} is missing");
    Ok(std::path::absolute(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_read_with_a_colon_or_a_blank_behind_the_path() {
        for text in ["cell 0.2.2=Cargo.toml:LIMIT {key} 5", "cell 0.2.2=Cargo.toml LIMIT {key} 5"] {
            let peer: Peer = text.parse().unwrap();
            assert_eq!((peer.call.as_str(), peer.label().as_str()), ("LIMIT {key} 5", "LIMIT (cell 0.2.2)"));
        }
    }

    #[test]
    fn what_is_no_peer_is_refused_with_the_form() {
        for text in
            ["cell", "cell=Cargo.toml", "cell=Cargo.toml:CL.THROTTLE 1 2 3", "cell=missing.so:A {key}"]
        {
            let error = text.parse::<Peer>().unwrap_err().to_string();
            assert!(error.contains("peer"), "{text}: {error}");
        }
    }
}
