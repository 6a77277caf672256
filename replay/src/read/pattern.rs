//! Lines that a regular expression with named groups matches.

use regex::bytes::Regex;

use super::{Fields, Format, OTHER};

pub fn format(regex: &Regex, names: &[String]) -> Format {
    let number = |name: &str| names.iter().position(|wanted| wanted == name);
    let groups = regex.capture_names().enumerate();
    let wanted: Vec<_> = groups.filter_map(|(group, name)| Some((group, number(name?)?))).collect();
    let names: Vec<&str> = regex.capture_names().flatten().collect();
    let (own, mut groups) = (regex.clone(), regex.capture_locations());
    let read = move |line: &[u8], fields: &mut Fields| {
        own.captures_read(&mut groups, line).ok_or(OTHER)?;
        for (group, number) in &wanted {
            let value = groups.get(*group).and_then(|(start, end)| line.get(start..end));
            fields.set(*number, value.unwrap_or_default());
        }
        Ok(())
    };
    Format::new("the regular expression", &names, Box::new(read))
}
