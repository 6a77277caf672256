//! Patterns of paths and hosts: `/api/*`, `/tenants/{tenant}/*`, `*.example.com`.

/// Text in which `*` matches anything, even nothing and `/`, and `{name}` one segment of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Anything,
    Segment(String),
}

/// The matched segments of a pattern, by name.
pub(super) type Captured<'a> = Vec<(&'a str, &'a str)>;

impl Pattern {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['*', '{', '}']) {
            let (before, special) = rest.split_at(at);
            push_text(&mut parts, before);
            rest = if let Some(after) = special.strip_prefix('*') {
                parts.push(Part::Anything);
                after
            } else {
                let (name, after) = segment(before, special).ok_or_else(|| whole_segment(text))?;
                parts.push(Part::Segment(name.to_owned()));
                after
            };
        }
        push_text(&mut parts, rest);
        Ok(Self { parts })
    }

    /// Returns whether it has a segment of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Segment(known) if known == name))
    }

    /// Returns the segments in the text, if it matches.
    pub(super) fn fit<'a>(&'a self, text: &'a str) -> Option<Captured<'a>> {
        // After a `*` the earliest match is as good as any: the next `*` takes what comes in between. So backtracking to the
        // last one suffices, and no text takes long.
        let mut parts = self.parts.as_slice();
        let mut rest = text;
        let mut captured = Vec::new();
        let mut anything: Option<(&[Part], &str, usize)> = None;
        loop {
            if let [Part::Anything, after @ ..] = parts {
                parts = after;
                anything = Some((after, rest, captured.len()));
            } else if let Some(after) = step(parts, &mut rest, &mut captured) {
                parts = after;
            } else if parts.is_empty() && rest.is_empty() {
                return Some(captured);
            } else {
                let (after, from, known) = anything?;
                let mut later = from.chars();
                later.next()?;
                captured.truncate(known);
                parts = after;
                rest = later.as_str();
                anything = Some((after, rest, known));
            }
        }
    }
}

/// Takes the first part off the front of `rest`, and returns the other parts; `None` if it does not match.
fn step<'a>(parts: &'a [Part], rest: &mut &'a str, captured: &mut Captured<'a>) -> Option<&'a [Part]> {
    let (first, others) = parts.split_first()?;
    match first {
        Part::Text(text) => *rest = rest.strip_prefix(text.as_str())?,
        Part::Segment(name) => {
            let (value, after) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            if value.is_empty() {
                return None;
            }
            captured.push((name, value));
            *rest = after;
        }
        Part::Anything => return None,
    }
    Some(others)
}

fn push_text(parts: &mut Vec<Part>, text: &str) {
    if !text.is_empty() {
        parts.push(Part::Text(text.to_owned()));
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
