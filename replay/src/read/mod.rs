//! Reads logs: their lines, the fields of each in its format, and from these the request.
//!
//! A new format is a function in a file of its own, and a row in [`FORMATS`].

mod csv;
mod json;
mod pattern;
mod request;
mod source;
mod text;
mod time;

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;

use serde::Serialize;

use crate::log::Log;
use crate::options::Options;
use crate::report::printable;
use request::{Requests, Skipped};
use source::Lines;

/// A format of lines. It finds values, and does not judge them.
pub struct Format {
    /// Its name in the report.
    name: &'static str,
    /// Says that the first line names the fields.
    has_header: bool,
    /// Sets the wanted fields that a line has. Returns whether the line has this format.
    read: Box<ReadFields>,
}

type ReadFields = dyn FnMut(&[u8], &mut Fields) -> bool;

impl Format {
    fn new(name: &'static str, read: impl FnMut(&[u8], &mut Fields) -> bool + 'static) -> Self {
        Self { name, has_header: false, read: Box::new(read) }
    }
}

/// Makes a format that finds the fields of these names, if the first line of a log allows that.
type Make = fn(&[u8], &[String]) -> Option<Format>;

/// The formats by the names that `--format` takes. The first of those that read the most lines is recognised.
pub const FORMATS: [(&str, Make); 5] = [
    ("json", json::format),
    ("envoy", text::envoy),
    ("haproxy", text::haproxy),
    ("common", text::common),
    ("csv", csv::format),
];

/// The values of the wanted fields of a line, in the order of their names; empty if it has none.
#[derive(Default)]
pub struct Fields(Vec<Vec<u8>>);

impl Fields {
    fn clear(&mut self, count: usize) {
        self.0.resize_with(count, Vec::new);
        self.0.iter_mut().for_each(Vec::clear);
    }

    /// Sets a value. The first one counts, and `-` is none.
    fn set(&mut self, number: usize, value: &[u8]) {
        if let Some(field) = self.0.get_mut(number).filter(|field| field.is_empty() && value != b"-") {
            field.extend_from_slice(value);
        }
    }

    fn get(&self, number: usize) -> Option<&[u8]> {
        self.0.get(number).map(Vec::as_slice).filter(|value| !value.is_empty())
    }
}

/// Bytes and lines that are looked at to recognise a format.
const SAMPLE: u64 = 1 << 16;
const SAMPLE_LINES: usize = 50;
/// Unread lines that are shown.
const SHOWN: usize = 3;

/// What was read, and what was not.
#[derive(Default, Serialize)]
pub struct Reading {
    /// The logs.
    sources: Vec<Source>,
    /// Lines that are requests.
    pub requests: u64,
    /// Lines that cannot be read.
    unread: AllUnread,
    /// Lines that `--where` leaves out.
    left_out: u64,
    /// Lines without the field of `--by`.
    without_key: u64,
    /// Lines of keys that `--sample` leaves out.
    #[serde(skip)]
    not_in_sample: u64,
    /// Requests without the field of `--cost`, which cost nothing.
    without_cost: u64,
}

/// A log and its format.
#[derive(Serialize)]
struct Source {
    name: String,
    format: &'static str,
}

/// How many lines cannot be read, and the first of them.
#[derive(Default, Serialize)]
struct AllUnread {
    lines: u64,
    first: Vec<Unread>,
}

/// A line that cannot be read: where it is, what is wrong with it, and how it begins.
#[derive(Serialize)]
struct Unread {
    source: String,
    line: u64,
    reason: &'static str,
    /// Secret in anonymous reports.
    text: Option<String>,
}

/// Reads all logs.
///
/// # Errors
/// A log that cannot be opened or decompressed, or whose format is unknown; no requests, or too many unread lines.
pub fn read(options: &Options) -> Result<(Log, Reading), String> {
    let (mut log, mut reading) = (Log::default(), Reading::default());
    let standard_input = [PathBuf::from("-")];
    let files = if options.files.is_empty() { &standard_input[..] } else { &options.files };
    let bar = source::progress(files);
    for path in files {
        let name = if path.as_os_str() == "-" { "standard input".into() } else { path.display().to_string() };
        let added = source::open(path, &bar).map_err(Into::into);
        let added = added.and_then(|source| reading.add(options, &name, source, &mut log));
        added.map_err(|error| format!("{name}: {error}"))?;
    }
    bar.finish_and_clear();
    reading.check(options)?;
    Ok((log, reading))
}

