//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Parser;
use regex::bytes::Regex;
use serde::Serialize;
use tokenbucket_core::bucket::Limit;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::rate::Rate;
use tokenbucket_core::request::take;

/// Read access logs: which limit would have denied whom, and which limit denies only those it should?
#[derive(Clone, Debug, Default, Parser)]
#[command(version, max_term_width = 100)]
pub struct Options {
    /// Access logs, plain or compressed by gzip or zstd; standard input without any, or as `-`
    pub files: Vec<PathBuf>,
    /// Field that names the client: user, a path in JSON like request.headers.X-Api-Key, remote (the peer's address),
    /// forwarded (the last of X-Forwarded-For), or ip, which is that behind a private peer. Several make one key
    #[arg(long, value_name = "FIELD", default_value = "ip", value_delimiter = ',')]
    pub by: Vec<String>,
    /// Field with the cost of a request in tokens; 1 without
    #[arg(long, value_name = "FIELD")]
    pub cost: Option<String>,
    /// Field with the time of a request, unless it has a usual name
    #[arg(long, value_name = "FIELD")]
    pub time: Option<String>,
    /// Count only lines where this holds: field=value, field!=value, field^=prefix, field~regex. Several must all hold
    #[arg(long = "where", value_name = "CONDITION")]
    pub conditions: Vec<Condition>,
    /// Format of the logs, instead of recognising it
    #[arg(long, value_parser = crate::read::FORMATS.map(|(name, _)| name))]
    pub format: Option<String>,
    /// Regular expression with named groups, like `^(?P<ip>\S+) (?P<time>\S+)`, for lines in another format
    #[arg(long, conflicts_with = "format")]
    pub regex: Option<Regex>,
    /// Replay this limit, like '33 1/m'. A request must pass all limits that are given
    #[arg(long = "limit", value_name = "CAPACITY RATE")]
    pub limits: Vec<Named<Limit>>,
    /// Replay this limit too, beside --limit, and show who would notice the difference
    #[arg(long, value_name = "CAPACITY RATE", requires = "limits")]
    pub versus: Vec<Named<Limit>>,
    /// Rates of the table, instead of those that fit the log
    #[arg(long, value_delimiter = ',')]
    pub rates: Vec<Named<Rate>>,
    /// Spread the requests that a coarse clock puts at one moment evenly over its second (or millisecond)
    #[arg(long)]
    pub spread: bool,
    /// Take one key of N, all of its requests
    #[arg(long, value_name = "1/N", value_parser = one_of)]
    pub sample: Option<u64>,
    /// Report even if more than 5 % of the lines cannot be read
    #[arg(long)]
    pub lax: bool,
    /// Show a keyed hash instead of each key. The key of the hash is random, or $TOKENBUCKET_REPLAY_SECRET
    #[arg(long)]
    pub anonymize: bool,
    /// Makes the hashes of several runs the same
    #[arg(long, hide = true, env = "TOKENBUCKET_REPLAY_SECRET", hide_env_values = true)]
    pub secret: Option<String>,
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the report as a page that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// A limit or a rate, and how it is written.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct Named<T> {
    /// The capacity and the rate, like `33 1/m`, or the rate alone.
    pub name: String,
    /// What they mean.
    #[serde(skip)]
    pub value: T,
}

impl FromStr for Named<Limit> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [capacity, rate] = words.as_slice() else {
            return Err("write the capacity and the rate, like '33 1/m'".to_owned());
        };
        let arguments = ["key", capacity, rate];
        let request = take(&arguments).map_err(|error| {
            let line = Refusal::from(error).line("TB.TAKE key capacity rate", &arguments);
            line.trim_start_matches("ERR ").to_owned()
        })?;
        Ok(Self { name: words.join(" "), value: request.limit })
    }
}

impl FromStr for Named<Rate> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let limit: Named<Limit> = format!("0 {text}").parse()?;
        Ok(Self { name: text.trim().to_owned(), value: *limit.value.rate() })
    }
}

/// A condition on one field of a line.
#[derive(Clone, Debug)]
pub struct Condition {
    pub field: String,
    /// What its value must match, or must not if the condition is negated.
    pattern: Regex,
    is_negated: bool,
}

impl Condition {
    /// Returns whether it holds for a value; a line without the field has an empty one.
    #[must_use]
    pub fn holds(&self, value: Option<&[u8]>) -> bool {
        self.pattern.is_match(value.unwrap_or_default()) != self.is_negated
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            regex::Regex::new(r"(?s)^([^=~]+?)(!=|\^=|=|~)(.*)$").map_err(|error| error.to_string())?;
        let parts = form.captures(text).map(|parts| parts.extract().1);
        let [field, mark, value] =
            parts.ok_or("write field=value, field!=value, field^=prefix or field~regex")?;
        let literal = regex::escape(value);
        let pattern = match mark {
            "~" => value.to_owned(),
            "^=" => format!("^{literal}"),
            _ => format!("^{literal}$"),
        };
        let pattern = Regex::new(&pattern).map_err(|error| error.to_string())?;
        Ok(Self { field: field.to_owned(), pattern, is_negated: mark == "!=" })
    }
}

fn one_of(text: &str) -> Result<u64, String> {
    let count = text.strip_prefix("1/").and_then(|count| count.parse().ok()).filter(|count| *count > 0);
    count.ok_or_else(|| "write 1/10 for a tenth of the keys".to_owned())
}
