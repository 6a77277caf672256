//! Reads one YAML document into nodes that know their lines, within bounds whatever the text.

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput, Tag};

/// Larger texts are refused unread.
pub(crate) const MAX_BYTES: usize = 16 * 1024 * 1024;

/// Two levels of it nest one descriptor.
const MAX_DEPTH: usize = 100;

/// Bounds the memory, even of a text of nothing but brackets.
const MAX_NODES: usize = 1_000_000;

/// What aliases may copy, in bytes and nodes.
const MAX_COPIED: usize = 4_000_000;

/// Further faults are not listed.
const MAX_FAULTS: usize = 100;

/// A value and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Node<'a> {
    pub line: usize,
    pub data: Data<'a>,
}

#[derive(Clone, Debug)]
pub(crate) enum Data<'a> {
    Scalar(Scalar<'a>),
    List(Vec<Node<'a>>),
    /// In the order of the file.
    Map(Pairs<'a>),
}

pub(crate) type Pairs<'a> = Vec<(Node<'a>, Node<'a>)>;

#[derive(Clone, Debug)]
pub(crate) struct Scalar<'a> {
    pub text: Cow<'a, str>,
    /// Written without quotes: it may be a number, a boolean or null.
    pub plain: bool,
}

/// The meaning of a scalar in YAML 1.1, as envoyproxy/ratelimit reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Meaning {
    Nothing,
    Truth(bool),
    Number(f64),
    Text,
}

/// The reason why a text is not a document.
#[derive(Debug)]
pub(crate) struct Fault {
    pub line: usize,
    pub problem: String,
}

/// Faults that do not stop reading, in the order in which they are found.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, line: usize, problem: impl Into<String>) {
        if self.0.len() < MAX_FAULTS {
            self.0.push(Fault::new(line, problem));
        }
    }

    /// In the order of lines.
    pub(crate) fn sorted(mut self) -> Vec<Fault> {
        self.0.sort_by_key(|fault| fault.line);
        self.0
    }
}

impl Fault {
    pub(crate) fn new(line: usize, problem: impl Into<String>) -> Self {
        Self { line: line.max(1), problem: problem.into() }
    }
}

impl Scalar<'_> {
    pub(crate) fn meaning(&self) -> Meaning {
        if !self.plain {
            return Meaning::Text;
        }
        match &*self.text {
            "" | "~" | "null" | "Null" | "NULL" => Meaning::Nothing,
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                Meaning::Truth(true)
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
                Meaning::Truth(false)
            }
            text => number(text).map_or(Meaning::Text, Meaning::Number),
        }
    }
}

/// Reads a number in decimal notation, even `1_000`; others stay text.
fn number(text: &str) -> Option<f64> {
    let may_be = text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.'))
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E' | b'_'));
    if may_be {
        text.replace('_', "").parse().ok()
    } else {
        None
    }
}

impl<'a> Node<'a> {
    /// Returns whether it is left out: `key:` alone, or `null`.
    pub(crate) fn is_nothing(&self) -> bool {
        matches!(&self.data, Data::Scalar(scalar) if scalar.meaning() == Meaning::Nothing)
    }

    /// Returns the node as messages show it.
    pub(crate) fn shown(&self) -> String {
        match &self.data {
            Data::Scalar(scalar) => shown(&scalar.text),
            Data::List(_) => "a list".to_owned(),
            Data::Map(_) => "a mapping".to_owned(),
        }
    }

    /// Nodes and bytes of text, itself included.
    fn weight(&self) -> usize {
        match &self.data {
            Data::Scalar(scalar) => scalar.text.len().saturating_add(1),
            Data::List(items) => items.iter().fold(1, |sum: usize, item| sum.saturating_add(item.weight())),
            Data::Map(pairs) => pairs.iter().fold(1, |sum: usize, (key, value)| {
                sum.saturating_add(key.weight()).saturating_add(value.weight())
            }),
        }
    }

    fn depth(&self) -> usize {
        let below = match &self.data {
            Data::Scalar(_) => return 0,
            Data::List(items) => items.iter().map(Node::depth).max(),
            Data::Map(pairs) => pairs.iter().map(|(key, value)| key.depth().max(value.depth())).max(),
        };
        below.unwrap_or(0).saturating_add(1)
    }
}

/// Returns a text of a file in a message: cut, and without line breaks and other control characters.
pub(crate) fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 200;
    let mut shown: String =
        text.chars().take(MAX_CHARS).map(|char| if char.is_control() { '?' } else { char }).collect();
    if text.chars().nth(MAX_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// Reads the only document of a text; `None` if it is empty. Adds repeated keys to `faults`, and continues.
pub(crate) fn read<'a>(text: &'a str, faults: &mut Faults) -> Result<Option<Node<'a>>, Fault> {
    if text.len() > MAX_BYTES {
        return Err(Fault::new(1, format!("larger than {} MiB", MAX_BYTES / 1024 / 1024)));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parser = Parser::new_from_str(text);
    let mut reader = Reader { parser, faults, anchors: HashMap::new(), nodes: 0, copied: 0 };
    let mut document: Option<Node<'_>> = None;
    while let Some((event, line)) = reader.event()? {
        match reader.node(event, line, 0)? {
            Some(node) if document.is_none() => document = Some(node),
            // ratelimit silently reads only the first document. Here a second one is a mistake, because its author expects its
            // limits to hold.
            Some(node) if !node.is_nothing() => {
                let problem = "more than one YAML document in a file: each domain needs its own file";
                return Err(Fault::new(node.line, problem));
            }
            _ => {}
        }
    }
    Ok(document)
}

