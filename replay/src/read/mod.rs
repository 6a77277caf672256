//! Reads logs: their lines, the fields of each in its format, and from these the request.
//!
//! A new format is a file with a `format` function, and a row in [`FORMATS`].

mod address;
mod common;
mod condition;
mod csv;
mod envoy;
mod fields;
mod haproxy;
mod json;
mod lines;
mod pattern;
mod text;
mod time;
mod wanted;

pub use condition::Condition;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};

use crate::log::Log;
use crate::options::Options;
use fields::Fields;
use lines::{begin, decompressed, Lines};
use wanted::{Request, Wanted};

/// A format of lines. It finds values, and does not judge them.
pub trait Format {
    /// Returns the name for the report.
    fn name(&self) -> &'static str;

    /// Returns whether the first line names the fields.
    fn has_header(&self) -> bool {
        false
    }

    /// Selects the fields that [`read`](Self::read) sets, by their places in `names`.
    fn select(&mut self, names: &[String]);

    /// Sets the selected fields that a line has. Returns whether the line has this format.
    fn read(&mut self, line: &[u8], fields: &mut Fields) -> bool;
}

/// Makes a format for a log, if its first line allows that.
type Make = fn(&[u8]) -> Option<Box<dyn Format>>;

/// The formats by the names that `--format` takes. The first of those that read the most lines is recognised.
pub const FORMATS: [(&str, Make); 5] = [
    ("json", json::format),
    ("envoy", envoy::format),
    ("haproxy", haproxy::format),
    ("common", common::format),
    ("csv", csv::format),
];

/// Bytes and lines that are looked at to recognise a format.
const SAMPLE: u64 = 1 << 16;
const SAMPLE_LINES: usize = 50;
/// Unread lines that are shown.
const SHOWN: usize = 3;

/// What was read, and what was not.
#[derive(Default)]
pub struct Reading {
    /// The names of the logs, and their formats.
    pub sources: Vec<(String, &'static str)>,
    /// Lines that are requests.
    pub requests: u64,
    /// Lines that cannot be read.
    pub unread: u64,
    /// The first of these.
    pub first_unread: Vec<Unread>,
    /// Lines that `--where` leaves out.
    pub left_out: u64,
    /// Lines without the field of `--by`.
    pub without_key: u64,
    /// Lines of keys that `--sample` leaves out.
    pub not_in_sample: u64,
    /// Requests without the field of `--cost`, which cost nothing.
    pub without_cost: u64,
}

/// A line that cannot be read.
pub struct Unread {
    /// The name of its log.
    pub source: String,
    /// Its number there, from 1.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
    /// How it begins.
    pub text: Vec<u8>,
}

impl Reading {
    /// Checks that there are requests, and that enough of the lines were read.
    ///
    /// # Errors
    /// Why not, and the first lines that were not read.
    pub fn check(&self, options: &Options) -> Result<(), String> {
        let lines = self.requests + self.unread + self.left_out + self.without_key + self.not_in_sample;
        let by = options.by.join(" or no ");
        let mut error = if options.cost.is_some() && self.requests > 0 && self.requests == self.without_cost {
            format!("no request has the field {}", options.cost.as_deref().unwrap_or_default())
        } else if self.unread * 20 > lines && !options.lax {
            format!(
                "{} of {lines} lines cannot be read, more than 5 %: --lax reports on the others",
                self.unread
            )
        } else if self.requests == 0 {
            let (unread, left_out, without_key) = (self.unread, self.left_out, self.without_key);
            format!("no requests in {lines} lines: {unread} cannot be read, --where leaves out {left_out}, {without_key} have no {by}")
        } else {
            return Ok(());
        };
        for line in self.first_unread.iter().filter(|_| !options.anonymize) {
            let text = crate::report::printable(&line.text);
            error = format!("{error}\n  {}:{}: {}: {text}", line.source, line.line, line.reason);
        }
        Err(error)
    }

