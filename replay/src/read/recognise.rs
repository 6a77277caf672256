//! Recognises the format of a log by its first lines.

use std::borrow::Cow;

use super::request::{Requests, Skipped};
use super::source::Lines;
use super::wrapper::Wrapper;
use super::{json, pattern, Format, FORMATS};
use crate::options::Options;
use crate::report::printable;

/// Lines that are looked at.
const SAMPLE_LINES: usize = 50;

/// Returns the lines of a sample that are not empty.
pub fn lines(sample: &[u8]) -> Vec<Vec<u8>> {
    let (mut source, mut lines) = (Lines::new(sample, sample), Vec::new());
    // The last object of JSON may be cut.
    while let Ok(Some((_, line))) = source.next() {
        lines.push(line.trim_ascii().to_vec());
    }
    lines.retain(|line| !line.is_empty());
    lines
}

/// Makes the format that the options name, or recognises it: the one in which most of the first lines have a time.
pub fn format(options: &Options, requests: &mut Requests, lines: &[Vec<u8>]) -> Result<Format, String> {
    if let Some(regex) = &options.regex {
        return Ok(pattern::format(regex, &requests.names));
    }
    let lines = lines.get(..SAMPLE_LINES).unwrap_or(lines);
    let first = lines.first().map(Vec::as_slice).unwrap_or_default();
    let is_wanted = |name: &str| options.format.as_deref().is_none_or(|wanted| wanted == name);
    let makes = FORMATS.iter().filter(|(name, _)| is_wanted(name)).map(|(_, make)| make);
    let mut best = (0, None);
    for wrapper in Wrapper::all() {
        let inner: Vec<Cow<[u8]>> = lines.iter().filter_map(|line| wrapper.inner(line)).collect();
        for make in makes.clone() {
            let made = inner.iter().find_map(|line| make(line, &requests.names));
            let Some(mut format) = made else { continue };
            let read = inner.iter().filter(|line| requests.time_us(&mut format, line).is_ok()).count();
            if read > best.0 || best.1.is_none() && options.format.is_some() {
                best = (read, Some(wrapper.around(format)));
            }
        }
    }
    best.1.ok_or_else(|| unknown(options, requests, first))
}

/// Returns the error for lines of an unknown format.
fn unknown(options: &Options, requests: &mut Requests, first: &[u8]) -> String {
    if let Some(name) = &options.format {
        return format!("the first line does not have the format {name}");
    }
    let shown = if options.anonymize { "…".into() } else { printable(&String::from_utf8_lossy(first)) };
    let error = format!("no known format has a time in these lines; name its field by --time, or write a --regex. The first is: {shown}");
    let Some(mut format) = json::format(first, &requests.names) else { return error };
    match requests.time_us(&mut format, first) {
        Err(Skipped::Unread(reason)) if format.fields.is_empty() => format!("{error}\n  It is {reason}"),
        _ => format!("{error}\n  Its fields are {}", format.fields),
    }
}
