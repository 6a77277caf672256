//! Lines that a regular expression with named groups reads.

use regex::bytes::{CaptureLocations, Regex};

use super::{Fields, Format};

struct Pattern {
    regex: Regex,
    groups: CaptureLocations,
    /// Groups of the regular expression, and the numbers of the fields that they are.
    wanted: Vec<(usize, usize)>,
}

/// Reads lines that `regex` matches.
pub fn format(regex: &Regex) -> Box<dyn Format> {
    Box::new(Pattern { regex: regex.clone(), groups: regex.capture_locations(), wanted: Vec::new() })
}

impl Format for Pattern {
    fn name(&self) -> &'static str {
        "the regular expression"
    }

    fn select(&mut self, names: &[String]) {
        let groups = self.regex.capture_names().enumerate();
        let number = |name: Option<&str>| names.iter().position(|wanted| Some(wanted.as_str()) == name);
        self.wanted = groups.filter_map(|(group, name)| Some((group, number(name)?))).collect();
    }

    fn read(&mut self, line: &[u8], fields: &mut Fields) -> bool {
        if self.regex.captures_read(&mut self.groups, line).is_none() {
            return false;
        }
        for (group, number) in &self.wanted {
            let value = self.groups.get(*group).and_then(|(start, end)| line.get(start..end));
            fields.set(*number, value.unwrap_or_default());
        }
        true
    }
}
