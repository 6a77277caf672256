//! What was found out, and how it is shown.

pub mod json;
pub mod paste;
pub mod plot;
pub mod render;
mod words;

pub use words::printable;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokenbucket_core::bucket::Limit;

use crate::log::Log;
use crate::options::{NamedLimit, Options};
use crate::read::Reading;
use crate::replay::{replay, versus, Replayed, Versus};
use crate::table::{Suggestion, Table};

/// All that is shown.
pub struct Report<'a> {
    /// The command line.
    pub options: &'a Options,
    /// The requests.
    pub log: &'a Log,
    /// How they were read.
    pub reading: &'a Reading,
    /// Capacities for rates.
    pub table: Table,
    /// A limit worth trying.
    pub suggestion: Option<Suggestion>,
    /// The limits of the command line, or the suggested one, and what they would have done; then those of `--versus`.
    pub replays: Vec<(Vec<NamedLimit>, Replayed)>,
    /// The first beside the second.
    pub versus: Option<Versus>,
    secret: Vec<u8>,
}

impl<'a> Report<'a> {
    /// Computes the report on a sorted log.
    ///
    /// # Errors
    /// The system has no random numbers, for `--anonymize`.
    pub fn new(options: &'a Options, log: &'a Log, reading: &'a Reading) -> Result<Self, String> {
        let table = Table::new(log, &options.rates);
        let suggestion = table.suggestion(log);
        let suggested = suggestion
            .iter()
            .filter_map(|limit| format!("{} {}", limit.capacity, limit.rate.name).parse().ok());
        let first = if options.limits.is_empty() { suggested.collect() } else { options.limits.clone() };
        let sets = [first, options.versus.clone()].into_iter().filter(|set| !set.is_empty());
        let replays: Vec<_> = sets
            .map(|set| {
                let replayed = replay(log, &limits(&set));
                (set, replayed)
            })
            .collect();
        let versus = match replays.as_slice() {
            [(one, _), (other, _)] => Some(versus(log, &limits(one), &limits(other))),
            _ => None,
        };
        let mut secret = options.secret.clone().unwrap_or_default().into_bytes();
        if secret.is_empty() {
            secret = vec![0; 32];
            getrandom::fill(&mut secret).map_err(|error| error.to_string())?;
        }
        Ok(Self { options, log, reading, table, suggestion, replays, versus, secret })
    }

    /// Returns a key as it is shown: as text, or its keyed hash.
    #[must_use]
    pub fn key(&self, number: u32) -> String {
        let key = self.log.key(number);
        if !self.options.anonymize {
            return String::from_utf8_lossy(key).into_owned();
        }
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.secret) else { return String::new() };
        mac.update(key);
        mac.finalize()
            .into_bytes()
            .iter()
            .take(6)
            .fold("#".to_owned(), |hash, byte| format!("{hash}{byte:02x}"))
    }

    /// Returns what keys are called.
    #[must_use]
    pub fn keys_are(&self) -> &'static str {
        if self.options.by == ["ip"] {
            "addresses"
        } else {
            "keys"
        }
    }

    /// Returns what costs are counted in.
    #[must_use]
    pub fn costs_are(&self) -> &str {
        self.options.cost.as_deref().map_or("requests", last_name)
    }
}

/// Returns the last part of a path in JSON.
fn last_name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

fn limits(named: &[NamedLimit]) -> Vec<Limit> {
    named.iter().map(|named| named.limit).collect()
}