fn unreadable(problem: &str) -> String {
    format!("error loading config file: {problem}")
}

fn too_deep(line: usize) -> Fault {
    Fault::new(line, unreadable(&format!("nested deeper than {MAX_DEPTH} levels")))
}

/// Counts what is copied, so that aliases of aliases do not fill the memory.
fn count_copy(copied: &mut usize, node: &Node<'_>) -> Result<(), Fault> {
    *copied = copied.saturating_add(node.weight());
    if *copied > MAX_COPIED {
        return Err(Fault::new(node.line, unreadable("document contains excessive aliasing")));
    }
    Ok(())
}

struct Reader<'a, 'f> {
    parser: Parser<'a, StrInput<'a>>,
    faults: &'f mut Faults,
    /// The targets of aliases.
    anchors: HashMap<usize, Node<'a>>,
    nodes: usize,
    copied: usize,
}

impl<'a> Reader<'a, '_> {
    /// Returns the next event and its line.
    fn event(&mut self) -> Result<Option<(Event<'a>, usize)>, Fault> {
        let Some(event) = self.parser.next_event() else { return Ok(None) };
        let (event, span) =
            event.map_err(|error| Fault::new(error.marker().line(), unreadable(error.info())))?;
        Ok(Some((event, span.start.line())))
    }

    /// Reads the node that begins with this event, at this depth; `None` if the event ends one, or is about a document.
    fn node(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<Option<Node<'a>>, Fault> {
        let (data, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && !tag.is_some_and(|tag| is_text(&tag));
                (Data::Scalar(Scalar { text, plain }), anchor)
            }
            Event::SequenceStart(anchor, _) => (Data::List(self.items(line, depth)?), anchor),
            Event::MappingStart(anchor, _) => {
                let mut items = self.items(line, depth)?.into_iter();
                let pairs = std::iter::from_fn(|| Some((items.next()?, items.next()?)));
                (Data::Map(self.merged(pairs.collect())), anchor)
            }
            Event::Alias(anchor) => (self.alias(anchor, line, depth)?, 0),
            _ => return Ok(None),
        };
        let node = Node { line, data };
        self.nodes = self.nodes.saturating_add(1);
        if self.nodes > MAX_NODES {
            return Err(Fault::new(line, unreadable(&format!("more than {MAX_NODES} values"))));
        }
        if anchor != 0 {
            count_copy(&mut self.copied, &node)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(Some(node))
    }

    /// Reads the nodes of a list, or the keys and values of a mapping in turn.
    fn items(&mut self, line: usize, depth: usize) -> Result<Vec<Node<'a>>, Fault> {
        if depth >= MAX_DEPTH {
            return Err(too_deep(line));
        }
        let mut items = Vec::new();
        while let Some((event, line)) = self.event()? {
            let Some(node) = self.node(event, line, depth.saturating_add(1))? else { break };
            items.push(node);
        }
        Ok(items)
    }

    fn alias(&mut self, anchor: usize, line: usize, depth: usize) -> Result<Data<'a>, Fault> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(Fault::new(line, unreadable("an alias inside the value that it refers to")));
        };
        if depth.saturating_add(node.depth()) > MAX_DEPTH {
            return Err(too_deep(line));
        }
        count_copy(&mut self.copied, node)?;
        Ok(node.data.clone())
    }

    /// Resolves `<<` and finds repeated keys. A key of the mapping itself wins over a merged one.
    fn merged(&mut self, pairs: Pairs<'a>) -> Pairs<'a> {
        let (merges, mut own): (Pairs<'_>, Pairs<'_>) = pairs.into_iter().partition(|(key, _)| is_merge(key));
        let mut lines = HashMap::with_capacity(own.len());
        for (key, _) in &own {
            let Data::Scalar(scalar) = &key.data else { continue };
            if let Some(first) = lines.insert(scalar.text.clone(), key.line) {
                let problem = format!("mapping key '{}' already defined at line {first}", key.shown());
                self.faults.add(key.line, unreadable(&problem));
            }
        }
        for (key, value) in merges.into_iter().flat_map(|(_, value)| self.mergeable(value)) {
            let Data::Scalar(scalar) = &key.data else { continue };
            if lines.insert(scalar.text.clone(), key.line).is_none() {
                own.push((key, value));
            }
        }
        own
    }

    /// Returns the pairs of a mapping, or of a list of mappings.
    fn mergeable(&mut self, value: Node<'a>) -> Pairs<'a> {
        let maps = match value.data {
            Data::List(maps) => maps,
            _ => vec![value],
        };
        let mut all = Vec::new();
        for map in maps {
            match map.data {
                Data::Map(pairs) => all.extend(pairs),
                _ => {
                    let problem = "map merge requires map or sequence of maps as the value";
                    self.faults.add(map.line, unreadable(problem));
                }
            }
        }
        all
    }
}

fn is_merge(key: &Node<'_>) -> bool {
    matches!(&key.data, Data::Scalar(Scalar { text, plain: true }) if text == "<<")
}

/// Recognizes `!!str`, which makes any scalar a text.
fn is_text(tag: &Tag) -> bool {
    tag.is_yaml_core_schema() && tag.suffix == "str"
}
