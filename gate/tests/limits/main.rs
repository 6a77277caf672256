//! What files of limits mean: which are refused and why, which limit a descriptor has, and what its bucket and its metrics
//! are called.

mod configs;
#[path = "../descriptors.rs"]
mod descriptors;
mod folders;
mod hostile;
mod limitador;
mod lookups;
mod metrics;
mod mistakes;
mod names;
mod rates;

use tokenbucket_gate::limits::{File, Limits, Matched, Options};
use tokenbucket_gate::messages::{Descriptor, Entry};

fn file(name: &str, text: &str) -> File {
    File { name: name.to_owned(), text: text.to_owned() }
}

fn limits(text: &str) -> Limits {
    limits_with(text, &Options::default())
}

fn limits_with(text: &str, options: &Options) -> Limits {
    Limits::read(&[file("f.yaml", text)], options).unwrap_or_else(|mistake| panic!("{mistake}\n{text}"))
}

/// One descriptor of the domain `d` with these lines as its `rate_limit`.
fn limit(lines: &str) -> Matched {
    let lines = lines.replace('\n', "\n      ");
    let text = format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit:\n      {lines}\n");
    limits(&text).find("d", &descriptor(&[("k", "v")])).unwrap()
}

fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    Descriptor { entries: entries.iter().map(entry).collect(), ..Descriptor::default() }
}

/// The limit that a descriptor has in the domain `d`, in requests per unit.
fn requests(limits: &Limits, entries: &[(&str, &str)]) -> Option<u32> {
    limits.find("d", &descriptor(entries)).map(|found| found.rule.current.requests_per_unit)
}

fn bucket(limits: &Limits, entries: &[(&str, &str)]) -> String {
    limits.find("d", &descriptor(entries)).unwrap().bucket
}

fn metric(limits: &Limits, entries: &[(&str, &str)]) -> String {
    limits.find("d", &descriptor(entries)).unwrap().metric
}
