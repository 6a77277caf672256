//! What was found out, and how it is shown: as JSON, as text, or as a page that loads nothing else.

mod render;

pub use render::printable;

use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{json, Value};
use sha2::Sha256;
use tokenbucket_core::bucket::Limit;

use crate::log::Log;
use crate::options::{Named, Options};
use crate::read::Reading;
use crate::replay::{Replay, Versus};
use crate::table::{Suggestion, Table};
use render::render;

#[derive(Serialize)]
pub struct Report<'a> {
    #[serde(flatten)]
    reading: Reading,
    by: &'a [String],
    cost: Option<&'a str>,
    keys: usize,
    /// Examples of keys.
    first_keys: Vec<String>,
    from: Timestamp,
    to: Timestamp,
    seconds: f64,
    sample: Option<u64>,
    whole_seconds: bool,
    spread: bool,
    table: Table,
    /// A limit worth trying.
    suggestion: Option<Suggestion>,
    /// What the limits of the command line, or the suggested one, would have done; then those of `--versus`.
    replays: Vec<Replay>,
    /// The first beside the second.
    versus: Option<Versus>,
    /// Places where limits are used, and how they are written there.
    paste: Vec<Value>,
}

impl<'a> Report<'a> {
    /// Computes the report on a sorted log.
    ///
    /// # Errors
    /// The system has no random numbers, for `--anonymize`.
    pub fn new(options: &'a Options, log: &Log, reading: Reading) -> Result<Self, String> {
        let table = Table::new(log, &options.rates);
        let suggestion = table.suggestion(log);
        let mut limits = options.limits.clone();
        if let Some(Suggestion { capacity, rate, .. }) = suggestion.as_ref().filter(|_| limits.is_empty()) {
            limits.extend(format!("{capacity} {}", rate.name).parse());
        }
        let secret = secret(options)?;
        let name = |number| {
            if options.anonymize {
                hash(&secret, log.key(number))
            } else {
                String::from_utf8_lossy(log.key(number)).into()
            }
        };
        let sets = [&limits, &options.versus].into_iter().filter(|set| !set.is_empty());
        let replays: Vec<Replay> = sets.map(|set| Replay::new(log, set, name)).collect();
        let both = replays.first().zip(replays.get(1));
        let versus = both.map(|(one, other)| Versus::new(log, one, other, name));
        let (first_us, last_us) = log.span_us();
        Ok(Self {
            reading,
            by: &options.by,
            cost: options.cost.as_deref(),
            keys: log.count_keys(),
            first_keys: (0..3).take(log.count_keys()).map(name).collect(),
            from: Timestamp::from_microsecond(first_us).unwrap_or_default(),
            to: Timestamp::from_microsecond(last_us).unwrap_or_default(),
            seconds: (last_us - first_us) as f64 / 1e6,
            sample: options.sample,
            whole_seconds: log.tick_us() == 1_000_000,
            spread: options.spread,
            table,
            suggestion,
            paste: if limits.is_empty() { Vec::new() } else { uses(options, &limits)? },
            replays,
            versus,
        })
    }

    /// Returns the report for programs. Times are RFC 3339, durations seconds, and costs tokens.
    pub fn json(&self) -> Result<String, String> {
        let value = serde_json::to_value(self).map_err(|error| error.to_string())?;
        Ok(format!("{value:#}\n"))
    }

    /// Returns the report by a template: `report.txt` for a terminal, or `page.html`.
    pub fn rendered(&self, template: &str) -> Result<String, String> {
        render(template, self)
    }
}

/// Returns limits as they are written where they are used.
fn uses(options: &Options, limits: &[Named<Limit>]) -> Result<Vec<Value>, String> {
    let is_address = |name: &str| ["remote", "forwarded"].contains(&name);
    let by: Vec<&str> = options.by.iter().map(|name| if is_address(name) { "ip" } else { name }).collect();
    let text = render("paste.txt", &json!({ "by": by, "cost": options.cost, "limits": limits }))?;
    let uses = text.trim_end().split("\n\n").filter_map(|part| part.split_once('\n'));
    Ok(uses.map(|(place, lines)| json!({ "place": place, "lines": lines })).collect())
}

/// Returns the key of the hash that `--anonymize` shows.
fn secret(options: &Options) -> Result<Vec<u8>, String> {
    let mut secret = options.secret.clone().unwrap_or_default().into_bytes();
    if secret.is_empty() {
        secret = vec![0; 32];
        getrandom::fill(&mut secret).map_err(|error| error.to_string())?;
    }
    Ok(secret)
}

/// Returns the keyed hash of a client.
fn hash(secret: &[u8], key: &[u8]) -> String {
    let Ok(mac) = Hmac::<Sha256>::new_from_slice(secret) else { return String::new() };
    let hash = mac.chain_update(key).finalize().into_bytes();
    hash.iter().take(6).fold("#".to_owned(), |hash, byte| format!("{hash}{byte:02x}"))
}
