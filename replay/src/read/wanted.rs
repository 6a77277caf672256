//! The fields that a run needs, and the request that their values make.

use tokenbucket_core::number::{micro_tokens, Rounding, MICRO_PER_TOKEN};

use super::address::{append_key, last_forwarded};
use super::time::Times;
use super::{Condition, Fields, Format};
use crate::options::Options;

/// Usual names for the time of a request. Its beginning is better than its end.
const TIMES: &str = "start_time StartUTC time ts timestamp @timestamp time_iso8601 \
    time_local msec datetime date";
/// Usual names for `X-Forwarded-For`.
const FORWARDED: &str = "forwarded x_forwarded_for x-forwarded-for X-Forwarded-For http_x_forwarded_for xff";
/// Usual names for the address of a client, those first that heed trusted proxies.
const ADDRESSES: &str =
    "client_ip request.client_ip ip remote_addr request.remote_ip remote_ip remote_address \
    ClientHost clientip client.ip client source_ip downstream_remote_address httpRequest.remoteIp";
/// The longest key, in bytes.
const MAX_KEY: usize = 4096;

/// The fields by their numbers.
pub struct Wanted<'a> {
    /// All names that the format looks for.
    pub names: Vec<String>,
    times: Vec<usize>,
    by: Vec<Part>,
    cost: Option<usize>,
    conditions: Vec<(usize, &'a Condition)>,
    sample: u64,
}

/// A part of the key: one of several fields, the first that a line has.
struct Part {
    /// Applies to an address alone.
    forwarded: Vec<usize>,
    fields: Vec<usize>,
}

/// What a line says, and memory to read it.
#[derive(Default)]
pub struct Request {
    fields: Fields,
    times: Times,
    /// The client.
    pub key: Vec<u8>,
    /// Unix microseconds.
    pub at_us: i64,
    /// Micro-tokens.
    pub cost_micro: i64,
    /// It lacks the field, and costs nothing.
    pub is_without_cost: bool,
}

/// Why a line is no request.
#[derive(Debug)]
pub enum Skipped {
    /// By a condition.
    LeftOut,
    /// It lacks a field of the key.
    WithoutKey,
    /// Its key is not in the sample.
    NotInSample,
    /// It cannot be read.
    Unread(&'static str),
}

impl<'a> Wanted<'a> {
    /// Wants what the options name.
    pub fn new(options: &'a Options) -> Self {
        let mut wanted = Self {
            names: Vec::new(),
            times: Vec::new(),
            by: Vec::new(),
            cost: None,
            conditions: Vec::new(),
            sample: options.sample.unwrap_or(1),
        };
        wanted.times = match &options.time {
            Some(name) => vec![wanted.number(name)],
            None => wanted.numbers(TIMES),
        };
        for name in &options.by {
            let is_address = name == "ip";
            let forwarded = if is_address { wanted.numbers(FORWARDED) } else { Vec::new() };
            let fields = if is_address { wanted.numbers(ADDRESSES) } else { vec![wanted.number(name)] };
            wanted.by.push(Part { forwarded, fields });
        }
        wanted.cost = options.cost.as_ref().map(|name| wanted.number(name));
        let conditions = options.conditions.iter();
        wanted.conditions =
            conditions.map(|condition| (wanted.number(&condition.field), condition)).collect();
        wanted
    }

    fn number(&mut self, name: &str) -> usize {
        self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }

    fn numbers(&mut self, names: &str) -> Vec<usize> {
        names.split(' ').map(|name| self.number(name)).collect()
    }

    /// Returns whether a line has this format and a time.
    pub fn has_time(&self, format: &mut dyn Format, line: &[u8]) -> bool {
        let Request { fields, times, .. } = &mut Request::default();
        fields.clear(self.names.len());
        format.read(line, fields) && self.time_us(fields, times).is_some()
    }

    fn time_us(&self, fields: &Fields, times: &mut Times) -> Option<i64> {
        self.times.iter().filter_map(|number| fields.get(*number)).find_map(|text| times.us(text))
    }

    /// Reads the request of a line into `request`.
    ///
    /// # Errors
    /// [`Skipped`].
    pub fn request(
        &self,
        format: &mut dyn Format,
        line: &[u8],
        request: &mut Request,
    ) -> Result<(), Skipped> {
        let Request { fields, times, .. } = request;
        fields.clear(self.names.len());
        if !format.read(line, fields) {
            return Err(Skipped::Unread("another format"));
        }
        request.at_us = self.time_us(fields, times).ok_or(Skipped::Unread("no time that can be read"))?;
        if !self.conditions.iter().all(|(number, condition)| condition.holds(fields.get(*number))) {
            return Err(Skipped::LeftOut);
        }
        request.key.clear();
        for part in &self.by {
            if !request.key.is_empty() {
                request.key.push(b' ');
            }
            part.append(fields, &mut request.key).ok_or(Skipped::WithoutKey)?;
        }
        if request.key.len() > MAX_KEY {
            return Err(Skipped::Unread("a key of more than 4,096 bytes"));
        }
        if self.sample > 1 && !hash(&request.key).is_multiple_of(self.sample) {
            return Err(Skipped::NotInSample);
        }
        let cost = self.cost.map(|number| fields.get(number));
        request.is_without_cost = cost == Some(None);
        request.cost_micro = match cost {
            None => MICRO_PER_TOKEN,
            Some(None) => 0,
            Some(Some(cost)) => {
                micro_tokens(cost, Rounding::Up).ok_or(Skipped::Unread("no cost that can be read"))?
            }
        };
        Ok(())
    }
}

impl Part {
    fn append(&self, fields: &Fields, key: &mut Vec<u8>) -> Option<()> {
        let mut values = self.fields.iter().filter_map(|number| fields.get(*number));
        if self.forwarded.is_empty() {
            key.extend_from_slice(values.next()?);
            return Some(());
        }
        let forwarded = self.forwarded.iter().find_map(|number| last_forwarded(fields.get(*number)?));
        append_key(forwarded.or_else(|| values.next())?, key);
        Some(())
    }
}

/// Returns the same number for a key in every run (FNV-1a, whose higher bits are mixed best).
fn hash(key: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.iter().fold(0xcbf2_9ce4_8422_2325, step) >> 24
}
