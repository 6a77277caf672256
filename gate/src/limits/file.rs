//! Reads files of limits, in the format of envoyproxy/ratelimit and with keys of our own.

use std::fmt;
use std::sync::Arc;

use super::lookup::{Domain, Flags, Level, Place};
use super::rate;
use super::rule::Rule;
use super::yaml::{self, shown, Data, Fault, Faults, Meaning, Node, Scalar};
use super::{metadata, Limits, Options};
use crate::messages::CurrentLimit;

/// A file: its name, for messages, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// As messages name it.
    pub name: String,
    /// YAML.
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    pub file: String,
    /// The line, from 1 on.
    pub line: usize,
    /// The text; that of envoyproxy/ratelimit for mistakes that it refuses too.
    pub problem: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.problem)
    }
}

impl std::error::Error for Mistake {}

/// Reads all files. Returns all their mistakes if there are any, in the order of files and lines.
pub(super) fn read(files: &[File], options: &Options) -> Result<Limits, Vec<Mistake>> {
    let mut limits = Limits { hash_tag_key: options.hash_tag_key.clone(), ..Limits::default() };
    let mut mistakes = Vec::new();
    for file in files {
        let mut reader = Reader { name: file.name.as_str().into(), faults: Faults::default() };
        reader.file(&file.text, &mut limits, options.merge);
        let faults = reader.faults.sorted().into_iter();
        let mistake = |Fault { line, problem }| Mistake { file: file.name.clone(), line, problem };
        mistakes.extend(faults.map(mistake));
    }
    if mistakes.is_empty() {
        Ok(limits)
    } else {
        Err(mistakes)
    }
}

/// The kinds of mappings in a file, with their keys.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// In messages.
    pub name: &'static str,
    pub keys: &'static [&'static str],
}

/// A dump of a control plane has a name, which means nothing here.
const ROOT: Kind = Kind { name: "the file", keys: &["domain", "descriptors", "name"] };
const DESCRIPTOR: Kind = Kind {
    name: "a descriptor",
    keys: &[
        "key",
        "value",
        "rate_limit",
        "descriptors",
        "shadow_mode",
        "quota_mode",
        "detailed_metric",
        "value_to_metric",
        "share_threshold",
        "metadata",
        "paid_afterwards",
    ],
};
const RATE_LIMIT: Kind = Kind {
    name: "rate_limit",
    keys: &["unit", "requests_per_unit", "unlimited", "name", "replaces", "rate", "capacity", "window"],
};
const REPLACED: Kind = Kind { name: "replaces", keys: &["name"] };

pub(super) struct Reader {
    pub name: Arc<str>,
    pub faults: Faults,
}

/// The values of a mapping by their keys.
pub(super) struct Fields<'n, 'a> {
    pub line: usize,
    values: Vec<(&'n str, &'n Node<'a>)>,
}

impl<'n, 'a> Fields<'n, 'a> {
    /// Returns the value of a key, unless there is none.
    pub(super) fn get(&self, key: &str) -> Option<&'n Node<'a>> {
        let (_, value) = self.values.iter().find(|(each, _)| *each == key)?;
        Some(*value).filter(|value| !value.is_nothing())
    }

    /// Returns the line of a value, or of the mapping.
    pub(super) fn line_of(&self, key: &str) -> usize {
        self.get(key).map_or(self.line, |value| value.line)
    }
}

impl Reader {
    pub(super) fn fault(&mut self, line: usize, problem: impl Into<String>) {
        self.faults.add(line, problem);
    }

    pub(super) fn wrong_type(&mut self, key: &str, wanted: &str, node: &Node<'_>) {
        let problem = format!("error loading config file: {key} must be {wanted}, not {}", quoted(node));
        self.fault(node.line, problem);
    }

    fn file(&mut self, text: &str, limits: &mut Limits, may_merge: bool) {
        let root = match yaml::read(text, &mut self.faults) {
            Ok(root) => root.filter(|root| !root.is_nothing()),
            Err(Fault { line, problem }) => return self.fault(line, problem),
        };
        let Some(root) = root else { return self.fault(1, "config file cannot have empty domain") };
        self.root(&root, limits, may_merge);
    }

