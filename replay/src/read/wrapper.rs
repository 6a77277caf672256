//! What the collectors of logs write around a line: a prefix, or an object of JSON with the line in a field.

use std::borrow::Cow;

use regex::bytes::Regex;
use serde::Deserialize;

use super::{Fields, Format, OTHER};

/// What is around a line, as a report says it, and the prefix, with `TIME` in the place of a time. JSON has none. What is
/// before nothing has a time of its own, or is read by mistake.
#[rustfmt::skip]
const WRAPPERS: [(&str, Option<&str>); 7] = [
    (", in a field of JSON", None),
    (", behind docker compose", Some(r"^(?:\x1b\[[\d;]*m)?[\w.-]+ +\| (?:\x1b\[0?m)?(?:TIME )?")),
    (", behind kubectl logs --prefix", Some(r"^\[pod/[^ \]]+\] (?:TIME )?")),
    (", behind the CRI", Some(r"^TIME (?:stdout|stderr) [FP](?::\S*)? ")),
    ("", Some("")),
    (", behind syslog", Some(r"^(?:<\d+>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|TIME) (?:[^ ]*[^ :] )?[\w./-]+(?:\[\d+\])?: ?(?:@cee: ?)?")),
    (", behind syslog", Some(r#"^<\d+>1 TIME (?:[^ ]+ ){4}(?:-|(?:\[(?:"(?:\\.|[^"\\])*"|[^\]"])*\])+) ?(?:\xef\xbb\xbf)?"#)),
];

/// An object of JSON around a line: of Docker's json-file and Fluent Bit, Filebeat and CloudWatch, or the journal.
#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow, alias = "message", alias = "MESSAGE")]
    log: Cow<'a, str>,
}

/// What is around a line, and its prefix unless it is JSON.
#[derive(Clone)]
pub struct Wrapper(&'static str, Option<Regex>);

impl Wrapper {
    pub fn all() -> impl Iterator<Item = Self> {
        let time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[^ ]*";
        // Without the tables of Unicode, which take longer to build than many logs to read.
        let prefix = |pattern: &str| Regex::new(&format!("(?-u){}", pattern.replace("TIME", time))).ok();
        WRAPPERS.into_iter().map(move |(around, pattern)| Self(around, pattern.and_then(prefix)))
    }

    pub fn inner<'l>(&self, line: &'l [u8]) -> Option<Cow<'l, [u8]>> {
        if let Some(prefix) = &self.1 {
            return Some(line.get(prefix.find(line)?.end()..)?.into());
        }
        let object: Object<'_> = serde_json::from_slice(line).ok()?;
        Some(object.log.trim_end().as_bytes().to_vec().into())
    }

    /// Returns the format of the whole lines.
    pub fn around(&self, format: Format) -> Format {
        if self.0.is_empty() {
            return format;
        }
        let (name, wrapper, mut read) = (format.name + self.0, self.clone(), format.read);
        let read = move |line: &[u8], fields: &mut Fields| read(&wrapper.inner(line).ok_or(OTHER)?, fields);
        Format { name, read: Box::new(read), ..format }
    }
}
