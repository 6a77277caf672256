//! The request of a proxy's caller, from the proxy's `X-Forwarded-…` headers.

use std::borrow::Cow;
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue};
use percent_encoding::percent_decode_str;

/// The request of a proxy's caller.
#[derive(Debug)]
pub(super) struct Forwarded<'a> {
    headers: &'a HeaderMap,
    pub address: Option<IpAddr>,
    pub path: Option<Path>,
    /// Without the `?`.
    pub query: Option<String>,
    pub method: Option<Cow<'a, str>>,
    /// In lower case, without its port.
    pub host: Option<String>,
}

/// A path as backends resolve it: decoded, without `.`, `..` and `//`. Many take `/login/` for `/login`.
#[derive(Debug)]
pub(super) struct Path {
    pub plain: String,
    pub with_slash: String,
}

impl<'a> Forwarded<'a> {
    /// Reads the headers. The address is the one that the `hops`th proxy from the end added.
    pub(super) fn read(headers: &'a HeaderMap, hops: usize) -> Self {
        let uri = last(headers, "x-forwarded-uri");
        let parts = uri.as_deref().map(without_authority).map(|uri| uri.split_once('?').unwrap_or((uri, "")));
        Self {
            headers,
            address: address(headers, hops),
            path: parts.map(|(path, _)| resolved(path)),
            query: parts.map(|(_, query)| query.to_owned()),
            method: last(headers, "x-forwarded-method"),
            host: last(headers, "x-forwarded-host").map(|host| without_port(&host)),
        }
    }

    /// Returns a header of the request; several of one name are joined by commas.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let values: Vec<_> = self.headers.get_all(name).iter().map(text).collect();
        Some(values.join(",")).filter(|value| !value.is_empty())
    }

    /// Returns the first parameter of this name in the query.
    pub(super) fn parameter(&self, name: &str) -> Option<String> {
        let mut pairs = form_urlencoded::parse(self.query.as_ref()?.as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
    }
}

/// Decodes lossily, so that invalid UTF-8 cannot bypass a limit.
fn text(value: &HeaderValue) -> Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}

/// Returns the last header of a name: a proxy that adds one puts it behind its caller's.
fn last<'a>(headers: &'a HeaderMap, name: &str) -> Option<Cow<'a, str>> {
    headers.get_all(name).iter().next_back().map(text).filter(|value| !value.is_empty())
}

fn address(headers: &HeaderMap, hops: usize) -> Option<IpAddr> {
    let lines: Vec<_> = headers.get_all("x-forwarded-for").iter().map(text).collect();
    let all = lines.iter().flat_map(|line| line.split(',')).map(str::trim).filter(|hop| !hop.is_empty());
    let all: Vec<_> = all.collect();
    // An IPv4 address written as IPv6 is the same caller.
    let caller = all.iter().rev().nth(hops.min(all.len()).saturating_sub(1))?;
    read_address(caller).map(|address| address.to_canonical())
}

/// Reads an address as in proxies' headers and RFC 7239: quoted, in brackets, with a port or a zone.
fn read_address(hop: &str) -> Option<IpAddr> {
    let hop = hop.trim_matches('"');
    let hop = hop.get(..4).filter(|name| name.eq_ignore_ascii_case("for=")).and(hop.get(4..)).unwrap_or(hop);
    let hop = hop.trim_matches('"');
    let host = match hop.strip_prefix('[') {
        Some(rest) => rest.split(']').next()?,
        // An IPv6 address has more than one colon.
        None => hop.split_once(':').filter(|(_, port)| !port.contains(':')).map_or(hop, |(host, _)| host),
    };
    host.split('%').next()?.parse().ok()
}

fn without_port(host: &str) -> String {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Returns the path and query of `http://host/path?query`, as a proxy may have received it.
fn without_authority(uri: &str) -> &str {
    let Some((scheme, rest)) = uri.split_once("://") else { return uri };
    if scheme.contains(['/', '?']) {
        return uri;
    }
    rest.find(['/', '?']).and_then(|at| rest.get(at..)).unwrap_or("/")
}

/// Normalizes a path as backends do, so that another spelling cannot bypass a limit.
fn resolved(path: &str) -> Path {
    let path = path.split('#').next().unwrap_or_default();
    let path = percent_decode_str(path).decode_utf8_lossy();
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => _ = segments.pop(),
            other => segments.push(other),
        }
    }
    let plain = format!("/{}", segments.join("/"));
    let with_slash = if segments.is_empty() { plain.clone() } else { format!("{plain}/") };
    Path { plain, with_slash }
}
