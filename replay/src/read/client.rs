//! Which address of a line stands for its client.
//!
//! The peer sent the request to the program that wrote the log. If it is a proxy, it added the address of its own peer to
//! `X-Forwarded-For`. A client without a proxy in between writes that field itself, as it likes. So it counts if the peer
//! has a private address, as a proxy of the same network has, or if the log has no peer.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};

use memchr::memchr;
use serde::Serialize;

use super::Fields;

/// Usual names for `X-Forwarded-For`.
const FORWARDED: &str = "forwarded x_forwarded_for x-forwarded-for X-Forwarded-For http_x_forwarded_for xff \
    req.headers.x-forwarded-for";
/// Usual names for the address of a client from programs that heed trusted proxies.
const VERIFIED: &str = "client_ip request.client_ip ClientIP properties.clientIp properties.clientIP";
/// Usual names for the address of the peer.
const PEERS: &str = "ip remote_addr request.remote_ip remote_ip remote_address ClientHost clientip client.ip client \
    source_ip source.ip downstream_remote_address httpRequest.remoteIp httpRequest.clientIp req.remoteAddress sourceIp remote c-ip";

/// A part of a key.
#[derive(Clone, Copy, PartialEq)]
pub enum Part {
    /// A field, by its number.
    Field(usize),
    /// The peer, or for a proxy what it forwards.
    Client,
    Peer,
    Forwarded,
}

/// The fields that stood for clients.
#[derive(Clone, Default, Serialize)]
pub struct Taken {
    /// In how many lines each did.
    pub lines: BTreeMap<&'static str, u64>,
    /// A field of `X-Forwarded-For`, one of a peer, and the number of lines in which they are two addresses.
    differing: Option<(&'static str, &'static str, u64)>,
}

