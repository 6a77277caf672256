//! Reads logs: their lines, the fields of each in its format, and from these the request.
//!
//! A new format is a row in [`FORMATS`], and a function in a file of its own or, for words in a row, a line in `text.rs`.

mod client;
mod csv;
mod json;
mod pattern;
mod recognise;
mod request;
mod source;
mod text;
mod time;
mod w3c;
mod wrapper;

use std::error::Error;
use std::io::Read;
use std::path::PathBuf;

use serde::Serialize;

use crate::log::Log;
use crate::options::Options;
use crate::report::printable;
use client::Taken;
use request::{Requests, Skipped};
use source::Lines;

/// A format of lines. It finds values, and does not judge them.
pub struct Format {
    /// Its name in the report.
    name: String,
    /// The names of the fields that its first line has, as an error shows them.
    fields: String,
    /// Knows a field of addresses by its place alone, which may be another one's.
    guesses_forwarded: bool,
    /// Sets the wanted fields that a line has.
    read: Box<ReadFields>,
}

type ReadFields = dyn FnMut(&[u8], &mut Fields) -> Result<(), Skipped>;

impl Format {
    fn new(name: &str, fields: &[impl AsRef<str>], read: Box<ReadFields>) -> Self {
        let fields: Vec<_> = fields.iter().map(|name| printable(name.as_ref())).take(MOST_FIELDS).collect();
        Self { name: name.to_owned(), fields: fields.join(", "), guesses_forwarded: false, read }
    }
}

/// Makes a format that finds the fields of these names, if the first line of a log allows that.
type Make = fn(&[u8], &[String]) -> Option<Format>;

/// The formats by the names that `--format` takes. The first of those that read the most lines is recognised.
pub const FORMATS: [(&str, Make); 12] = [
    ("json", json::format),
    ("istio", |_, names| text::format(text::ISTIO, None, names)),
    ("envoy", |_, names| text::format(text::ENVOY, None, names)),
    ("haproxy", |_, names| text::format(text::HAPROXY, Some(text::HAPROXY_START), names)),
    ("common", |_, names| text::format(text::COMMON, None, names)),
    ("vhost", |_, names| text::format(text::VHOST, None, names)),
    ("alb", |_, names| text::format(text::ALB, None, names)),
    ("elb", |_, names| text::format(text::ELB, None, names)),
    ("s3", |_, names| text::format(text::S3, None, names)),
    ("squid", |_, names| text::format(text::SQUID, None, names)),
    ("w3c", w3c::format),
    ("csv", csv::format),
];

/// The values of the wanted fields of a line, in the order of their names, and the numbers of the few that it has.
#[derive(Default)]
pub struct Fields(Vec<Vec<u8>>, Vec<usize>);

impl Fields {
    fn clear(&mut self, count: usize) {
        self.0.resize_with(count, Vec::new);
        self.1.drain(..).for_each(|number| self.0.get_mut(number).into_iter().for_each(Vec::clear));
    }

    /// Sets a value. The first one counts, and `-` is none.
    fn set(&mut self, number: usize, value: &[u8]) {
        if let Some(field) = self.0.get_mut(number).filter(|field| field.is_empty() && value != b"-") {
            field.extend_from_slice(value);
            self.1.push(number);
        }
    }

    fn get(&self, number: usize) -> Option<&[u8]> {
        self.0.get(number).map(Vec::as_slice).filter(|value| !value.is_empty())
    }
}

/// The reason for a line that does not have the format.
const OTHER: Skipped = Skipped::Unread("another format");

/// Bytes that are looked at to know a log.
const SAMPLE: u64 = 1 << 16;
/// Fields that an error names.
const MOST_FIELDS: usize = 40;
/// Unread lines that are shown.
const SHOWN: usize = 3;

/// What was read, and what was not.
#[derive(Default, Serialize)]
pub struct Reading {
    sources: Vec<Source>,
    /// The fields that stand for the client.
    pub client: Taken,
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
    /// All fields of the first line.
    #[serde(skip)]
    fields: String,
}

#[derive(Serialize)]
struct Source {
    name: String,
    format: String,
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
    let (mut log, mut reading, mut requests) = (Log::default(), Reading::default(), Requests::new(options));
    let standard_input = [PathBuf::from("-")];
    let files = if options.files.is_empty() { &standard_input[..] } else { &options.files };
    let bar = source::progress(files);
    for path in files {
        let name = if path.as_os_str() == "-" { "standard input".into() } else { path.display().to_string() };
        let added = source::open(path, &bar).map_err(Into::into);
        let added = added.and_then(|source| reading.add(options, &mut requests, &name, source, &mut log));
        added.map_err(|error| format!("{name}: {error}"))?;
    }
    bar.finish_and_clear();
    reading.client = requests.clients.taken;
    reading.check(options)?;
    Ok((log, reading))
}

impl Reading {
    /// Adds the requests of a log.
    fn add(
        &mut self,
        options: &Options,
        requests: &mut Requests,
        name: &str,
        source: impl Read,
        log: &mut Log,
    ) -> Result<(), Box<dyn Error>> {
        let (sample, source) = source::begin(source, SAMPLE)?;
        let sampled = recognise::lines(&sample);
        let mut format = recognise::format(options, requests, &sampled)?;
        requests.judge_forwarded(&mut format, &sampled);
        self.fields.clone_from(&format.fields);
        let mut lines = Lines::new(&sample, source);
        self.sources.push(Source { name: name.to_owned(), format: format.name.clone() });
        while let Some((number, line)) = lines.next()? {
            if line.trim_ascii().is_empty() {
                continue;
            }
            match requests.read(&mut format, line) {
                Ok(request) => {
                    self.requests += 1;
                    self.without_cost += u64::from(request.cost_micro.is_none());
                    log.push(request.key, request.at_us, request.cost_micro.unwrap_or(0))?;
                }
                Err(Skipped::Comment) => {}
                Err(Skipped::LeftOut) => self.left_out += 1,
                Err(Skipped::WithoutKey) => self.without_key += 1,
                Err(Skipped::NotInSample) => self.not_in_sample += 1,
                Err(Skipped::Unread(reason)) => {
                    self.unread.lines += 1;
                    if self.unread.first.len() < SHOWN {
                        let text = String::from_utf8_lossy(line.get(..200).unwrap_or(line)).into_owned();
                        let text = (!options.anonymize).then_some(text);
                        let source = name.to_owned();
                        self.unread.first.push(Unread { source, line: number, reason, text });
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
        if requests == without_cost {
            error = format!("{error}\n  the fields of the first line are {}", self.fields);
        }
        for Unread { source, line, reason, text } in &self.unread.first {
            let Some(text) = text else { continue };
            error = format!("{error}\n  {source}:{line}: {reason}: {}", printable(text));
        }
        Err(error)
    }
}
