//! Lines that a regular expression with named groups matches.

use regex::bytes::Regex;

use super::Format;

/// Reads them.
pub fn format(regex: &Regex, names: &[String]) -> Format {
    let number = |name: &str| names.iter().position(|wanted| wanted == name);
    let groups = regex.capture_names().enumerate();
    let wanted: Vec<_> = groups.filter_map(|(group, name)| Some((group, number(name?)?))).collect();
    let (regex, mut groups) = (regex.clone(), regex.capture_locations());
    Format::new("the regular expression", move |line, fields| {
        let is_match = regex.captures_read(&mut groups, line).is_some();
        for (group, number) in &wanted {
            let value = groups.get(*group).and_then(|(start, end)| line.get(start..end));
            fields.set(*number, value.unwrap_or_default());
        }
        is_match
    })
}