    pub(super) fn root(&mut self, root: &Node<'_>, limits: &mut Limits, may_merge: bool) {
        if let Data::List(items) = &root.data {
            return self.limits(items, limits);
        }
        if !matches!(root.data, Data::Map(_)) {
            return self.wrong_type("the file", "a mapping of domain and descriptors", root);
        }
        let fields = self.fields(root, ROOT);
        let (name, line) = (self.text(&fields, "domain"), fields.line_of("domain"));
        if name.is_empty() {
            self.fault(line, "config file cannot have empty domain");
        }
        if limits.namespaces.contains_key(&name) {
            let problem = format!("domain '{}' is a namespace in a file of limitador's", shown(&name));
            self.fault(line, problem);
        }
        let mut domain = Domain::new(&name, self.origin(line));
        match limits.domains.get_mut(&name) {
            Some(first) if may_merge => self.descriptors(&fields, &name, &mut first.level),
            first => {
                if let Some(Domain { origin, .. }) = first.filter(|_| !name.is_empty()) {
                    let problem =
                        format!("duplicate domain '{}' in config file (first at {origin})", shown(&name));
                    self.fault(line, problem);
                }
                // After a mistake they are read only to find the next one.
                self.descriptors(&fields, &name, &mut domain.level);
                limits.domains.entry(name).or_insert(domain);
            }
        }
    }

    pub(super) fn origin(&self, line: usize) -> String {
        format!("{}:{line}", self.name)
    }

    /// Takes a mapping apart; unknown keys are mistakes, with their lines.
    pub(super) fn fields<'n, 'a>(&mut self, node: &'n Node<'a>, kind: Kind) -> Fields<'n, 'a> {
        let mut values = Vec::new();
        let pairs = if let Data::Map(pairs) = &node.data { pairs.as_slice() } else { &[] };
        for (key, value) in pairs {
            match &key.data {
                Data::Scalar(scalar) if is_name(scalar) => {
                    self.judge_key(&scalar.text, key.line, kind);
                    values.push((&*scalar.text, value));
                }
                _ => {
                    self.fault(key.line, format!("config error, key is not of type string: {}", key.shown()))
                }
            }
        }
        Fields { line: node.line, values }
    }

    /// Ignores ratelimit's keys in other places, as it does itself.
    fn judge_key(&mut self, key: &str, line: usize, kind: Kind) {
        if kind.keys.contains(&key) {
            return;
        }
        match [RATE_LIMIT, DESCRIPTOR, ROOT].iter().find(|other| other.keys.contains(&key)) {
            Some(other) => {
                self.fault(
                    line,
                    format!("config error, key '{key}' belongs in {}, not in {}", other.name, kind.name),
                );
            }
            None => self.fault(line, format!("config error, unknown key '{}'", shown(key))),
        }
    }

    /// Returns the mappings of a list.
    fn items<'n, 'a>(&mut self, fields: &Fields<'n, 'a>, key: &str, kind: Kind) -> Vec<Fields<'n, 'a>> {
        let Some(node) = fields.get(key) else { return Vec::new() };
        let Data::List(items) = &node.data else {
            self.wrong_type(key, "a list of mappings", node);
            return Vec::new();
        };
        let mut maps = Vec::with_capacity(items.len());
        for item in items {
            if matches!(item.data, Data::Map(_)) {
                maps.push(self.fields(item, kind));
            } else {
                let problem =
                    format!("config error, yaml file contains list of type other than map: {}", item.shown());
                self.fault(item.line, problem);
            }
        }
        maps
    }

    /// Returns what `read` finds in a scalar; `None` if it is missing, or after a mistake.
    pub(super) fn scalar<T>(
        &mut self,
        fields: &Fields<'_, '_>,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&Scalar<'_>) -> Option<T>,
    ) -> Option<T> {
        let node = fields.get(key)?;
        let found = if let Data::Scalar(scalar) = &node.data { read(scalar) } else { None };
        if found.is_none() {
            self.wrong_type(key, wanted, node);
        }
        found
    }

    /// Returns a text, even one that looks like a number; empty if missing.
    pub(super) fn text(&mut self, fields: &Fields<'_, '_>, key: &str) -> String {
        let text = self.scalar(fields, key, "a text", |scalar| Some(scalar.text.to_string()));
        text.unwrap_or_default()
    }

