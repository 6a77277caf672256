//! Text formats: lines of words, quotations and brackets in a fixed order.
//!
//! A format is a line with the names of its fields in their places. Tokens in braces, HAProxy's captured headers, may be
//! missing, so they have no place.

use memchr::{memchr, memchr2};
use regex::bytes::Regex;

use super::Format;

/// A place in a line.
struct Place {
    is_time: bool,
    /// The wanted fields there, and the part of the token that each is.
    fields: Vec<(usize, Part)>,
}

type Part = fn(&[u8]) -> &[u8];

/// The common and the combined log format, of nginx, Apache, Traefik and many others.
pub fn common(_first_line: &[u8], names: &[String]) -> Option<Format> {
    let fields = r#"ip identity user [time] "request" status bytes "referrer" "agent" "forwarded""#;
    text("common or combined log", None, fields, names)
}

/// Envoy's default format, which has the client's address in `X-Forwarded-For` alone.
pub fn envoy(_first_line: &[u8], names: &[String]) -> Option<Format> {
    let fields = r#"[time] "request" status flags received bytes duration upstream_time "forwarded" "agent" "id" "host""#;
    text("Envoy's text format", Some(r"^\["), fields, names)
}

/// HAProxy's HTTP and TCP formats, behind whatever syslog writes in front.
pub fn haproxy(_first_line: &[u8], names: &[String]) -> Option<Format> {
    let client_and_time = r"[^ ]+ \[\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d\.";
    let fields = r#"ip [time] frontend backend timers status bytes cookie set_cookie flags connections queues "request""#;
    text("HAProxy log", Some(client_and_time), fields, names)
}

/// Reads the fields of lines, from where `start` matches.
fn text(name: &'static str, start: Option<&str>, line_of_names: &str, names: &[String]) -> Option<Format> {
    let start = start.map(Regex::new).transpose().ok()?;
    let number = |name: &[u8]| names.iter().position(|wanted| wanted.as_bytes() == name);
    let (mut places, mut rest) = (Vec::new(), line_of_names.as_bytes());
    while let Some((kind, name)) = next_token(&mut rest) {
        let parts: &[(&[u8], Part)] = match name {
            b"request" => &[(name, whole), (b"method", method), (b"path", path)],
            _ => &[(name, whole)],
        };
        let fields = parts.iter().filter_map(|(name, part)| Some((number(name)?, *part)));
        places.push(Place { is_time: kind == b'[', fields: fields.collect() });
    }
    let captured = number(b"captured");
    let last = places.iter().rposition(|place| place.is_time || !place.fields.is_empty());
    places.truncate(last.filter(|_| captured.is_none()).map_or(usize::MAX, |last| last + 1));

    Some(Format::new(name, move |line, fields| {
        let start = start.as_ref().map_or(Some(0), |start| Some(start.find(line)?.start()));
        let Some(mut rest) = start.and_then(|start| line.get(start..)) else { return false };
        let mut places = places.as_slice();
        while let Some((place, others)) = places.split_first() {
            let Some((kind, token)) = next_token(&mut rest) else { break };
            if kind == b'{' {
                captured.into_iter().for_each(|number| fields.set(number, token));
                continue;
            }
            places = others;
            if place.is_time && kind != b'[' {
                return false;
            }
            place.fields.iter().for_each(|(number, part)| fields.set(*number, part(token)));
        }
        true
    }))
}

fn whole(token: &[u8]) -> &[u8] {
    token
}

fn method(request: &[u8]) -> &[u8] {
    request.split(|byte| *byte == b' ').next().unwrap_or_default()
}

/// Returns the path of a request line without its query.
fn path(request: &[u8]) -> &[u8] {
    let target = request.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    target.split(|byte| *byte == b'?').next().unwrap_or_default()
}

/// Returns the byte with which the next token begins, and what the token contains.
#[inline]
fn next_token<'l>(rest: &mut &'l [u8]) -> Option<(u8, &'l [u8])> {
    let text = rest.trim_ascii_start();
    let kind = *text.first()?;
    let (from, to) = match kind {
        b'[' => (1, memchr(b']', text)?),
        b'{' => (1, memchr(b'}', text)?),
        b'"' => (1, end_of_quotation(text)?),
        _ => (0, memchr(b' ', text).unwrap_or(text.len())),
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
