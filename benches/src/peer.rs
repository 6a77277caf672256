//! Rate limiters of others, loaded as modules.

use crate::limit::Limit;
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
    pub fn words(&self, key: &str, limit: Limit) -> Vec<String> {
        let fill = |word: &str| {
            word.replace("{key}", key)
                .replace("{capacity}", &limit.capacity.to_string())
                .replace("{burst}", &(limit.capacity - 1).to_string())
                .replace("{count}", &limit.count.to_string())
                .replace("{period_s}", &limit.period_s.to_string())
        };
        self.template.split_whitespace().map(fill).collect()
    }

    /// Whether the call says how much it is to allow.
    pub fn has_any_limit(&self) -> bool {
        self.template.contains("{count}")
    }

    /// The command alone.
    pub fn command(&self) -> &str {
        self.template.split_whitespace().next().unwrap_or_default()
    }
}

impl FromStr for Peer {
    type Err = anyhow::Error;

    /// Reads `name=path.so:COMMAND {key} ARGUMENTS`, with a blank or a colon behind the path. Among the arguments,
    /// `{capacity}` stands for the most tokens at once, `{burst}` for one less, `{count}` and `{period_s}` for how many
    /// flow in in how many seconds.
    fn from_str(text: &str) -> Result<Self> {
        let form = || format!("a peer is given as 'name=path.so:COMMAND {{key}} ARGUMENTS', not '{text}'");
        let (name, rest) = text.split_once('=').with_context(form)?;
        let (module, template) = rest.split_once([':', ' ']).with_context(form)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    const SOME_FILE: &str = "Cargo.toml";

    #[test]
    fn a_call_is_filled_in() {
        let peer: Peer =
            format!("cell={SOME_FILE}:CL.THROTTLE {{key}} {{burst}} {{count}} {{period_s}}").parse().unwrap();
        let words = peer.words("user:1", Limit { capacity: 10, count: 5, period_s: 60 });
        assert_eq!(words, ["CL.THROTTLE", "user:1", "9", "5", "60"]);
        assert_eq!((peer.name.as_str(), peer.command(), peer.has_any_limit()), ("cell", "CL.THROTTLE", true));
    }

    #[test]
    fn a_blank_may_stand_behind_the_path() {
        let peer: Peer = format!("other={SOME_FILE} LIMIT.IT {{key}} 5").parse().unwrap();
        assert_eq!((peer.command(), peer.has_any_limit()), ("LIMIT.IT", false));
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
