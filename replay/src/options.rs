//! The command line.

use std::path::PathBuf;

use clap::Parser;
use regex::bytes::Regex;
use tokenbucket_core::bucket::{Limit, Operation};
use tokenbucket_core::number::MICRO_PER_TOKEN;
use tokenbucket_core::rate::Rate;
use tokenbucket_core::request::{take, Wanted};

use crate::read::Condition;

/// Read access logs: which limit would have denied whom, and which limit denies only those it should?
#[derive(Clone, Debug, Default, Parser)]
#[command(version, max_term_width = 100)]
pub struct Options {
    /// Access logs, plain or compressed by gzip or zstd; standard input without any, or as `-`
    pub files: Vec<PathBuf>,
    /// Field that names the client: ip, user, or a path in JSON like request.headers.X-Api-Key. Several make one key
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
    pub limits: Vec<NamedLimit>,
    /// Replay this limit too, beside --limit, and show who would notice the difference
    #[arg(long, value_name = "CAPACITY RATE", requires = "limits")]
    pub versus: Vec<NamedLimit>,
    /// Rates of the table, instead of those that fit the log
    #[arg(long, value_delimiter = ',')]
    pub rates: Vec<NamedRate>,
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

/// A limit, and how it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedLimit {
    /// The capacity as written.
    pub capacity: String,
    /// The rate as written.
    pub rate: String,
    /// What both mean.
    pub limit: Limit,
}

impl std::str::FromStr for NamedLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [capacity, rate] = words.as_slice() else {
            return Err("write the capacity and the rate, like '33 1/m'".to_owned());
        };
        let arguments = ["key", capacity, rate];
        let request = take(&arguments).map_err(|error| {
            let line =
                tokenbucket_core::error::Refusal::from(error).line("TB.TAKE key capacity rate", &arguments);
            line.trim_start_matches("ERR ").to_owned()
        })?;
        debug_assert_eq!(request.wanted, Wanted::Tokens(Operation::Take { cost_micro: MICRO_PER_TOKEN }));
        Ok(Self { capacity: (*capacity).to_owned(), rate: (*rate).to_owned(), limit: request.limit })
    }
}

impl std::fmt::Display for NamedLimit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} {}", self.capacity, self.rate)
    }
}

/// A rate, and how it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRate {
    /// The rate as written.
    pub name: String,
    /// What it means.
    pub rate: Rate,
}

impl std::str::FromStr for NamedRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let limit: NamedLimit = format!("0 {text}").parse()?;
        Ok(Self { name: limit.rate, rate: *limit.limit.rate() })
    }
}

fn one_of(text: &str) -> Result<u64, String> {
    let count = text.strip_prefix("1/").and_then(|count| count.parse().ok()).filter(|count| *count > 0);
    count.ok_or_else(|| "write 1/10 for a tenth of the keys".to_owned())
}