    fn truth(&mut self, fields: &Fields<'_, '_>, key: &str) -> bool {
        let truth = self.scalar(fields, key, "true or false", |scalar| match scalar.meaning() {
            Meaning::Truth(truth) => Some(truth),
            _ => None,
        });
        truth.unwrap_or_default()
    }

    fn requests(&mut self, fields: &Fields<'_, '_>) -> u32 {
        let wanted = "a whole number from 0 to 4294967295";
        let requests = self.scalar(fields, "requests_per_unit", wanted, |scalar| match scalar.meaning() {
            Meaning::Number(_) => whole(&scalar.text),
            _ => None,
        });
        requests.unwrap_or_default()
    }

    fn descriptors(&mut self, fields: &Fields<'_, '_>, path: &str, level: &mut Level) {
        let descriptors = self.items(fields, "descriptors", DESCRIPTOR);
        let places = descriptors.iter().map(|descriptor| self.descriptor(descriptor, path)).collect();
        level.add(places, |place, Place { file, line, .. }| {
            let path = shown(&place.path);
            let problem = format!("duplicate descriptor composite key '{path}' (first at {file}:{line})");
            self.fault(place.line, problem);
        });
    }

    fn descriptor(&mut self, fields: &Fields<'_, '_>, path: &str) -> Place {
        let (mut composite, value) = (self.text(fields, "key"), self.text(fields, "value"));
        if composite.is_empty() {
            self.fault(fields.line, "descriptor has empty key");
        }
        if !value.is_empty() {
            composite.push('_');
            composite.push_str(&value);
        }
        let path = format!("{path}.{composite}");
        let flags = self.flags(fields, &composite);
        let rule = self.rule(fields).map(Arc::new);
        let mut below = Level::default();
        self.descriptors(fields, &path, &mut below);
        let (file, line) = (self.name.clone(), fields.line);
        Place { composite: composite.into(), rule, path: path.into(), flags, file, line, below }
    }

    fn flags(&mut self, fields: &Fields<'_, '_>, composite: &str) -> Flags {
        let flags = Flags {
            detailed_metric: self.truth(fields, "detailed_metric"),
            value_to_metric: self.truth(fields, "value_to_metric"),
            share_threshold: self.truth(fields, "share_threshold"),
        };
        if flags.share_threshold && !composite.contains('*') {
            let problem = format!(
                "share_threshold can only be used with wildcard values (containing '*'), but found key '{}'",
                shown(composite)
            );
            self.fault(fields.line_of("share_threshold"), problem);
        }
        flags
    }

    fn rule(&mut self, fields: &Fields<'_, '_>) -> Option<Rule> {
        let shadow_mode = self.truth(fields, "shadow_mode");
        let quota_mode = self.truth(fields, "quota_mode");
        let paid_afterwards = fields.get("paid_afterwards").map(|_| self.truth(fields, "paid_afterwards"));
        let metadata = fields.get("metadata").and_then(|node| metadata::read(node, &mut self.faults));
        let node = fields.get("rate_limit")?;
        if !matches!(node.data, Data::Map(_)) {
            self.wrong_type("rate_limit", "a mapping", node);
            return None;
        }
        let limit = self.fields(node, RATE_LIMIT);
        let name = self.text(&limit, "name");
        let replaces = self.replaces(&limit, &name);
        let unlimited = self.truth(&limit, "unlimited");
        let mut plain = if unlimited { self.unlimited(&limit) } else { self.plain(&limit) }?;
        plain.current.name.clone_from(&name);
        Some(Rule { unlimited, shadow_mode, quota_mode, paid_afterwards, name, replaces, metadata, ..plain })
    }

    fn replaces(&mut self, limit: &Fields<'_, '_>, name: &str) -> Vec<String> {
        let mut replaces = Vec::new();
        for replaced in self.items(limit, "replaces", REPLACED) {
            let other = self.text(&replaced, "name");
            if other.is_empty() {
                self.fault(replaced.line, "should not have an empty replaces entry");
            } else if other == name {
                self.fault(replaced.line, "replaces should not contain name of same descriptor");
            }
            replaces.push(other);
        }
        replaces
    }

