//! The line of an error: its rule, the value that breaks it, and the bucket.

use super::quote::{quoted, MAX_QUOTED};
use super::{rate, Error, Refusal};
use crate::number::MAX_LEN;
use crate::numkeys;
use std::num::NonZeroUsize;

impl Refusal {
    /// Returns the line that is replied, without the `-` in front and the line end.
    ///
    /// `syntax` is the command with its arguments, like `TB.MTAKE numkeys key capacity rate cost [key capacity rate cost ...]`,
    /// and `arguments` are those of the call.
    #[cold]
    #[must_use]
    pub fn line<A: AsRef<[u8]>>(self, syntax: &str, arguments: &[A]) -> String {
        let call = Call { syntax, arguments, place: self.place };
        let rule = self.error.rule();
        let line = match self.error {
            Error::WrongArity => {
                let name = syntax.split(' ').next().unwrap_or_default().to_ascii_lowercase();
                return format!("{rule} for '{name}' command: {syntax}");
            }
            Error::Rate => format!("{rule} {}", rate::explain(call.argument("rate").unwrap_or_default())),
            Error::RefillTooSlow => match call.quoted_limit() {
                Some(limit) => format!("{rule}: {limit}"),
                None => rule.to_owned(),
            },
            Error::NumKeysMismatch => call.mismatch(rule),
            Error::DuplicateKey => return call.duplicate(rule),
            Error::TopOption | Error::TopCount => with_value(rule, call.option()),
            Error::Id => with_length(rule, call.argument("id")),
            Error::ShareOption => with_value(rule, call.wrong_word()),
            Error::Tenant => with_length(rule, call.argument("tenant")),
            error => with_value(rule, error.argument().and_then(|name| call.argument(name))),
        };
        match call.bucket() {
            Some(bucket) => format!("{line} ({bucket})"),
            None => line,
        }
    }
}

/// A refused call.
struct Call<'a, A> {
    syntax: &'a str,
    arguments: &'a [A],
    place: Option<usize>,
}

impl<'a, A: AsRef<[u8]>> Call<'a, A> {
    /// Returns the names of the arguments, without brackets.
    fn names(&self) -> impl Iterator<Item = &'a str> {
        let names = self.syntax.split(' ').skip(1);
        names.map(|name| name.trim_matches(['[', ']']))
    }

    /// Returns the names of a bucket's arguments, if the command takes several buckets.
    fn group(&self) -> Option<&'a str> {
        let (_, group) = self.syntax.strip_suffix(" ...]")?.split_once('[')?;
        Some(group)
    }

    fn group_len(&self) -> usize {
        self.group().map_or(0, |group| group.split(' ').count())
    }

    /// Counts the arguments before the first bucket.
    fn groups_at(&self) -> usize {
        let first = self.group().and_then(|group| group.split(' ').next());
        self.names().position(|name| Some(name) == first).unwrap_or(0)
    }

    /// Returns the argument with that name, of the wrong bucket if there are several.
    fn argument(&self, name: &str) -> Option<&'a [u8]> {
        self.argument_of(name, self.place.unwrap_or(0))
    }

    /// Returns the argument with that name of one bucket. Errors of arguments before the buckets have the place 0.
    fn argument_of(&self, name: &str, place: usize) -> Option<&'a [u8]> {
        let first = self.names().position(|one| one == name)?;
        let behind = place.checked_mul(self.group_len())?;
        self.arguments.get(first.checked_add(behind)?).map(AsRef::as_ref)
    }

    /// Returns the wrong option, of a command that takes nothing else.
    fn option(&self) -> Option<&'a [u8]> {
        self.arguments.get(self.place?).map(AsRef::as_ref)
    }

    /// Returns the word that is not where the syntax has one.
    fn wrong_word(&self) -> Option<&'a [u8]> {
        let words = ["SHARE", "WEIGHT"].into_iter().filter_map(|word| Some((word, self.argument(word)?)));
        let mut wrong = words.filter(|(word, sent)| !sent.eq_ignore_ascii_case(word.as_bytes()));
        wrong.next().map(|(_, sent)| sent)
    }

    fn buckets(&self) -> Option<usize> {
        self.arguments.len().saturating_sub(self.groups_at()).checked_div(self.group_len())
    }

    /// Names the wrong bucket, if the call has several, and its alternative.
    fn bucket(&self) -> Option<String> {
        let (place, buckets) = (self.place?, self.buckets()?);
        let each = self.each().or(NonZeroUsize::new(buckets))?;
        let number = |place: usize| place.saturating_add(1);
        let bucket = (each.get() > 1).then(|| format!("bucket {} of {each}", number(place % each)));
        let alternatives = buckets / each;
        let alternative =
            (alternatives > 1).then(|| format!("alternative {} of {alternatives}", number(place / each)));
        let names: Vec<_> = alternative.into_iter().chain(bucket).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Returns the buckets of an alternative, if the command has some.
    fn each(&self) -> Option<NonZeroUsize> {
        NonZeroUsize::new(numkeys::parse(self.argument_of("each", 0)?)?)
    }

    fn quoted_limit(&self) -> Option<String> {
        let (capacity, rate) = (self.argument("capacity")?, self.argument("rate")?);
        let is_short = capacity.len().saturating_add(rate.len()) <= MAX_QUOTED;
        let (capacity, rate) = (quoted(capacity)?, quoted(rate)?);
        is_short.then(|| format!("capacity {capacity}, rate {rate}"))
    }

    fn mismatch(&self, rule: &str) -> String {
        let group = self.group().unwrap_or_default();
        let numkeys = self.argument("numkeys").and_then(numkeys::parse).unwrap_or(0);
        let needed = numkeys.saturating_mul(self.group_len());
        let sent = self.arguments.len().saturating_sub(self.groups_at());
        format!("{rule}{group}' groups: {numkeys} need {needed} arguments, not {sent}")
    }

    /// Names the two buckets that share a key.
    fn duplicate(&self, rule: &str) -> String {
        let Some(second) = self.place else { return rule.to_owned() };
        let key = self.argument_of("key", second);
        // The nearest one, because alternatives may share keys.
        let first = (0..second).rfind(|place| self.argument_of("key", *place) == key).unwrap_or(0);
        let key = key.and_then(quoted).map_or_else(String::new, |key| format!("{key} is "));
        let each = self.each();
        let number = |place: usize| each.map_or(place, |each| place % each).saturating_add(1);
        let alternative = each.map_or_else(String::new, |each| {
            format!(" of alternative {}", (second / each).saturating_add(1))
        });
        format!("{rule}: {key}bucket {} and bucket {}{alternative}", number(first), number(second))
    }
}

/// Returns the rule, and the value that breaks it if it is printable.
fn with_value(rule: &str, value: Option<&[u8]>) -> String {
    let too_long = value.is_some_and(|value| value.len() > MAX_LEN);
    let bound = if too_long { format!(" in at most {MAX_LEN} bytes") } else { String::new() };
    match value.and_then(quoted) {
        Some(value) => format!("{rule}{bound}, not {value}"),
        None => format!("{rule}{bound}"),
    }
}

fn with_length(rule: &str, value: Option<&[u8]>) -> String {
    match value {
        Some(value) => format!("{rule}, not {}", value.len()),
        None => rule.to_owned(),
    }
}
