//! Which lines count: `--where`.

use regex::bytes::Regex;

/// A condition on one field of a line.
#[derive(Clone, Debug)]
pub struct Condition {
    /// The name of the field.
    pub field: String,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    Equal(String),
    Unequal(String),
    Begins(String),
    Matches(Regex),
}

impl Condition {
    /// Returns whether it holds for a value; a line without the field has an empty one.
    #[must_use]
    pub fn holds(&self, value: Option<&[u8]>) -> bool {
        let value = value.unwrap_or_default();
        match &self.test {
            Test::Equal(other) => value == other.as_bytes(),
            Test::Unequal(other) => value != other.as_bytes(),
            Test::Begins(prefix) => value.starts_with(prefix.as_bytes()),
            Test::Matches(regex) => regex.is_match(value),
        }
    }
}

impl std::str::FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let at = text.find('=').into_iter().chain(text.find('~')).min();
        let (field, value) = at.and_then(|at| text.split_at_checked(at)).unwrap_or_default();
        let (mark, value) = value.split_at_checked(1).unwrap_or_default();
        let (field, test) = match (mark, field.strip_suffix('!'), field.strip_suffix('^')) {
            ("=", Some(field), _) => (field, Test::Unequal(value.into())),
            ("=", _, Some(field)) => (field, Test::Begins(value.into())),
            ("=", ..) => (field, Test::Equal(value.into())),
            ("~", ..) => (field, Test::Matches(Regex::new(value).map_err(|error| error.to_string())?)),
            _ => ("", Test::Equal(String::new())),
        };
        if field.is_empty() {
            return Err("write field=value, field!=value, field^=prefix or field~regex".to_owned());
        }
        Ok(Self { field: field.to_owned(), test })
    }
}
