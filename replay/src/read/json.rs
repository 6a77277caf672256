//! Objects of JSON, one in each line or several in an array.
//!
//! A name is a path: `request.headers.User-Agent` is a field of a field of a field, or a field with just that name. Of a list,
//! the first element counts. Values that nobody wants are skipped, and not made into a tree, which takes twice as long.

use std::borrow::Cow;
use std::fmt;

use hashbrown::HashMap;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::Deserialize;
use serde_json::{value::RawValue, Value};

use super::{Fields, Format, Skipped};

/// The paths of the wanted fields, with their numbers, and all beginnings of these paths, without.
type Paths = HashMap<String, Vec<usize>>;

/// Reads objects, if the first line may be one.
pub fn format(first_line: &[u8], names: &[String]) -> Option<Format> {
    let mut paths = Paths::new();
    for (number, name) in names.iter().enumerate() {
        let beginnings = name.match_indices('.').filter_map(|(dot, _)| name.get(..dot));
        for beginning in beginnings {
            paths.entry(beginning.to_owned()).or_default();
        }
        paths.entry(name.clone()).or_default().push(number);
    }
    first_line.starts_with(b"{").then(|| {
        let (mut known, mut path) = (Vec::new(), String::new());
        add_names(&serde_json::from_slice(first_line).unwrap_or_default(), "", &mut known);
        let read = move |line: &[u8], fields: &mut Fields| {
            let line = std::str::from_utf8(line).unwrap_or_default();
            path.clear();
            let read = Object { paths: &paths, path: &mut path, fields }.read(line);
            // nginx without escape=json writes such lines.
            read.map_err(|_| Skipped::Unread("JSON that is not valid"))
        };
        Format::new("JSON", &known, Box::new(read))
    })
}

/// Adds the paths of all values.
fn add_names(value: &Value, path: &str, names: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            object.iter().for_each(|(name, value)| add_names(value, &format!("{path}.{name}"), names));
        }
        Value::Null => {}
        _ => names.push(path.trim_start_matches('.').to_owned()),
    }
}

/// An object at a path, whose fields are looked for.
struct Object<'a> {
    paths: &'a Paths,
    path: &'a mut String,
    fields: &'a mut Fields,
}

impl Object<'_> {
    fn read(self, text: &str) -> serde_json::Result<()> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        deserializer.deserialize_map(self)?;
        deserializer.end()
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { paths, path, fields } = self;
        let length = path.len();
        while let Some((Text(name), value)) = map.next_entry::<_, &RawValue>()? {
            path.truncate(length);
            path.push_str(&name);
            let Some(numbers) = paths.get(path.as_str()) else { continue };
            if value.get().starts_with('{') {
                path.push('.');
                Object { paths, path, fields }.read(value.get()).map_err(Error::custom)?;
            } else if let Some(text) = scalar(value.get()) {
                numbers.iter().for_each(|number| fields.set(*number, text.as_bytes()));
            }
        }
        Ok(())
    }
}

/// A string, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Returns the text of a string, a number or a boolean, or of the first in a list.
fn scalar(value: &str) -> Option<Cow<'_, str>> {
    match value.as_bytes().first()? {
        b'"' => Some(serde_json::from_str::<Text>(value).ok()?.0),
        b'[' => scalar(serde_json::from_str::<Vec<&RawValue>>(value).ok()?.first()?.get()),
        b'{' | b'n' => None,
        _ => Some(value.into()),
    }
}
