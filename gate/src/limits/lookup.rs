//! Finds the limit of a descriptor.

use std::cmp::Ordering;
use std::sync::Arc;

use super::name;
use super::rate;
use super::rule::{Matched, Rule};
use crate::messages::{Descriptor, Entry, Override, Unit};

#[derive(Debug)]
pub(super) struct Domain {
    name: String,
    /// As names of buckets begin.
    encoded: String,
    /// File and line of the first `domain`.
    pub origin: String,
    pub level: Level,
}

/// One level of nested descriptors.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// Sorted by `key_value` or `key`, so that a request is looked up without putting its key and value together.
    places: Vec<Place>,
    /// In the order of the files.
    wildcards: Vec<Wildcard>,
}

/// `foo*bar*`, and its pieces around the `*`.
#[derive(Debug)]
struct Wildcard {
    composite: Box<str>,
    pieces: Vec<Box<str>>,
}

#[derive(Debug)]
pub(super) struct Place {
    /// `key_value` or `key`.
    pub composite: Box<str>,
    pub rule: Option<Arc<Rule>>,
    /// Keys, with values if the file has them, from the domain down.
    pub path: Box<str>,
    pub flags: Flags,
    pub file: Arc<str>,
    pub line: usize,
    pub below: Level,
}

/// The options of a descriptor for its metrics and buckets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    pub detailed_metric: bool,
    pub value_to_metric: bool,
    pub share_threshold: bool,
}

impl Domain {
    pub(super) fn new(name: &str, origin: String) -> Self {
        let mut encoded = String::new();
        name::encode(name, &mut encoded);
        Self { name: name.to_owned(), encoded, origin, level: Level::default() }
    }

    /// Returns the limit of a descriptor; `hash_tag_key` is the key of the entry that its bucket has in the hash tag,
    /// if it is there.
    pub(super) fn find(&self, descriptor: &Descriptor, hash_tag_key: Option<&str>) -> Option<Matched> {
        let entries = &descriptor.entries;
        let tagged =
            hash_tag_key.and_then(|key| entries.iter().position(|entry| entry.key == key)).unwrap_or(0);
        let found = self.in_file(entries, tagged);
        let of_file = found.as_ref().map(|found| &*found.rule);
        let limit = descriptor.limit.as_ref();
        limit.and_then(|limit| self.overridden(entries, tagged, limit, of_file)).or(found)
    }

    fn in_file(&self, entries: &[Entry], tagged: usize) -> Option<Matched> {
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
            metric.push('.');
            push_value(&mut metric, &step.entry.key, value, is_written);
        }
        metric
    }

    /// Returns the limit that the descriptor itself has, `None` without a unit that there is. Its bucket is that of the
    /// file's limit by the same unit, or else one for each unit: with one for each value, a new value would be a new full bucket.
    fn overridden(
        &self,
        entries: &[Entry],
        tagged: usize,
        limit: &Override,
        of_file: Option<&Rule>,
    ) -> Option<Matched> {
        let unit = Unit::try_from(limit.unit).ok().filter(|unit| *unit != Unit::Unknown)?;
        let mut rule = rate::per_unit(limit.requests_per_unit, unit, None, false).ok()?;
        rule.paid_afterwards = of_file.and_then(|of_file| of_file.paid_afterwards);
        let mut metric = self.name.clone();
        metric.push('.');
        for entry in entries {
            if metric.len() > self.name.len().saturating_add(1) {
                metric.push('.');
            }
            push_value(&mut metric, &entry.key, &entry.value, false);
        }
        let pairs = entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()));
        let is_unit_of_file = of_file.is_some_and(|of_file| of_file.current.unit() == unit);
        let suffix = if is_unit_of_file { String::new() } else { format!("|@{}", unit.as_str_name()) };
        let bucket = name::bucket(&self.encoded, pairs, tagged, &suffix);
        Some(Matched { rule: Arc::new(rule), bucket, metric })
    }
}

