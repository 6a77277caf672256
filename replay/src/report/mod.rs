//! What was found out, and how it is shown: as JSON, as text, or as a page that loads nothing else.

mod render;

pub use render::printable;

use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use serde::Serialize;
use sha2::Sha256;

use crate::log::Log;
use crate::options::{NamedLimit, Options};
use crate::read::Reading;
use crate::replay::{Replay, Versus};
use crate::table::{Suggestion, Table};
use render::render;

/// All that is shown.
#[derive(Serialize)]
pub struct Report<'a> {
    #[serde(flatten)]
    reading: Reading,
    by: &'a [String],
    cost: Option<&'a str>,
    keys: usize,
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
    paste: Vec<Use>,
}

/// A place where limits are used, and how they are written there.
#[derive(Serialize)]
struct Use {
    place: String,
    lines: String,
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
        let versus = match replays.as_slice() {
            [one, other] => Some(Versus::new(log, one, other, name)),
            _ => None,
        };
        let (first_us, last_us) = log.span_us();
        Ok(Self {
            reading,
            by: &options.by,
            cost: options.cost.as_deref(),
            keys: log.count_keys(),
            from: Timestamp::from_microsecond(first_us).unwrap_or_default(),
            to: Timestamp::from_microsecond(last_us).unwrap_or_default(),
            seconds: (last_us - first_us) as f64 / 1e6,
            sample: options.sample,
            whole_seconds: log.tick_us() == 1_000_000,
            spread: options.spread,
            table,
            suggestion,
            paste: replays
                .last()
                .map(|replay| uses(options, &replay.limits))
                .transpose()?
                .unwrap_or_default(),
            replays,
            versus,
        })
    }

    /// Returns the report for programs. Times are RFC 3339, durations seconds, and costs tokens.
    ///
    /// # Errors
    /// None is known.
    pub fn json(&self) -> Result<String, String> {
        let value = serde_json::to_value(self).map_err(|error| error.to_string())?;
        Ok(format!("{value:#}\n"))
    }

    /// Returns the report for a terminal.
    ///
    /// # Errors
    /// A mistake in the template.
    pub fn text(&self) -> Result<String, String> {
        render("report.txt", self)
    }

    /// Returns the page.
    ///
    /// # Errors
    /// A mistake in the template.
    pub fn page(&self) -> Result<String, String> {
        render("page.html", self)
    }
}

/// Returns limits as they are written where they are used.
fn uses(options: &Options, limits: &[NamedLimit]) -> Result<Vec<Use>, String> {
    #[derive(Serialize)]
    struct Values<'a> {
        by: &'a [String],
        cost: Option<&'a str>,
        limits: &'a [NamedLimit],
    }
    let text = render("paste.txt", &Values { by: &options.by, cost: options.cost.as_deref(), limits })?;
    let uses = text.trim_end().split("\n\n").filter_map(|part| part.split_once('\n'));
    Ok(uses.map(|(place, lines)| Use { place: place.to_owned(), lines: lines.to_owned() }).collect())
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
