//! Finds the limit of a descriptor.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::name;
use super::rate;
use super::rule::{Matched, Rule};
use crate::messages::{Descriptor, Entry, Override, Unit};

/// The limits of one domain.
#[derive(Debug)]
pub(super) struct Domain {
    name: String,
    /// As names of buckets begin.
    encoded: String,
    level: Level,
}

/// One level of nested descriptors.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// Sorted by `key_value` or `key`, so that a request is looked up without putting its key and value together.
    places: Vec<(Box<str>, Place)>,
    /// In the order of the files.
    wildcards: Vec<Wildcard>,
}

/// `foo*bar*`, in pieces around the `*`.
#[derive(Debug)]
struct Wildcard {
    pieces: Vec<Box<str>>,
    place: usize,
}

/// One descriptor of a file.
#[derive(Debug)]
pub(super) struct Place {
    rule: Option<Arc<Rule>>,
    /// Keys, with values if the file has them, from the domain down.
    path: Box<str>,
    flags: Flags,
    below: Level,
}

/// The options of a descriptor for its metrics and buckets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    pub detailed_metric: bool,
    pub value_to_metric: bool,
    pub share_threshold: bool,
}

/// A level while files are read.
#[derive(Debug, Default)]
pub(super) struct Draft {
    places: BTreeMap<String, DraftPlace>,
    wildcards: Vec<String>,
}

#[derive(Debug)]
pub(super) struct DraftPlace {
    rule: Option<Arc<Rule>>,
    flags: Flags,
    /// File and line.
    origin: String,
    pub below: Draft,
}

impl Draft {
    /// Adds a descriptor, of which `None` may be there yet.
    ///
    /// # Errors
    ///
    /// The origin of the one that is there.
    pub(super) fn add(
        &mut self,
        composite: &str,
        rule: Option<Rule>,
        flags: Flags,
        origin: String,
    ) -> Result<&mut Self, String> {
        if let Some(first) = self.places.get(composite) {
            return Err(first.origin.clone());
        }
        if composite.contains('*') {
            self.wildcards.push(composite.to_owned());
        }
        let place = DraftPlace { rule: rule.map(Arc::new), flags, origin, below: Self::default() };
        Ok(&mut self.places.entry(composite.to_owned()).or_insert(place).below)
    }

    fn finish(self, path: &str) -> Level {
        let places: Vec<_> =
            self.places.into_iter().map(|(composite, place)| place.finish(composite, path)).collect();
        let wildcards = self.wildcards.iter().filter_map(|composite| {
            let place = places.binary_search_by(|(each, _)| (**each).cmp(composite)).ok()?;
            Some(Wildcard { pieces: composite.split('*').map(Box::from).collect(), place })
        });
        let wildcards = wildcards.collect();
        Level { places, wildcards }
    }
}

impl DraftPlace {
    fn finish(self, composite: String, path: &str) -> (Box<str>, Place) {
        let path = format!("{path}.{composite}").into_boxed_str();
        let below = self.below.finish(&path);
        (composite.into(), Place { rule: self.rule, path, flags: self.flags, below })
    }
}

impl Domain {
    pub(super) fn new(name: &str, draft: Draft) -> Self {
        let mut encoded = String::new();
        name::encode(name, &mut encoded);
        Self { name: name.to_owned(), encoded, level: draft.finish(name) }
    }

    /// Returns the limit of a descriptor; `hash_tag_key` is the key of the entry that its bucket has in the hash tag,
    /// if it is there.
    pub(super) fn find(&self, descriptor: &Descriptor, hash_tag_key: Option<&str>) -> Option<Matched> {
        let entries = &descriptor.entries;
        let tagged = tagged(entries, hash_tag_key);
        if let Some(found) =
            descriptor.limit.as_ref().and_then(|limit| self.overridden(entries, tagged, limit))
        {
            return Some(found);
        }
        let steps = self.walk(entries)?;
        let rule = steps.last()?.place.rule.as_ref()?;
        let bucket = name::bucket(&self.encoded, steps.iter().map(Step::shared), tagged, "");
        Some(Matched { rule: Arc::clone(rule), bucket, metric: self.metric(&steps) })
    }

