//! What the program is told on its command line.

use crate::peer::Peer;
use anyhow::{bail, ensure, Context, Result};
use std::path::PathBuf;

pub const USAGE: &str = "\
tokenbucket-bench compare [--quick] --server PATH --module PATH [--peer PEER]... --out FOLDER
tokenbucket-bench instructions --server PATH --module PATH [--peer PEER]... [--out FOLDER] [--json FILE]
tokenbucket-bench commandstats [--quick] --server PATH --module PATH [--peer PEER]... [--out FOLDER]
tokenbucket-bench guard --server PATH --module PATH --ceilings FILE [--record]

PEER is another rate limiter's module and the call that decides: 'name=path.so:COMMAND {key} ARGUMENTS', among which
{capacity}, {burst} (one less), {count} and {period_s} stand for the limit. Several are separated by semicolons. One
whose call does not name the limit takes no part where the limit matters.";

#[derive(Debug, Default)]
pub struct Arguments {
    pub command: String,
    pub quick: bool,
    pub record: bool,
    server: Option<PathBuf>,
    module: Option<PathBuf>,
    pub out: Option<PathBuf>,
    ceilings: Option<PathBuf>,
    pub json: Option<PathBuf>,
    pub peers: Vec<Peer>,
}

impl Arguments {
    /// Reads the words after the program's name.
    pub fn read(words: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut words = words.into_iter();
        let mut arguments = Self { command: words.next().unwrap_or_default(), ..Self::default() };
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} needs a value"));
            match word.as_str() {
                "--quick" => arguments.quick = true,
                "--record" => arguments.record = true,
                "--server" => arguments.server = Some(value()?.into()),
                "--module" => arguments.module = Some(value()?.into()),
                "--out" => arguments.out = Some(value()?.into()),
                "--ceilings" => arguments.ceilings = Some(value()?.into()),
                "--json" => arguments.json = Some(value()?.into()),
                "--peer" => {
                    for peer in value()?.split(';').filter(|peer| !peer.trim().is_empty()) {
                        arguments.peers.push(peer.trim().parse()?);
                    }
                }
                _ => bail!("'{word}' is not an option"),
            }
        }
        Ok(arguments)
    }

    pub fn server(&self) -> Result<PathBuf> {
        existing("--server", self.server.as_ref())
    }

    pub fn module(&self) -> Result<PathBuf> {
        existing("--module", self.module.as_ref())
    }

    pub fn ceilings(&self) -> Result<PathBuf> {
        self.ceilings.clone().context("--ceilings is needed")
    }
}

fn existing(option: &str, path: Option<&PathBuf>) -> Result<PathBuf> {
    let path = path.with_context(|| format!("{option} is needed"))?;
    ensure!(path.exists(), "{option}: {} is missing", path.display());
    Ok(std::path::absolute(path)?)
}
