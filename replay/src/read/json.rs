//! An object of JSON in each line.
//!
//! A name is a path: `request.headers.User-Agent` is a field of a field of a field, or a field with just that name. Of a list,
//! the first element counts.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Fields, Format};

/// The wanted fields below a field, and the numbers of those that it is itself.
#[derive(Default)]
struct Node {
    children: Vec<(String, Node)>,
    numbers: Vec<usize>,
}

/// Reads it, if the first line may be one.
pub fn format(first_line: &[u8]) -> Option<Box<dyn Format>> {
    first_line.starts_with(b"{").then(|| Box::new(Node::default()) as Box<dyn Format>)
}

impl Node {
    fn insert(&mut self, path: &[&str], number: usize) {
        let Some((first, rest)) = path.split_first() else { return self.numbers.push(number) };
        let place = self.children.iter().position(|(name, _)| name == first).unwrap_or_else(|| {
            self.children.push(((*first).to_owned(), Self::default()));
            self.children.len() - 1
        });
        self.children.iter_mut().skip(place).take(1).for_each(|(_, child)| child.insert(rest, number));
    }

    /// Sets the fields that a value is or contains.
    fn find(&self, value: &str, fields: &mut Fields) -> serde_json::Result<()> {
        if let Some(text) = scalar(value).filter(|_| !self.numbers.is_empty()) {
            self.numbers.iter().for_each(|number| fields.set(*number, text.as_bytes()));
        }
        if value.starts_with('{') && !self.children.is_empty() {
            let mut deserializer = serde_json::Deserializer::from_str(value);
            deserializer.deserialize_map(Object(self, fields))?;
            deserializer.end()?;
        }
        Ok(())
    }
}

impl Format for Node {
    fn name(&self) -> &'static str {
        "JSON lines"
    }

    fn select(&mut self, names: &[String]) {
        *self = Self::default();
        for (number, name) in names.iter().enumerate() {
            self.insert(&name.split('.').collect::<Vec<_>>(), number);
            self.insert(&[name], number);
        }
    }

    fn read(&mut self, line: &[u8], fields: &mut Fields) -> bool {
        let line = std::str::from_utf8(line.trim_ascii()).unwrap_or_default();
        line.starts_with('{') && self.find(line, fields).is_ok()
    }
}

/// An object whose fields are looked for.
struct Object<'a>(&'a Node, &'a mut Fields);

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((Name(name), value)) = map.next_entry::<_, &RawValue>()? {
            if let Some((_, child)) = self.0.children.iter().find(|(wanted, _)| *wanted == name) {
                child.find(value.get(), self.1).map_err(serde::de::Error::custom)?;
            }
        }
        Ok(())
    }
}

/// The name of a field, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Returns the text of a string, a number or a boolean, or of the first in a list.
fn scalar(value: &str) -> Option<Cow<'_, str>> {
    match value.as_bytes().first()? {
        b'"' => match value.get(1..value.len() - 1) {
            Some(plain) if !plain.contains('\\') => Some(plain.into()),
            _ => serde_json::from_str::<String>(value).ok().map(Cow::Owned),
        },
        b'[' => {
            let list: Vec<&RawValue> = serde_json::from_str(value).ok()?;
            scalar(list.first()?.get()).map(|first| first.into_owned().into())
        }
        b'{' | b'n' => None,
        _ => Some(value.into()),
    }
}