    /// From level to level, as many as the descriptor has entries; `None` if one is not there.
    fn walk<'a>(&'a self, entries: &'a [Entry]) -> Option<Vec<Step<'a>>> {
        let mut level = &self.level;
        let mut steps = Vec::new();
        for entry in entries {
            let step = level.step(entry)?;
            level = &step.place.below;
            steps.push(step);
        }
        Some(steps)
    }

    /// Returns the name of the metrics, as envoyproxy/ratelimit makes it.
    fn metric(&self, steps: &[Step<'_>]) -> String {
        let last = steps.last().map(|step| step.place);
        if last.is_some_and(|place| place.flags.detailed_metric) {
            let is_shared = steps.iter().any(Step::is_shared);
            return self.joined(steps, |step| (step.shared().1, !is_shared));
        }
        match last {
            Some(place) if steps.iter().all(Step::is_as_in_file) => place.path.to_string(),
            _ => self.joined(steps, |step| (step.metric_value(), false)),
        }
    }

    /// `domain.key_value.key`: `value_of` has the value of a step, and whether it is written though empty.
    fn joined<'a>(&self, steps: &[Step<'a>], value_of: impl Fn(&Step<'a>) -> (&'a str, bool)) -> String {
        let mut metric = self.name.clone();
        for step in steps {
            let (value, is_written) = value_of(step);
            push_part(&mut metric, &step.entry.key, value, is_written);
        }
        metric
    }

    /// Returns the limit that the descriptor itself has. Its bucket is its own: at another limit it would clamp
    /// that of the file. `None` without a unit that there is.
    fn overridden(&self, entries: &[Entry], tagged: usize, limit: &Override) -> Option<Matched> {
        let unit = Unit::try_from(limit.unit).ok().filter(|unit| *unit != Unit::Unknown)?;
        let rule = Rule::of(rate::per_unit(limit.requests_per_unit, unit, None, false).ok()?);
        let mut metric = self.name.clone();
        metric.push('.');
        for entry in entries {
            if metric.len() > self.name.len().saturating_add(1) {
                metric.push('.');
            }
            push_value(&mut metric, &entry.key, &entry.value, false);
        }
        let pairs = entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()));
        let suffix = format!("|@{}/{}", limit.requests_per_unit, unit.as_str_name());
        let bucket = name::bucket(&self.encoded, pairs, tagged, &suffix);
        Some(Matched { rule: Arc::new(rule), bucket, metric })
    }

    /// Visits all limits with their paths, in the order of their names.
    pub(super) fn each_rule(&self, visit: &mut impl FnMut(&str, &Rule)) {
        self.level.each_rule(visit);
    }
}

/// Returns the place of the entry that goes into the hash tag.
fn tagged(entries: &[Entry], hash_tag_key: Option<&str>) -> usize {
    hash_tag_key.and_then(|key| entries.iter().position(|entry| entry.key == key)).unwrap_or(0)
}

fn push_part(metric: &mut String, key: &str, value: &str, is_written: bool) {
    metric.push('.');
    push_value(metric, key, value, is_written);
}

fn push_value(metric: &mut String, key: &str, value: &str, is_written: bool) {
    metric.push_str(key);
    if is_written || !value.is_empty() {
        metric.push('_');
        metric.push_str(value);
    }
}

impl Level {
    /// `key_value`, else the first wildcard that fits, else `key`.
    fn step<'a>(&'a self, entry: &'a Entry) -> Option<Step<'a>> {
        if let Some((_, place)) = self.get(entry, true) {
            return Some(Step { entry, place, by: By::Value });
        }
        if let Some(wildcard) = self.wildcards.iter().find(|wildcard| wildcard.fits(entry)) {
            let (composite, place) = self.places.get(wildcard.place)?;
            let pattern = pattern_behind(composite, &entry.key);
            return Some(Step { entry, place, by: By::Wildcard { composite, pattern } });
        }
        let (_, place) = self.get(entry, false)?;
        Some(Step { entry, place, by: By::Key })
    }

