//! From a forwarded request to descriptors.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::{HeaderMap, StatusCode};
use envoy_types::pb::google::protobuf::UInt64Value;
use ipnet::IpNet;

use super::forwarded::Forwarded;
use super::pattern::{Captured, Pattern};
use crate::messages;

/// The rules of a file, which give a request its descriptors.
#[derive(Debug)]
pub struct Rules {
    pub(super) domain: String,
    pub(super) denied_status: StatusCode,
    pub(super) trusted_hops: usize,
    pub(super) proxies: Vec<IpNet>,
    pub(super) rules: Vec<Rule>,
}

/// A rule. Its descriptors apply to requests that match all of its patterns, of which it may have none.
#[derive(Debug)]
pub(super) struct Rule {
    pub paths: Vec<Pattern>,
    pub hosts: Vec<Pattern>,
    pub methods: Vec<String>,
    pub descriptors: Vec<Descriptor>,
}

#[derive(Debug)]
pub(super) struct Descriptor {
    pub entries: Vec<Entry>,
    pub hits: Option<Source>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub key: String,
    pub source: Source,
}

/// The source of a value.
#[derive(Debug)]
pub(super) enum Source {
    Fixed(String),
    /// The caller's address, cut to its first bits: a caller with IPv6 owns a whole network.
    Address {
        v4: u8,
        v6: u8,
    },
    Host,
    Method,
    Path,
    /// The part of the path that matches `{name}`.
    Segment(String),
    Query,
    Parameter(String),
    Header(String),
}

impl Rules {
    /// Returns the decider's request for a request that its proxy describes.
    ///
    /// As in Envoy, a descriptor of which a value is missing is left out.
    pub fn request(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> messages::Request {
        let forwarded = self.forwarded(headers, peer);
        let descriptors = self.rules.iter().flat_map(|rule| rule.descriptors(&forwarded)).collect();
        messages::Request { domain: self.domain.clone(), descriptors, hits_addend: 0 }
    }

    fn forwarded<'a>(&self, headers: &'a HeaderMap, peer: Option<IpAddr>) -> Forwarded<'a> {
        static SOMETHING_MISSING: AtomicBool = AtomicBool::new(false);
        static ASKED_BY_STRANGER: AtomicBool = AtomicBool::new(false);
        let mut forwarded = Forwarded::read(headers, self.trusted_hops);
        if forwarded.path.is_none() || forwarded.address.is_none() {
            warn_once(&SOMETHING_MISSING, || MISSING.to_owned());
        }
        let peer = peer.map(|peer| peer.to_canonical());
        if let Some(stranger) = peer.filter(|peer| !self.trusts(*peer)) {
            warn_once(&ASKED_BY_STRANGER, || {
                format!("/check was asked by {stranger}, which is none of 'proxies': it counts as the caller")
            });
            forwarded.address = Some(stranger);
        }
        // Without an address there would be no limit.
        forwarded.address = forwarded.address.or(peer);
        forwarded
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        self.proxies.iter().any(|network| network.contains(&peer))
    }
}

const MISSING: &str = "/check was asked without X-Forwarded-Uri, or without an address in X-Forwarded-For: limits of paths do not \
     apply then, and the proxy counts as the caller";

/// A misconfigured proxy sends this with every request.
fn warn_once(warned: &AtomicBool, text: impl FnOnce() -> String) {
    if !warned.swap(true, Ordering::Relaxed) {
        log::warn!("{}", text());
    }
}

impl Rule {
    fn descriptors(&self, forwarded: &Forwarded<'_>) -> Vec<messages::Descriptor> {
        let Some(captured) = self.fits(forwarded) else { return Vec::new() };
        self.descriptors.iter().filter_map(|one| one.of(forwarded, &captured)).collect()
    }

    /// Returns the segments of its path, if the request matches.
    fn fits<'a>(&'a self, forwarded: &'a Forwarded<'_>) -> Option<Captured<'a>> {
        let host = forwarded.host.as_deref().unwrap_or_default();
        let method = forwarded.method.as_deref().unwrap_or_default();
        let by_host = self.hosts.is_empty() || self.hosts.iter().any(|one| one.fit(host).is_some());
        let by_method =
            self.methods.is_empty() || self.methods.iter().any(|one| one.eq_ignore_ascii_case(method));
        if !(by_host && by_method) {
            return None;
        }
        if self.paths.is_empty() {
            return Some(Captured::new());
        }
        let path = forwarded.path.as_ref()?;
        self.paths.iter().find_map(|one| one.fit(&path.plain).or_else(|| one.fit(&path.with_slash)))
    }
}

impl Descriptor {
    fn of(&self, forwarded: &Forwarded<'_>, captured: &Captured<'_>) -> Option<messages::Descriptor> {
        let entry = |entry: &Entry| {
            let value = entry.source.value(forwarded, captured)?;
            Some(messages::Entry { key: entry.key.clone(), value })
        };
        Some(messages::Descriptor {
            entries: self.entries.iter().map(entry).collect::<Option<_>>()?,
            hits_addend: self.hits(forwarded, captured).map(|value| UInt64Value { value }),
            ..messages::Descriptor::default()
        })
    }

    /// As in Envoy, a value that is not a number counts as missing.
    fn hits(&self, forwarded: &Forwarded<'_>, captured: &Captured<'_>) -> Option<u64> {
        self.hits.as_ref()?.value(forwarded, captured)?.trim().parse().ok()
    }
}

impl Source {
    fn value(&self, forwarded: &Forwarded<'_>, captured: &Captured<'_>) -> Option<String> {
        let value = match self {
            Self::Fixed(text) => return Some(text.clone()),
            Self::Address { v4, v6 } => forwarded.address.map(|address| network(address, *v4, *v6)),
            Self::Host => forwarded.host.clone(),
            Self::Method => forwarded.method.as_deref().map(str::to_owned),
            Self::Path => forwarded.path.as_ref().map(|path| path.plain.clone()),
            Self::Segment(name) => {
                captured.iter().find(|(known, _)| known == name).map(|(_, value)| (*value).to_owned())
            }
            Self::Query => forwarded.query.clone(),
            Self::Parameter(name) => forwarded.parameter(name),
            Self::Header(name) => forwarded.header(name),
        };
        value.filter(|value| !value.is_empty())
    }
}

/// `192.0.2.7`, `192.0.2.0/24`, `2001:db8::/64`.
fn network(address: IpAddr, v4: u8, v6: u8) -> String {
    let bits = if address.is_ipv4() { v4 } else { v6 };
    match IpNet::new(address, bits) {
        Ok(network) if bits < network.max_prefix_len() => network.trunc().to_string(),
        _ => address.to_string(),
    }
}