impl Reading {
    /// Adds the requests of a log.
    fn add(
        &mut self,
        options: &Options,
        name: &str,
        source: impl Read,
        log: &mut Log,
    ) -> Result<(), Box<dyn Error>> {
        let (sample, source) = source::begin(source, SAMPLE)?;
        let mut requests = Requests::new(options);
        let mut format = format_of(options, &mut requests, &sample)?;
        self.sources.push(Source { name: name.to_owned(), format: format.name });
        let (mut lines, mut number, mut is_header) = (Lines::new(source), 0, format.has_header);
        while let Some(line) = lines.next()? {
            number += 1;
            if line.trim_ascii().is_empty() || std::mem::take(&mut is_header) {
                continue;
            }
            match requests.read(&mut format, line) {
                Ok(request) => {
                    self.requests += 1;
                    self.without_cost += u64::from(request.cost_micro.is_none());
                    log.push(request.key, request.at_us, request.cost_micro.unwrap_or(0))?;
                }
                Err(Skipped::LeftOut) => self.left_out += 1,
                Err(Skipped::WithoutKey) => self.without_key += 1,
                Err(Skipped::NotInSample) => self.not_in_sample += 1,
                Err(Skipped::Unread(reason)) => {
                    self.unread.lines += 1;
                    if self.unread.first.len() < SHOWN {
                        let text = String::from_utf8_lossy(line.get(..200).unwrap_or(line)).into_owned();
                        let text = (!options.anonymize).then_some(text);
                        self.unread.first.push(Unread {
                            source: name.to_owned(),
                            line: number,
                            reason,
                            text,
                        });
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks that there are requests, and that enough of the lines were read.
    fn check(&self, options: &Options) -> Result<(), String> {
        let Self { requests, left_out, without_key, not_in_sample, without_cost, .. } = self;
        let unread = self.unread.lines;
        let lines = requests + unread + left_out + without_key + not_in_sample;
        let mut error = if *requests > 0 && requests == without_cost {
            format!("no request has the field {}", options.cost.as_deref().unwrap_or_default())
        } else if unread * 20 > lines && !options.lax {
            format!("{unread} of {lines} lines cannot be read, more than 5 %: --lax reports on the others")
        } else if *requests == 0 {
            let by = options.by.join(" or no ");
            format!("no requests in {lines} lines: {unread} cannot be read, --where leaves out {left_out}, {without_key} have no {by}")
        } else {
            return Ok(());
        };
        for Unread { source, line, reason, text } in &self.unread.first {
            let Some(text) = text else { continue };
            error = format!("{error}\n  {source}:{line}: {reason}: {}", printable(text));
        }
        Err(error)
    }
}

/// Makes the format that the options name, or recognises it: the one in which most of the first lines have a time.
fn format_of(options: &Options, requests: &mut Requests, sample: &[u8]) -> Result<Format, String> {
    let lines = sample.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let lines: Vec<&[u8]> = lines.take(SAMPLE_LINES).collect();
    let first = lines.first().copied().unwrap_or_default();
    if let Some(regex) = &options.regex {
        return Ok(pattern::format(regex, &requests.names));
    }
    if let Some(name) = &options.format {
        let make = FORMATS.iter().find(|(known, _)| known == name);
        let made = make.and_then(|(_, make)| make(first, &requests.names));
        return made.ok_or_else(|| format!("the first line does not have the format {name}"));
    }
    let mut best = (0, None);
    for (_, make) in FORMATS {
        let Some(mut format) = lines.iter().find_map(|line| make(line, &requests.names)) else { continue };
        let read = lines.iter().filter(|line| requests.time_us(&mut format, line).is_ok()).count();
        if read > best.0 {
            best = (read, Some(format));
        }
    }
    let first = if options.anonymize { "…".into() } else { printable(&String::from_utf8_lossy(first)) };
    best.1.ok_or_else(|| {
        format!("no known format has a time in these lines; name its field by --time, or write a --regex. The first is: {first}")
    })
}
