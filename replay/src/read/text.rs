//! Text formats: lines of words, quotations and brackets in a fixed order.
//!
//! A format is its name in the report, and a line with the names of its fields in their places; `!` marks distinct ones.
//! Tokens in braces, HAProxy's captured headers, may be missing, so they have no place.

use memchr::{memchr, memchr2, memmem};
use regex::bytes::Regex;

use super::client::address;
use super::{Fields, Format, OTHER};

struct Place {
    /// The byte with which its token begins, if that is a bracket or a quotation mark.
    kind: u8,
    /// Whether only lines of the format have a quotation there, or an address or none.
    is_distinct: bool,
    /// The wanted fields there, and the part of the token that each is.
    fields: Vec<(usize, Part)>,
}

type Part = fn(&[u8]) -> &[u8];

/// The common and the combined log format, of nginx, Apache, Traefik and many others.
pub const COMMON: &str = r#"common or combined log: ip identity user [time] "request" status bytes "referrer" "agent" "forwarded""#;
/// That behind the name of a host, as Debian's Apache writes it for all hosts together.
pub const VHOST: &str = r#"combined log behind a host: host ip identity user [time] "request" status bytes "referrer" "agent" "forwarded""#;
/// Envoy's default format, which has the client's address in `X-Forwarded-For` alone.
pub const ENVOY: &str = r#"Envoy's text format: [time] "request" status flags received bytes duration upstream_time "forwarded" "agent" "id" "host""#;
/// Istio's default format.
pub const ISTIO: &str = r#"Istio's text format: [time] "request" status flags details termination "failure!" received bytes duration upstream_time "forwarded" "agent" "id" "host" "upstream" cluster upstream_local local ip server_name route"#;
/// HAProxy's HTTP and TCP formats, and the first two fields, with which a line begins behind whatever syslog writes.
pub const HAPROXY: &str = r#"HAProxy log: ip [time] frontend backend timers status bytes cookie set_cookie flags connections queues "request""#;
pub const HAPROXY_START: &str = r"(?-u)[\w.:%-]+ \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d\.";
/// The log of AWS's application load balancer.
pub const ALB: &str = r#"AWS ALB log: type time balancer ip! target wait target_time reply_time status target_status received bytes "request" "agent" cipher protocol group "trace" "host" "certificate" rule start_time"#;
/// The log of AWS's classic load balancer.
pub const ELB: &str = r#"AWS ELB log: time balancer ip! target! wait target_time reply_time status target_status received bytes "request" "agent""#;
/// The server access log of AWS S3.
pub const S3: &str = r#"AWS S3 log: owner bucket [time] ip requester id operation object "request" status error bytes size duration turnaround "referrer" "agent""#;
/// Squid's own format.
pub const SQUID: &str = "Squid log: time duration ip! result bytes method url user peer type";

/// Makes a format, whose lines begin where `start` matches if there is one.
pub fn format(description: &str, start: Option<&str>, names: &[String]) -> Option<Format> {
    let (name, fields) = description.split_once(": ")?;
    let start = start.map(Regex::new).transpose().ok()?;
    let number = |name: &[u8]| names.iter().position(|wanted| wanted.as_bytes() == name);
    let (mut places, mut known, mut rest) = (Vec::new(), Vec::new(), fields.as_bytes());
    while let Some((kind, token)) = next_token(&mut rest) {
        let name = token.strip_suffix(b"!").unwrap_or(token);
        let parts: &[(&[u8], Part)] = match name {
            b"request" => &[(name, |token| token), (b"method", method), (b"path", path)],
            b"url" => &[(name, |token| token), (b"path", path_of_url)],
            _ => &[(name, |token| token)],
        };
        known.extend(parts.iter().map(|(name, _)| String::from_utf8_lossy(name)));
        let wanted = parts.iter().filter_map(|(name, part)| Some((number(name)?, *part))).collect();
        places.push(Place { kind, is_distinct: token != name, fields: wanted });
    }
    let captured = number(b"captured");
    let is_needed = |place: &Place| place.kind == b'[' || place.is_distinct || !place.fields.is_empty();
    let last = places.iter().rposition(is_needed);
    places.truncate(last.filter(|_| captured.is_none()).map_or(usize::MAX, |last| last + 1));

    let read = move |line: &[u8], fields: &mut Fields| {
        let start = start.as_ref().map_or(Some(0), |start| Some(start.find(line)?.start()));
        let mut rest = start.and_then(|start| line.get(start..)).ok_or(OTHER)?;
        let mut places = places.as_slice();
        while let Some((place, others)) = places.split_first() {
            let Some((kind, token)) = next_token(&mut rest) else { break };
            if kind == b'{' {
                captured.into_iter().for_each(|number| fields.set(number, token));
                continue;
            }
            places = others;
            let is_other = match place.kind {
                b'[' => kind != b'[',
                b'"' => place.is_distinct && kind != b'"',
                _ if place.is_distinct => token != b"-" && address(token).is_none(),
                _ => kind == b'[',
            };
            if is_other {
                return Err(OTHER);
            }
            if place.kind != b'"' || kind == b'"' {
                place.fields.iter().for_each(|(number, part)| fields.set(*number, part(token)));
            }
        }
        Ok(())
    };
    // The quotation behind the user agent may be another one.
    let guesses_forwarded = fields.ends_with("\"forwarded\"");
    Some(Format { guesses_forwarded, ..Format::new(name, &known, Box::new(read)) })
}

fn method(request: &[u8]) -> &[u8] {
    request.split(|byte| *byte == b' ').next().unwrap_or_default()
}

/// Returns the path of a request line without its query.
fn path(request: &[u8]) -> &[u8] {
    path_of_url(request.split(|byte| *byte == b' ').nth(1).unwrap_or_default())
}

/// Returns the path of a URL, which may begin with a scheme and a host.
fn path_of_url(url: &[u8]) -> &[u8] {
    let path = url.split(|byte| *byte == b'?').next().unwrap_or_default();
    let host = memmem::find(path, b"://").filter(|_| !path.starts_with(b"/"));
    let Some(behind) = host.and_then(|at| path.get(at + 3..)) else { return path };
    behind.get(memchr(b'/', behind).unwrap_or(behind.len())..).unwrap_or_default()
}

/// Returns the byte with which the next token begins, and what the token contains.
#[inline(always)]
fn next_token<'l>(rest: &mut &'l [u8]) -> Option<(u8, &'l [u8])> {
    let text = rest.trim_ascii_start();
    let kind = *text.first()?;
    let end_of_word = || memchr(b' ', text).unwrap_or(text.len());
    let (kind, from, to) = match kind {
        b'[' => match memchr(b']', text)? {
            // An address of IPv6 and its port.
            to if text.get(to + 1) == Some(&b':') => (b' ', 0, end_of_word()),
            to => (kind, 1, to),
        },
        b'{' => (kind, 1, memchr(b'}', text)?),
        b'"' => (kind, 1, end_of_quotation(text)?),
        _ => (kind, 0, end_of_word()),
    };
    *rest = text.get(to + from..)?;
    Some((kind, text.get(from..to)?))
}

/// Finds the quotation mark that ends what begins with one; a backslash escapes.
fn end_of_quotation(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        at += memchr2(b'"', b'\\', text.get(at..)?)?;
        if text.get(at) == Some(&b'"') {
            return Some(at);
        }
        at += 2;
    }
}