/// Where addresses are, by the numbers and names of their fields, and where they were.
pub struct Clients {
    forwarded: Vec<(usize, &'static str)>,
    verified: Vec<(usize, &'static str)>,
    peers: Vec<(usize, &'static str)>,
    /// Whether the log has `X-Forwarded-For` where it may be.
    pub heeds_forwarded: bool,
    pub taken: Taken,
}

impl Clients {
    /// Looks for addresses under their usual names.
    pub fn new(mut number: impl FnMut(&str) -> usize) -> Self {
        let mut numbers = |names: &'static str| names.split(' ').map(|name| (number(name), name)).collect();
        let (forwarded, verified, peers) = (numbers(FORWARDED), numbers(VERIFIED), numbers(PEERS));
        Self { forwarded, verified, peers, heeds_forwarded: true, taken: Taken::default() }
    }

    /// Appends an address to a key.
    pub fn push(&mut self, part: Part, fields: &Fields, key: &mut Vec<u8>) -> Option<()> {
        let (forwarded, peer) = (self.forwarded(fields), self.peer(part, fields));
        let mut is_proxy = false;
        if let (Some((one, _, first)), Some((other, peer))) = (forwarded, peer) {
            let found = address(peer);
            // A proxy is as near as a private network, this machine or its Unix socket.
            is_proxy = found.as_ref().map_or(peer == b"unix:", is_private);
            if found != Some(first) {
                self.taken.differing.get_or_insert((one, other, 0)).2 += 1;
            }
        }
        let forwarded = forwarded.map(|(name, text, _)| (name, text));
        let (name, text) = match part {
            Part::Forwarded => forwarded,
            Part::Client if is_proxy || peer.is_none() => forwarded,
            _ => peer,
        }?;
        *self.taken.lines.entry(name).or_default() += 1;
        push_client(text, key);
        Some(())
    }

    /// Finds the last address of `X-Forwarded-For`, which the nearest proxy added.
    fn forwarded<'l>(&self, fields: &'l Fields) -> Option<(&'static str, &'l [u8], IpAddr)> {
        self.forwarded.iter().filter(|_| self.heeds_forwarded).find_map(|(number, name)| {
            let text = fields.get(*number)?.rsplit(|byte| *byte == b',').next()?.trim_ascii();
            Some((*name, text, address(text)?))
        })
    }

    /// Finds the address of the peer, or one that is known to be the client's if that is wanted.
    fn peer<'l>(&self, part: Part, fields: &'l Fields) -> Option<(&'static str, &'l [u8])> {
        let verified = if part == Part::Client { self.verified.as_slice() } else { &[] };
        let mut numbers = verified.iter().chain(&self.peers);
        numbers.find_map(|(number, name)| Some((*name, fields.get(*number)?.trim_ascii())))
    }

    /// Returns the last address of what may be `X-Forwarded-For`, if it has nothing but addresses, and the peer.
    pub fn sample(&self, fields: &Fields) -> Option<(Option<IpAddr>, Vec<u8>)> {
        let list = self.forwarded.iter().find_map(|(number, _)| fields.get(*number))?;
        let addresses = list.split(|byte| *byte == b',').map(|item| {
            // A private address with a port is a backend.
            let is_plain = String::from_utf8_lossy(item).trim().parse::<IpAddr>().is_ok();
            address(item.trim_ascii()).filter(|address| is_plain || !is_private(address))
        });
        let last = addresses.collect::<Option<Vec<_>>>().and_then(|mut addresses| addresses.pop());
        Some((last, self.peer(Part::Peer, fields)?.1.to_vec()))
    }
}

/// Returns whether most of a sample are addresses, and not only few private ones, as of backends.
pub fn are_clients(sample: &[(Option<IpAddr>, Vec<u8>)]) -> bool {
    let lists = sample.iter().filter_map(|(client, peer)| Some(((*client)?, peer)));
    let (clients, peers): (HashSet<IpAddr>, HashSet<&Vec<u8>>) = lists.clone().unzip();
    let are_few = clients.iter().all(is_private) && clients.len() <= peers.len();
    lists.count() * 2 > sample.len() && !are_few
}

/// Appends an address without its port; of IPv6 the network of 64 bits, which one client has to itself. A name stays a name.
fn push_client(text: &[u8], key: &mut Vec<u8>) {
    // Nothing else has a colon, and neither a name nor an address of IPv4 changes.
    match memchr(b':', text).and_then(|_| address(text)) {
        Some(IpAddr::V4(address)) => drop(write!(key, "{address}")),
        Some(IpAddr::V6(address)) => {
            drop(write!(key, "{}/64", Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)));
        }
        None => key.extend_from_slice(text),
    }
}

/// Reads `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`, `::1:33317` or `fe80::1%eth0`.
pub fn address(text: &[u8]) -> Option<IpAddr> {
    if let Some(address) = ipv4(text) {
        return Some(address);
    }
    let text = std::str::from_utf8(text).ok()?;
    let host = text.strip_prefix('[').map_or(Some(text), |rest| Some(rest.split_once(']')?.0))?;
    let without_port = || host.rsplit_once(':')?.0.parse().ok();
    let without_zone = || host.split_once('%')?.0.parse().ok();
    let address: Option<IpAddr> = host.parse().ok().or_else(without_port).or_else(without_zone);
    address.map(|address| address.to_canonical())
}

/// Reads four numbers between dots, as most addresses are, in half the time that the standard library needs.
fn ipv4(text: &[u8]) -> Option<IpAddr> {
    let (mut octets, mut numbers) = ([0u8; 4], text.split(|byte| *byte == b'.'));
    for octet in &mut octets {
        for digit in numbers.next().filter(|digits| matches!(digits, [_] | [b'1'..=b'9', ..]))? {
            *octet =
                octet.checked_mul(10)?.checked_add(digit.checked_sub(b'0').filter(|digit| *digit < 10)?)?;
        }
    }
    numbers.next().is_none().then(|| octets.into())
}

fn is_private(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => {
            let is_shared = matches!(ip.octets(), [100, 64..=127, ..]);
            ip.is_private() || ip.is_loopback() || ip.is_link_local() || is_shared
        }
        IpAddr::V6(ip) => ip.is_unique_local() || ip.is_loopback() || ip.is_unicast_link_local(),
    }
}