    fn get(&self, entry: &Entry, with_value: bool) -> Option<&(Box<str>, Place)> {
        let place =
            self.places.binary_search_by(|(composite, _)| compare(composite, entry, with_value)).ok()?;
        self.places.get(place)
    }

    fn each_rule(&self, visit: &mut impl FnMut(&str, &Rule)) {
        for (_, place) in &self.places {
            if let Some(rule) = &place.rule {
                visit(&place.path, rule);
            }
            place.below.each_rule(visit);
        }
    }
}

/// Compares with `key_value` or `key`, without putting them together.
fn compare(composite: &str, entry: &Entry, with_value: bool) -> Ordering {
    let (key, value) = (entry.key.as_bytes(), entry.value.as_bytes());
    let composite = composite.as_bytes();
    if !with_value {
        return composite.cmp(key);
    }
    let (begin, rest) = composite.split_at(key.len().min(composite.len()));
    let (separator, rest) = rest.split_at(rest.len().min(1));
    begin.cmp(key).then_with(|| separator.cmp(b"_")).then_with(|| rest.cmp(value))
}

/// Returns the part of a pattern that matches the value; all of it if the key itself has the `*`.
fn pattern_behind<'a>(composite: &'a str, key: &str) -> &'a str {
    composite.strip_prefix(key).and_then(|rest| rest.strip_prefix('_')).unwrap_or(composite)
}

impl Wildcard {
    /// Returns whether it matches `key_value`; each `*` matches anything, even nothing.
    fn fits(&self, entry: &Entry) -> bool {
        let [first, middle @ .., last] = &*self.pieces else { return false };
        // Nearly always the first piece begins with the key, and the rest is about the value.
        if let Some(first) = first.strip_prefix(entry.key.as_str()).and_then(|rest| rest.strip_prefix('_')) {
            return fits(&entry.value, first, middle, last);
        }
        // A `*` in the key itself.
        entry.key.starts_with(&**first)
            && fits(&format!("{}_{}", entry.key, entry.value), first, middle, last)
    }
}

fn fits(text: &str, first: &str, middle: &[Box<str>], last: &str) -> bool {
    let Some(rest) = text.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    middle.iter().try_fold(rest, |rest, piece| rest.split_once(&**piece).map(|(_, rest)| rest)).is_some()
}

/// One entry of a descriptor and its place in the file.
#[derive(Clone, Copy)]
struct Step<'a> {
    entry: &'a Entry,
    place: &'a Place,
    by: By<'a>,
}

/// How an entry was found.
#[derive(Clone, Copy)]
enum By<'a> {
    Value,
    Wildcard { composite: &'a str, pattern: &'a str },
    Key,
}

impl<'a> Step<'a> {
    fn is_shared(&self) -> bool {
        matches!(self.by, By::Wildcard { .. }) && self.place.flags.share_threshold
    }

    /// Key and value as they name the bucket: the pattern where all that fit it share one.
    fn shared(&self) -> (&'a str, &'a str) {
        let value = match self.by {
            By::Wildcard { pattern, .. } if self.is_shared() && !pattern.is_empty() => pattern,
            _ => &self.entry.value,
        };
        (&self.entry.key, value)
    }

    /// Returns the value as it names the metrics, unless they are detailed.
    fn metric_value(&self) -> &'a str {
        let flags = self.place.flags;
        match self.by {
            By::Value => &self.entry.value,
            By::Wildcard { pattern, .. } if flags.share_threshold && !pattern.is_empty() => pattern,
            By::Wildcard { pattern, .. } if !flags.value_to_metric => pattern,
            By::Key if !flags.value_to_metric => "",
            By::Wildcard { .. } | By::Key => &self.entry.value,
        }
    }

    /// Returns whether all requests share its part of the metrics' name: the one in the path.
    fn is_as_in_file(&self) -> bool {
        let flags = self.place.flags;
        match self.by {
            By::Value => !self.entry.value.is_empty(),
            By::Wildcard { composite, pattern } => {
                (flags.share_threshold || !flags.value_to_metric)
                    && !pattern.is_empty()
                    && pattern.len() < composite.len()
            }
            By::Key => !flags.value_to_metric || self.entry.value.is_empty(),
        }
    }
}
