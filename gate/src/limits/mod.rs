//! The limits of all domains, from the files.

mod check;
mod config;
mod file;
mod folder;
mod limitador;
mod lookup;
mod metadata;
mod name;
mod rate;
mod rule;
pub(crate) mod yaml;

use std::collections::HashMap;
use std::fmt::Write as _;

pub use check::check_files;
pub use config::messages as config_messages;
pub use file::{File, Mistake};
pub use folder::{read_file, read_folder};
pub use rule::{Matched, Rule};

use crate::messages::Descriptor;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Several files may have the same domain (`MERGE_DOMAIN_CONFIG`).
    pub merge: bool,
    /// The entry of this key goes into the hash tag of a bucket (`HASH_TAG_KEY`); without it, or if a descriptor has none, the
    /// first.
    pub hash_tag_key: Option<String>,
}

/// The content of all files. Immutable: a reload makes another.
#[derive(Debug, Default)]
pub struct Limits {
    domains: HashMap<String, lookup::Domain>,
    /// Domains of limitador's files.
    namespaces: HashMap<String, limitador::Namespace>,
    hash_tag_key: Option<String>,
}

impl Limits {
    /// Reads files, each a domain.
    ///
    /// # Errors
    ///
    /// The first mistake, with its file and line.
    pub fn read(files: &[File], options: &Options) -> Result<Self, Mistake> {
        file::read(files, options).map_err(|mistakes| {
            let nothing = Mistake { file: String::new(), line: 1, problem: String::new() };
            mistakes.into_iter().next().unwrap_or(nothing)
        })
    }

    /// Returns whether there is no domain.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty() && self.namespaces.is_empty()
    }

    /// Returns whether there is such a domain.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain) || self.namespaces.contains_key(domain)
    }

    /// Returns whether calls in this domain need no descriptors: limits of limitador's may have no conditions.
    pub(crate) fn takes_no_descriptors(&self, domain: &str) -> bool {
        self.namespaces.contains_key(domain)
    }

    /// Returns every limit of limitador's files that applies to the descriptors of a call; `None` if the domain is in none of
    /// these files.
    ///
    /// # Errors
    ///
    /// An expression of the file failed: which, and why.
    pub fn find_all(&self, domain: &str, descriptors: &[Descriptor]) -> Option<Result<Vec<Matched>, String>> {
        let namespace = self.namespaces.get(domain)?;
        Some(namespace.find(descriptors, self.hash_tag_key.as_deref()))
    }

    /// Returns the limit of a descriptor, if it has one: the override that it carries, or that of the files. `None` for an
    /// unknown domain.
    pub fn find(&self, domain: &str, descriptor: &Descriptor) -> Option<Matched> {
        self.domains.get(domain)?.find(descriptor, self.hash_tag_key.as_deref())
    }

    /// Returns all limits, as `/rlconfig` shows them: one line each, sorted. Keys that envoyproxy/ratelimit does not
    /// know are at the end of their lines.
    pub fn dump(&self) -> String {
        let mut lines = Vec::new();
        self.each_rule(&mut |path, rule| lines.push(line(path, rule)));
        lines.sort_unstable();
        lines.concat()
    }

    /// Visits all limits with their paths.
    pub(crate) fn each_rule(&self, visit: &mut impl FnMut(&str, &Rule)) {
        for domain in self.domains.values() {
            domain.level.each_place(&mut |place| {
                if let Some(rule) = &place.rule {
                    visit(&place.path, rule);
                }
            });
        }
        for namespace in self.namespaces.values() {
            namespace.each_rule(visit);
        }
    }

    fn count(&self) -> usize {
        let mut count: usize = 0;
        self.each_rule(&mut |_, _| count = count.saturating_add(1));
        count
    }
}

fn line(path: &str, rule: &Rule) -> String {
    // Line breaks in a value do not break the line.
    let mut line: String =
        path.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect();
    let _ = write!(
        line,
        ": unit={} requests_per_unit={}, shadow_mode: {}, quota_mode: {}",
        rule.current.unit().as_str_name(),
        rule.current.requests_per_unit,
        rule.shadow_mode,
        rule.quota_mode
    );
    if !rule.unlimited && rate::is_of_ours(rule) {
        let _ = write!(line, ", rate: {}, capacity: {}", rule.limit.rate(), rule.limit.capacity());
    }
    if let Some(paid_afterwards) = rule.paid_afterwards {
        let _ = write!(line, ", paid_afterwards: {paid_afterwards}");
    }
    line.push('\n');
    line
}