    fn unlimited(&mut self, limit: &Fields<'_, '_>) -> Option<Rule> {
        if rate::unit(&self.text(limit, "unit")).is_some() {
            self.fault(limit.line_of("unit"), "should not specify rate limit unit when unlimited");
        }
        for key in ["rate", "capacity", "window"] {
            if limit.get(key).is_some() {
                self.fault(limit.line_of(key), format!("should not specify {key} when unlimited"));
            }
        }
        let current = CurrentLimit { requests_per_unit: self.requests(limit), ..CurrentLimit::default() };
        Some(Rule::plain(rate::nothing().ok()?, current, 0, 0))
    }

    /// `None` after a mistake.
    fn plain(&mut self, limit: &Fields<'_, '_>) -> Option<Rule> {
        let capacity = limit.get("capacity").map(|_| self.text(limit, "capacity"));
        let rule = match limit.get("rate") {
            Some(_) => self.by_rate(limit, capacity.as_deref()),
            None => self.by_unit(limit, capacity.as_deref()),
        }?;
        if rate::is_part_of_one(rule.limit.capacity()) {
            let key = if capacity.is_some() { "capacity" } else { "rate" };
            let problem = "a capacity below 1 never lets a request pass: set capacity to 1 or more";
            self.fault(limit.line_of(key), problem);
        }
        Some(rule)
    }

    fn by_rate(&mut self, limit: &Fields<'_, '_>, capacity: Option<&str>) -> Option<Rule> {
        for key in ["unit", "requests_per_unit", "window"] {
            if limit.get(key).is_some() {
                self.fault(limit.line_of(key), format!("rate replaces {key}: use one of them"));
            }
        }
        let text = self.text(limit, "rate");
        match rate::of_rate(&text, capacity) {
            // The module takes a rate of 0 for a pool, to which nothing returns here.
            Ok(_) if rate::is_zero(&text) => {
                let problem = "rate must be above 0: requests_per_unit: 0 denies every request";
                self.fault(limit.line_of("rate"), problem);
                None
            }
            Ok(rule) => Some(rule),
            Err(error) => {
                let problem = error.to_string();
                let key =
                    if problem.starts_with("capacity") && capacity.is_some() { "capacity" } else { "rate" };
                self.fault(limit.line_of(key), problem);
                None
            }
        }
    }

    fn by_unit(&mut self, limit: &Fields<'_, '_>, capacity: Option<&str>) -> Option<Rule> {
        let requests = self.requests(limit);
        let is_calendar = self.is_calendar(limit);
        let name = self.text(limit, "unit");
        let Some(unit) = rate::unit(&name) else {
            self.fault(limit.line_of("unit"), format!("invalid rate limit unit '{}'", shown(&name)));
            return None;
        };
        if requests == 0 && capacity.is_some() {
            self.fault(limit.line_of("capacity"), "capacity needs requests_per_unit above 0");
        }
        match rate::per_unit(requests, unit, capacity, is_calendar) {
            Ok(rule) => Some(rule),
            Err(error) => {
                let key = if capacity.is_some() { "capacity" } else { "requests_per_unit" };
                self.fault(limit.line_of(key), error.to_string());
                None
            }
        }
    }

    fn is_calendar(&mut self, limit: &Fields<'_, '_>) -> bool {
        let window = self.text(limit, "window");
        if !matches!(&*window, "" | "calendar") {
            let problem = format!("invalid window '{}': only calendar is known", shown(&window));
            self.fault(limit.line_of("window"), problem);
        }
        window == "calendar"
    }
}

/// Returns whether a node can be a key: a text that YAML does not read as a number or a boolean.
fn is_name(scalar: &Scalar<'_>) -> bool {
    scalar.meaning() == Meaning::Text
}

/// Reads a whole number, even `1_000`; not with leading zeros, which YAML 1.1 reads as octal.
fn whole(text: &str) -> Option<u32> {
    let digits = text.replace('_', "");
    let is_octal = digits.len() > 1 && digits.starts_with('0');
    if is_octal {
        None
    } else {
        digits.parse().ok()
    }
}

/// Returns a value in a message: texts in quotes.
fn quoted(node: &Node<'_>) -> String {
    match node.data {
        Data::Scalar(_) => format!("'{}'", node.shown()),
        _ => node.shown(),
    }
}
