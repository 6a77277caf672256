//! Patterns of paths and hosts: `/api/*`, `/tenants/{tenant}/*`, `*.example.com`.

use regex::{escape, Regex};

/// Text in which `*` matches anything, even nothing and `/`, and `{name}` one segment of a path.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// Has a group for each segment. It takes time in proportion to the text, whatever the pattern.
    regex: Regex,
    segments: Vec<String>,
}

/// The matched segments of a pattern, by name.
pub(super) type Captured<'a> = Vec<(&'a str, &'a str)>;

impl Pattern {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let (mut regex, mut segments, mut rest) = ("(?s)^".to_owned(), Vec::new(), text);
        while let Some(at) = rest.find(['*', '{', '}']) {
            let (before, special) = rest.split_at(at);
            regex.push_str(&escape(before));
            rest = if let Some(after) = special.strip_prefix('*') {
                regex.push_str(".*?");
                after
            } else {
                let (name, after) = segment(before, special).ok_or_else(|| whole_segment(text))?;
                regex.push_str("([^/]+)");
                segments.push(name.to_owned());
                after
            };
        }
        let regex = Regex::new(&format!("{regex}{}$", escape(rest))).map_err(|error| error.to_string())?;
        Ok(Self { regex, segments })
    }

    /// Returns whether it has a segment of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.segments.iter().any(|known| known == name)
    }

    /// Returns the segments in the text, if it matches.
    pub(super) fn fit<'a>(&'a self, text: &'a str) -> Option<Captured<'a>> {
        if self.segments.is_empty() {
            return self.regex.is_match(text).then(Vec::new);
        }
        let values = self.regex.captures(text)?;
        let values = values.iter().skip(1).flatten().map(|value| value.as_str());
        Some(self.segments.iter().map(String::as_str).zip(values).collect())
    }
}

/// Returns the name in `{name}`, and what follows.
fn segment<'a>(before: &str, special: &'a str) -> Option<(&'a str, &'a str)> {
    let (name, after) = special.strip_prefix('{')?.split_once('}')?;
    let is_whole = before.ends_with('/') && (after.is_empty() || after.starts_with('/'));
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    (is_whole && is_name).then_some((name, after))
}

fn whole_segment(text: &str) -> String {
    format!("'{text}': {{name}} must be a whole segment of a path, as in /tenants/{{tenant}}/*")
}
