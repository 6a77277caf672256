//! The fields that a run needs, and the request that their values make.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};

use memchr::memchr;
use tokenbucket_core::number::{micro_tokens, Rounding, MICRO_PER_TOKEN};

use super::source::MAX_LINE;
use super::time::Times;
use super::{Fields, Format};
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

/// Reads requests from lines. Fields are known by their places among the names.
pub struct Requests<'a> {
    options: &'a Options,
    /// All names that a format looks for.
    pub names: Vec<String>,
    times: Vec<usize>,
    forwarded: Vec<usize>,
    addresses: Vec<usize>,
    /// The fields of the key; `None` for the address.
    by: Vec<Option<usize>>,
    cost: Option<usize>,
    conditions: Vec<usize>,
    fields: Fields,
    read_times: Times,
    key: Vec<u8>,
}

/// A request.
pub struct Request<'a> {
    /// The client.
    pub key: &'a [u8],
    /// Unix microseconds.
    pub at_us: i64,
    /// Micro-tokens; `None` if the line lacks the field.
    pub cost_micro: Option<i64>,
}

/// Why a line is no request.
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
        Self {
            options,
            times: times.into_iter().map(&mut number).collect(),
            forwarded: FORWARDED.split(' ').map(&mut number).collect(),
            addresses: ADDRESSES.split(' ').map(&mut number).collect(),
            by: options.by.iter().map(|name| (name != "ip").then(|| number(name))).collect(),
            cost: options.cost.as_deref().map(&mut number),
            conditions: options.conditions.iter().map(|condition| number(&condition.field)).collect(),
            names,
            fields: Fields::default(),
            read_times: Times::default(),
            key: Vec::new(),
        }
    }

    /// Returns the time of a line, if it has this format.
    pub fn time_us(&mut self, format: &mut Format, line: &[u8]) -> Result<i64, Skipped> {
        let Self { names, times, fields, read_times, .. } = self;
        if line.len() > MAX_LINE {
            return Err(Skipped::Unread("more than 1 MiB"));
        }
        fields.clear(names.len());
        if !(format.read)(line, fields) {
            return Err(Skipped::Unread("another format"));
        }
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
        for place in 0..self.by.len() {
            if place > 0 {
                self.key.push(b' ');
            }
            self.push_field(place).ok_or(Skipped::WithoutKey)?;
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

    /// Appends a field to the key, by its place in the key.
    fn push_field(&mut self, place: usize) -> Option<()> {
        let Self { fields, key, .. } = self;
        match self.by.get(place)? {
            Some(number) => key.extend_from_slice(fields.get(*number)?),
            None => {
                let forwarded = self.forwarded.iter().find_map(|number| last_forwarded(fields.get(*number)?));
                let mut addresses = self.addresses.iter().filter_map(|number| fields.get(*number));
                push_client(forwarded.or_else(|| addresses.next())?, key);
            }
        }
        Some(())
    }
}

/// Returns the last address of `X-Forwarded-For`, which the nearest proxy added: clients can forge those before it.
fn last_forwarded(text: &[u8]) -> Option<&[u8]> {
    let last = text.rsplit(|byte| *byte == b',').next()?.trim_ascii();
    address(last).map(|_| last)
}

/// Appends the key of a client: its address without the port; of IPv6 the network of 64 bits, which one client has to
/// itself. A name stays a name.
fn push_client(text: &[u8], key: &mut Vec<u8>) {
    let text = text.trim_ascii();
    // Nothing else has a colon, and neither a name nor an address of IPv4 changes.
    match memchr(b':', text).and_then(|_| address(text)) {
        Some(IpAddr::V4(address)) => drop(write!(key, "{address}")),
        Some(IpAddr::V6(address)) => {
            drop(write!(key, "{}/64", Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)));
        }
        None => key.extend_from_slice(text),
    }
}

/// Reads `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80` or `fe80::1%eth0`.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let host = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => text,
    };
    let host = host.split_once('%').map_or(host, |(host, _zone)| host);
    let address: Option<IpAddr> = host.parse().ok().or_else(|| host.split_once(':')?.0.parse().ok());
    address.map(|address| address.to_canonical())
}

/// Returns the same number for a key in every run (FNV-1a, whose higher bits are mixed best).
fn hash(key: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.iter().fold(0xcbf2_9ce4_8422_2325, step) >> 24
}
