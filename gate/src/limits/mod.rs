//! The limits of all domains, as the files state them.

mod file;
mod lookup;
mod rule;

pub use file::{File, Mistake};
pub use rule::{Matched, Rule};

use crate::messages::Descriptor;

/// What all files say, read and judged. Immutable: a reload makes another.
#[derive(Debug, Default)]
pub struct Limits {
    domains: std::collections::HashMap<String, lookup::Level>,
}

impl Limits {
    /// Reads files, each a domain. `merge` allows several files of one domain (`MERGE_DOMAIN_CONFIG`).
    ///
    /// # Errors
    ///
    /// The first mistake, with its file and line.
    pub fn read(files: &[File], merge: bool) -> Result<Self, Mistake> {
        file::read(files, merge)
    }

    /// Whether there is such a domain.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// Whether no file has a domain.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// The limit of a descriptor, if it has one: the override that it carries, or what the files say. None too for an unknown
    /// domain.
    pub fn find(&self, domain: &str, descriptor: &Descriptor) -> Option<Matched> {
        let _ = (domain, descriptor);
        None
    }

    /// All limits, as `/rlconfig` shows them: one line each.
    pub fn dump(&self) -> String {
        String::new()
    }
}