fn push_value(metric: &mut String, key: &str, value: &str, is_written: bool) {
    metric.push_str(key);
    if is_written || !value.is_empty() {
        metric.push('_');
        metric.push_str(value);
    }
}

impl Level {
    /// Adds descriptors in the order of their file. Calls `repeated` for each that is there already, with the first.
    pub(super) fn add(&mut self, places: Vec<Place>, mut repeated: impl FnMut(&Place, &Place)) {
        let wildcards = places.iter().filter(|place| place.composite.contains('*'));
        self.wildcards.extend(wildcards.map(|place| Wildcard {
            composite: place.composite.clone(),
            pieces: place.composite.split('*').map(Box::from).collect(),
        }));
        self.places.extend(places);
        // Keeps the order of equal ones.
        self.places.sort_by(|one, other| one.composite.cmp(&other.composite));
        self.places.dedup_by(|later, first| {
            let is_repeated = later.composite == first.composite;
            if is_repeated {
                repeated(later, first);
            }
            is_repeated
        });
    }

    /// `key_value`, else the first wildcard that fits, else `key`.
    fn step<'a>(&'a self, entry: &'a Entry) -> Option<Step<'a>> {
        if let Some(place) = self.get(|composite| compare(composite, entry)) {
            return Some(Step { entry, place, by: By::Value });
        }
        if let Some(wildcard) = self.wildcards.iter().find(|wildcard| wildcard.fits(entry)) {
            let place = self.get(|composite| composite.cmp(&wildcard.composite))?;
            let pattern = pattern_behind(&place.composite, &entry.key);
            return Some(Step { entry, place, by: By::Wildcard { pattern } });
        }
        let place = self.get(|composite| composite.cmp(&entry.key))?;
        Some(Step { entry, place, by: By::Key })
    }

    fn get(&self, compare: impl Fn(&str) -> Ordering) -> Option<&Place> {
        let place = self.places.binary_search_by(|place| compare(&place.composite)).ok()?;
        self.places.get(place)
    }

    /// Visits all descriptors, in the order of their names.
    pub(super) fn each_place(&self, visit: &mut impl FnMut(&Place)) {
        for place in &self.places {
            visit(place);
            place.below.each_place(visit);
        }
    }
}

/// Compares with `key_value`, without putting it together.
fn compare(composite: &str, entry: &Entry) -> Ordering {
    let (key, value) = (entry.key.as_bytes(), entry.value.as_bytes());
    let composite = composite.as_bytes();
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

#[derive(Clone, Copy)]
enum By<'a> {
    Value,
    Wildcard { pattern: &'a str },
    Key,
}

impl<'a> Step<'a> {
    fn is_shared(&self) -> bool {
        matches!(self.by, By::Wildcard { .. }) && self.place.flags.share_threshold
    }

    /// Key and value as they name the bucket: the pattern where all that fit it share one.
    fn shared(&self) -> (&'a str, &'a str) {
        let value = match self.by {
            By::Wildcard { pattern } if self.is_shared() && !pattern.is_empty() => pattern,
            _ => &self.entry.value,
        };
        (&self.entry.key, value)
    }

    /// Returns the value as it names the metrics, unless they are detailed.
    fn metric_value(&self) -> &'a str {
        let flags = self.place.flags;
        match self.by {
            By::Value => &self.entry.value,
            By::Wildcard { pattern } if flags.share_threshold && !pattern.is_empty() => pattern,
            By::Wildcard { pattern } if !flags.value_to_metric => pattern,
            By::Key if !flags.value_to_metric => "",
            By::Wildcard { .. } | By::Key => &self.entry.value,
        }
    }

    /// Returns whether all requests share its part of the metrics' name: the one in the path.
    fn is_as_in_file(&self) -> bool {
        let flags = self.place.flags;
        match self.by {
            By::Value => !self.entry.value.is_empty(),
            By::Wildcard { pattern } => {
                (flags.share_threshold || !flags.value_to_metric)
                    && !pattern.is_empty()
                    && pattern.len() < self.place.composite.len()
            }
            By::Key => !flags.value_to_metric || self.entry.value.is_empty(),
        }
    }
}
