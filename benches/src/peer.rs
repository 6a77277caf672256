//! Rate limiters of others, loaded as modules.

use anyhow::{ensure, Context, Result};
use std::path::PathBuf;
use std::str::FromStr;

/// A module and the call that makes one decision.
#[derive(Clone, Debug)]
pub struct Peer {
    pub name: String,
    pub module: PathBuf,
    template: String,
}

impl Peer {
    /// The words of a call on a bucket.
    pub fn words(&self, key: &str) -> Vec<String> {
        self.template.split_whitespace().map(|word| word.replace("{key}", key)).collect()
    }

    /// The command alone.
    pub fn command(&self) -> &str {
        self.template.split_whitespace().next().unwrap_or_default()
    }
}

impl FromStr for Peer {
    type Err = anyhow::Error;

    /// Reads `name=path.so:COMMAND {key} ARGUMENTS`.
    fn from_str(text: &str) -> Result<Self> {
        let form = || format!("a peer is given as 'name=path.so:COMMAND {{key}} ARGUMENTS', not '{text}'");
        let (name, rest) = text.split_once('=').with_context(form)?;
        let (module, template) = rest.split_once(':').with_context(form)?;
        ensure!(template.contains("{key}"), form());
        let module = PathBuf::from(module);
        ensure!(module.exists(), "the module of peer {name} is missing: {}", module.display());
        Ok(Self {
            name: name.to_owned(),
            module: std::path::absolute(module)?,
            template: template.to_owned(),
        })
    }
}