    fn unread(&mut self, source: &str, line: u64, reason: &str, text: &[u8]) {
        self.unread += 1;
        if self.first_unread.len() < SHOWN {
            let text = text.get(..text.len().min(200)).unwrap_or_default().to_owned();
            self.first_unread.push(Unread {
                source: source.to_owned(),
                line,
                reason: reason.to_owned(),
                text,
            });
        }
    }
}

/// Reads all logs.
///
/// # Errors
/// A log that cannot be opened or decompressed, whose format is unknown, or that lacks a field.
pub fn read(options: &Options) -> Result<(Log, Reading), String> {
    let (mut log, mut reading) = (Log::default(), Reading::default());
    let standard_input = [Path::new("-").to_owned()];
    let files = if options.files.is_empty() { &standard_input[..] } else { &options.files };
    let bar = progress(files);
    for path in files {
        let source: Box<dyn Read> = match path.to_str() {
            Some("-") => Box::new(io::stdin()),
            _ => Box::new(File::open(path).map_err(|error| format!("{}: {error}", path.display()))?),
        };
        let name = if path.as_os_str() == "-" { "standard input".into() } else { path.display().to_string() };
        let source = decompressed(bar.wrap_read(source)).map_err(|error| format!("{name}: {error}"))?;
        read_source(options, &name, source, &mut log, &mut reading)?;
    }
    bar.finish_and_clear();
    Ok((log, reading))
}

/// Returns a bar over the bytes of all files, or a counter if their size is unknown. It hides itself off a terminal.
fn progress(files: &[std::path::PathBuf]) -> ProgressBar {
    let size = |path: &std::path::PathBuf| {
        std::fs::metadata(path).ok().filter(|data| data.is_file()).map(|data| data.len())
    };
    match files.iter().map(size).sum::<Option<u64>>() {
        Some(total) => {
            let style = ProgressStyle::with_template("{bar:40} {bytes} of {total_bytes}, {eta} left");
            ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        }
        None => {
            let style = ProgressStyle::with_template("{spinner} {bytes} in {elapsed}");
            ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        }
    }
}

fn read_source(
    options: &Options,
    name: &str,
    source: impl Read,
    log: &mut Log,
    reading: &mut Reading,
) -> Result<(), String> {
    let failed = |error: io::Error| format!("{name}: {error}");
    let wanted = Wanted::new(options);
    let (sample, source) = begin(source, SAMPLE).map_err(failed)?;
    let mut format = format_of(options, &wanted, &sample).map_err(|error| format!("{name}: {error}"))?;
    format.select(&wanted.names);
    reading.sources.push((name.to_owned(), format.name()));

    let (mut lines, mut number) = (Lines::new(source), 0);
    let (mut request, mut skips_header) = (Request::default(), format.has_header());
    while let Some(line) = lines.next().map_err(failed)? {
        number += 1;
        let Some(text) = line else {
            reading.unread(name, number, "more than 1 MiB", b"");
            continue;
        };
        if text.trim_ascii().is_empty() || std::mem::take(&mut skips_header) {
            continue;
        }
        match wanted.request(format.as_mut(), text, &mut request) {
            Ok(()) => {
                reading.requests += 1;
                reading.without_cost += u64::from(request.is_without_cost);
                log.push(&request.key, request.at_us, request.cost_micro)
                    .map_err(|_| "more than 4,294,967,295 requests or keys: take a --sample")?;
            }
            Err(wanted::Skipped::LeftOut) => reading.left_out += 1,
            Err(wanted::Skipped::WithoutKey) => reading.without_key += 1,
            Err(wanted::Skipped::NotInSample) => reading.not_in_sample += 1,
            Err(wanted::Skipped::Unread(reason)) => reading.unread(name, number, reason, text),
        }
    }
    Ok(())
}

/// Makes the format that the options name, or recognises it: the one in which most of the first lines have a time.
fn format_of(options: &Options, wanted: &Wanted, sample: &[u8]) -> Result<Box<dyn Format>, String> {
    let mut lines =
        sample.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let first = lines.clone().next().unwrap_or_default();
    if let Some(regex) = &options.regex {
        return Ok(pattern::format(regex));
    }
    if let Some(name) = &options.format {
        let make = FORMATS.iter().find(|(known, _)| known == name).map(|(_, make)| make);
        let made = make.and_then(|make| make(first));
        return made.ok_or_else(|| format!("the first line does not have the format {name}"));
    }
    let sample: Vec<&[u8]> = lines.by_ref().take(SAMPLE_LINES).collect();
    let mut best = (0, None);
    for make in FORMATS.iter().map(|(_, make)| make) {
        let Some(mut format) = sample.iter().find_map(|line| make(line)) else { continue };
        format.select(&wanted.names);
        let read = sample.iter().filter(|line| wanted.has_time(format.as_mut(), line)).count();
        if read > best.0 {
            best = (read, Some(format));
        }
    }
    let first = if options.anonymize { "…".to_owned() } else { crate::report::printable(first) };
    best.1.ok_or_else(|| {
        format!("no known format has a time in these lines; name its field by --time, or write a --regex. The first is: {first}")
    })
}
