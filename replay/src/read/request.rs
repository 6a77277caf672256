//! The fields that a run needs, and the request that their values make.

use tokenbucket_core::number::{micro_tokens, Rounding, MICRO_PER_TOKEN};

use super::client::{are_clients, Clients, Part};
use super::source::MAX_LINE;
use super::time::Times;
use super::{Fields, Format};
use crate::options::Options;

/// Usual names for the time of a request. Its beginning is better than its end.
const TIMES: &str = "start_time StartUTC time ts timestamp @timestamp time_iso8601 time_local msec datetime \
    date requestTime requestTimeEpoch EdgeStartTimestamp started_at timeStamp";
/// The longest key, in bytes.
const MAX_KEY: usize = 4096;

/// Reads requests from lines. Fields are known by their places among the names.
pub struct Requests<'a> {
    options: &'a Options,
    /// All names that a format looks for.
    pub names: Vec<String>,
    times: Vec<usize>,
    by: Vec<Part>,
    cost: Option<usize>,
    conditions: Vec<usize>,
    pub clients: Clients,
    fields: Fields,
    read_times: Times,
    key: Vec<u8>,
}

pub struct Request<'a> {
    pub key: &'a [u8],
    /// Unix microseconds.
    pub at_us: i64,
    /// Micro-tokens; `None` if the line lacks the field.
    pub cost_micro: Option<i64>,
}

/// Why a line is no request: it is none by itself, a condition leaves it out, it lacks a field of the key, its key is not in
/// the sample, or it cannot be read.
pub enum Skipped {
    Comment,
    LeftOut,
    WithoutKey,
    NotInSample,
    Unread(&'static str),
}

impl<'a> Requests<'a> {
    /// Makes requests of the fields that the options name.
    pub fn new(options: &'a Options) -> Self {
        let mut names: Vec<String> = Vec::new();
        let mut number = |name: &str| {
            names.iter().position(|known| known == name).unwrap_or_else(|| {
                names.push(name.to_owned());
                names.len() - 1
            })
        };
        let times = options.time.as_deref().map_or_else(|| TIMES.split(' ').collect(), |name| vec![name]);
        let times = times.into_iter().map(&mut number).collect();
        let part = |name: &String| match name.as_str() {
            "ip" => Part::Client,
            "remote" => Part::Peer,
            "forwarded" => Part::Forwarded,
            _ => Part::Field(number(name)),
        };
        let by = options.by.iter().map(part).collect();
        let cost = options.cost.as_deref().map(&mut number);
        let conditions = options.conditions.iter().map(|condition| number(&condition.field)).collect();
        let clients = Clients::new(number);
        let (fields, read_times, key) = (Fields::default(), Times::default(), Vec::new());
        Self { options, names, times, by, cost, conditions, clients, fields, read_times, key }
    }

    /// Decides by the lines of a sample whether to heed a field that is `X-Forwarded-For` by its place alone.
    pub fn judge_forwarded(&mut self, format: &mut Format, lines: &[Vec<u8>]) {
        let is_doubtful = format.guesses_forwarded && !self.by.contains(&Part::Forwarded);
        let sample = lines.iter().filter(|_| is_doubtful).filter_map(|line| {
            self.time_us(format, line).ok()?;
            self.clients.sample(&self.fields)
        });
        self.clients.heeds_forwarded = !is_doubtful || are_clients(&sample.collect::<Vec<_>>());
    }

    /// Returns the time of a line, if it has this format.
    pub fn time_us(&mut self, format: &mut Format, line: &[u8]) -> Result<i64, Skipped> {
        let Self { names, times, fields, read_times, .. } = self;
        if line.len() > MAX_LINE {
            return Err(Skipped::Unread("more than 1 MiB"));
        }
        fields.clear(names.len());
        (format.read)(line, fields)?;
        let mut times = times.iter().filter_map(|number| fields.get(*number));
        times.find_map(|text| read_times.us(text)).ok_or(Skipped::Unread("no time that can be read"))
    }

    /// Returns the request of a line.
    pub fn read(&mut self, format: &mut Format, line: &[u8]) -> Result<Request<'_>, Skipped> {
        let at_us = self.time_us(format, line)?;
        let mut conditions = self.conditions.iter().zip(&self.options.conditions);
        if !conditions.all(|(number, condition)| condition.holds(self.fields.get(*number))) {
            return Err(Skipped::LeftOut);
        }
        self.key.clear();
        for part in &self.by {
            self.key.extend((!self.key.is_empty()).then_some(b' '));
            match *part {
                Part::Field(number) => self.fields.get(number).map(|value| self.key.extend_from_slice(value)),
                address => self.clients.push(address, &self.fields, &mut self.key),
            }
            .ok_or(Skipped::WithoutKey)?;
        }
        let key = self.key.as_slice();
        if key.len() > MAX_KEY {
            return Err(Skipped::Unread("a key of more than 4,096 bytes"));
        }
        if self.options.sample.is_some_and(|sample| !hash(key).is_multiple_of(sample)) {
            return Err(Skipped::NotInSample);
        }
        let cost_micro = match self.cost.map(|number| self.fields.get(number)) {
            None => Some(MICRO_PER_TOKEN),
            Some(None) => None,
            Some(Some(cost)) => {
                Some(micro_tokens(cost, Rounding::Up).ok_or(Skipped::Unread("no cost that can be read"))?)
            }
        };
        Ok(Request { key, at_us, cost_micro })
    }
}

/// Returns the same number for a key in every run (FNV-1a, whose higher bits are mixed best).
fn hash(key: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.iter().fold(0xcbf2_9ce4_8422_2325, step) >> 24
}
