//! The W3C extended log format of IIS, CloudFront and others: a line `#Fields:` names the columns below it.

use memchr::memchr;

use super::{Fields, Format, Skipped};

/// Reads lines below the names of their columns.
pub fn format(first_line: &[u8], names: &[String]) -> Option<Format> {
    let names = names.to_vec();
    let columns_of = move |header: &[u8]| -> Vec<(String, Option<usize>)> {
        let header = String::from_utf8_lossy(header);
        let number = |name: &str| names.iter().position(|wanted| wanted == name);
        header.split_whitespace().map(|name| (name.to_owned(), number(name))).collect()
    };
    let mut columns = columns_of(first_line.strip_prefix(b"#Fields:")?);
    let known: Vec<String> = columns.iter().map(|(name, _)| name.clone()).collect();
    let read = move |line: &[u8], fields: &mut Fields| {
        if line.starts_with(b"#") {
            line.strip_prefix(b"#Fields:").into_iter().for_each(|header| columns = columns_of(header));
            return Err(Skipped::Comment);
        }
        let delimiter = if memchr(b'\t', line).is_some() { b'\t' } else { b' ' };
        let mut date = b"".as_slice();
        for ((name, number), value) in columns.iter().zip(line.split(|byte| *byte == delimiter)) {
            match (name.as_str(), number) {
                ("date", _) => date = value,
                ("time", Some(number)) => fields.set(*number, &[date, b" ", value].concat()),
                (_, Some(number)) => fields.set(*number, value),
                (_, None) => {}
            }
        }
        Ok(())
    };
    Some(Format::new("W3C extended log", &known, Box::new(read)))
}
