//! Every error that a client can see, once, and the line that is replied.
//!
//! An error is a byte while a call is read and decided, so that the hot path neither copies nor allocates for it. The
//! line is built when it is replied: it finds the wrong argument again and quotes it.
//!
//! A line quotes at most [`MAX_QUOTED`] bytes of what was sent, and printable ASCII only.

mod rate;

use crate::number::MAX_LEN;
use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU32;

/// The most bytes of a call that a line quotes.
pub const MAX_QUOTED: usize = 32;

/// Why a call was refused. A refused call has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too few or too many arguments.
    WrongArity,
    /// The key holds another type.
    WrongType,
    /// The bucket would have to be created and the server is over `maxmemory`.
    OutOfMemory,
    /// The bucket exists, and there is no memory for a hold of it.
    HoldOutOfMemory,
    /// The capacity is not an amount of tokens.
    Capacity,
    /// The cost is not an amount of tokens.
    Cost,
    /// The amount is not an amount of tokens.
    Amount,
    /// The `max` of `TB.TAKEUPTO` is not a whole number of tokens.
    Max,
    /// The `max_wait_ms` of `TB.RESERVE` is not a whole number of milliseconds.
    MaxWait,
    /// The rate is malformed, or zero.
    Rate,
    /// The rate is 0, for a command that needs one.
    RateOfPool,
    /// The rate is out of bounds.
    RateOutOfRange,
    /// Capacity and rate are fine, but not together.
    RefillTooSlow,
    /// A charge beyond the deepest debt.
    DebtTooDeep,
    /// The same by what was used of a hold.
    UsedTooDeep,
    /// The `numkeys` of a call is not a number of buckets.
    NumKeys,
    /// `numkeys` and the number of arguments behind it do not agree.
    NumKeysMismatch,
    /// The same key twice in one call.
    DuplicateKey,
    /// The `ttl_ms` of a hold is out of bounds.
    Ttl,
    /// The `id` of a hold is empty or too long.
    Id,
    /// What was used of a hold is not an amount of tokens.
    Used,
    /// Something was used of a hold of a pool.
    UsedOfPool,
    /// The bucket has as many holds as it may have.
    TooManyHolds,
    /// An option of `TB.TOP` that is none, or is given twice.
    TopOption,
    /// The `COUNT` of `TB.TOP` is not a number of keys.
    TopCount,
    /// The effect given to `TB.RESTORE` is malformed.
    Effect,
    /// The `max_burst` of `CL.THROTTLE` is out of bounds.
    MaxBurst,
    /// The `count` of `CL.THROTTLE` is not a number of tokens.
    Count,
    /// The `period` of `CL.THROTTLE` is not a number of seconds.
    Period,
    /// The `quantity` of `CL.THROTTLE` is not a number of tokens.
    Quantity,
    /// The limit of a `CL.THROTTLE` takes too long to refill.
    BurstTooSlow,
}

impl Error {
    /// How its line begins, whatever the call was: the code, the argument and its rule.
    #[must_use]
    pub const fn rule(self) -> &'static str {
        match self {
            Self::WrongArity => "ERR wrong number of arguments",
            Self::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
            Self::OutOfMemory => {
                "OOM bucket not created: used memory > 'maxmemory' and tokenbucket.on-oom is 'deny'"
            }
            Self::HoldOutOfMemory => "OOM hold not stored: used memory > 'maxmemory'",
            Self::Capacity => "ERR capacity must be a decimal number of tokens from 0 to 1e12",
            Self::Cost => "ERR cost must be a decimal number of tokens from 0 to 1e12",
            Self::Amount => "ERR amount must be a decimal number of tokens from 0 to 1e12",
            Self::Max => "ERR max must be a whole number of tokens from 1 to 1e12",
            Self::MaxWait => "ERR max_wait_ms must be a whole number of milliseconds from 0 to 3155760000000",
            Self::Rate => "ERR rate:",
            Self::RateOfPool => {
                "ERR rate must be above 0 here; rate 0 (a semaphore) is for TB.HOLD, TB.SETTLE, TB.MHOLD, TB.MSETTLE, TB.PEEK and TB.GIVE"
            }
            Self::RateOutOfRange => {
                "ERR rate must be at least 1 token in 100 years (with @: 0.000001 at each boundary) and at most 1e12 tokens per second"
            }
            Self::RefillTooSlow => {
                "ERR refilling capacity from empty at this rate would take more than 100 years"
            }
            Self::DebtTooDeep => "ERR amount would put the bucket more than 1e12 tokens into debt",
            Self::UsedTooDeep => "ERR used would put the bucket more than 1e12 tokens into debt",
            Self::NumKeys => "ERR numkeys must be a whole number from 1 to 1024",
            Self::NumKeysMismatch => "ERR numkeys must match the number of '",
            Self::Ttl => "ERR ttl_ms must be a whole number of milliseconds from 1 to 2592000000",
            Self::Id => "ERR id must be 1 to 128 bytes",
            Self::Used => "ERR used must be a decimal number of tokens from 0 to 1e12",
            Self::UsedOfPool => "ERR used must be 0 if the rate is 0 (nothing would refill it)",
            Self::TooManyHolds => "ERR the bucket has tokenbucket.max-holds holds already",
            Self::DuplicateKey => "ERR key must not be given twice in one call",
            Self::TopOption => "ERR options of TB.TOP are COUNT n and RESET, each at most once",
            Self::TopCount => "ERR COUNT must be a whole number of keys from 1 to 100000",
            Self::Effect => "ERR effect must be one as this module replicates it",
            Self::MaxBurst => "ERR max_burst must be a whole number of tokens from -1 to 999999999999",
            Self::Count => "ERR count must be a whole number of tokens from 1 to 1e12",
            Self::Period => "ERR period must be a whole number of seconds from 1 to 3155760000",
            Self::Quantity => "ERR quantity must be a whole number of tokens from 0 to 1e12",
            Self::BurstTooSlow => {
                "ERR refilling max_burst + 1 tokens at count per period would take more than 100 years"
            }
        }
    }

    /// The argument whose value the line quotes, as the syntax of its command names it.
    const fn argument(self) -> Option<&'static str> {
        match self {
            Self::Capacity => Some("capacity"),
            Self::Cost => Some("cost"),
            Self::Amount => Some("amount"),
            Self::Max => Some("max"),
            Self::MaxWait => Some("max_wait_ms"),
            Self::Rate | Self::RateOutOfRange => Some("rate"),
            Self::NumKeys | Self::NumKeysMismatch => Some("numkeys"),
            Self::Ttl => Some("ttl_ms"),
            Self::Id => Some("id"),
            Self::Used | Self::UsedOfPool => Some("used"),
            Self::MaxBurst => Some("max_burst"),
            Self::Count => Some("count"),
            Self::Period => Some("period"),
            Self::Quantity => Some("quantity"),
            _ => None,
        }
    }

    /// The same error, of what is at `place` (from 0) among what a call may repeat: its buckets, or its options.
    #[cold]
    #[must_use]
    pub fn at(self, place: usize) -> Refusal {
        let number = u32::try_from(place).unwrap_or(u32::MAX).saturating_add(1);
        Refusal { error: self, number: NonZeroU32::new(number) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.rule())
    }
}

impl std::error::Error for Error {}

/// An error, and where it is in a call that may repeat a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What is wrong.
    pub error: Error,
    /// Which bucket or option it is wrong of, from 1.
    number: Option<NonZeroU32>,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { error, number: None }
    }
}

impl Refusal {
    /// The line that is replied, without the `-` in front and the line end.
    ///
    /// `syntax` is how the command is used, like `TB.MTAKE numkeys key capacity rate cost [key capacity rate cost ...]`,
    /// and `arguments` what stood behind its name.
    #[cold]
    #[must_use]
    pub fn line<A: AsRef<[u8]>>(self, syntax: &str, arguments: &[A]) -> String {
        let call = Call { syntax, arguments, place: self.place() };
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
            error => with_value(rule, error.argument().and_then(|name| call.argument(name))),
        };
        match call.bucket() {
            Some(bucket) => format!("{line} ({bucket})"),
            None => line,
        }
    }

    fn place(self) -> Option<usize> {
        self.number.and_then(|number| usize::try_from(number.get()).ok()?.checked_sub(1))
    }
}

/// A call that is refused, by the words of its syntax.
struct Call<'a, A> {
    syntax: &'a str,
    arguments: &'a [A],
    place: Option<usize>,
}

impl<'a, A: AsRef<[u8]>> Call<'a, A> {
    /// The names of the arguments, up to those that may be left out or repeated.
    fn names(&self) -> impl Iterator<Item = &'a str> {
        let names = self.syntax.split(' ').skip(1);
        names.map(|name| name.trim_matches(['[', ']']))
    }

    /// The names of a bucket's arguments, where a call may have several buckets.
    fn group(&self) -> Option<&'a str> {
        let (_, group) = self.syntax.strip_suffix(" ...]")?.split_once('[')?;
        Some(group)
    }

    fn group_len(&self) -> usize {
        self.group().map_or(0, |group| group.split(' ').count())
    }

    /// How many arguments stand before the first bucket.
    fn groups_at(&self) -> usize {
        let first = self.group().and_then(|group| group.split(' ').next());
        self.names().position(|name| Some(name) == first).unwrap_or(0)
    }

    /// What was sent as the argument of that name, of the bucket that is wrong if there are several.
    fn argument(&self, name: &str) -> Option<&'a [u8]> {
        self.argument_of(name, self.place.unwrap_or(0))
    }

    fn argument_of(&self, name: &str, place: usize) -> Option<&'a [u8]> {
        let first = self.names().position(|one| one == name)?;
        let is_repeated = self.group().is_some() && first >= self.groups_at();
        let behind = if is_repeated { place.checked_mul(self.group_len())? } else { 0 };
        self.arguments.get(first.checked_add(behind)?).map(AsRef::as_ref)
    }

    /// The option that is wrong, of a command that has nothing else.
    fn option(&self) -> Option<&'a [u8]> {
        self.arguments.get(self.place?).map(AsRef::as_ref)
    }

    fn buckets(&self) -> Option<usize> {
        self.arguments.len().saturating_sub(self.groups_at()).checked_div(self.group_len())
    }

    /// Which bucket it is, of a call that has several.
    fn bucket(&self) -> Option<String> {
        let (place, buckets) = (self.place?, self.buckets()?);
        (buckets > 1).then(|| format!("bucket {} of {buckets}", place.saturating_add(1)))
    }

    fn quoted_limit(&self) -> Option<String> {
        let (capacity, rate) = (self.argument("capacity")?, self.argument("rate")?);
        let is_short = capacity.len().saturating_add(rate.len()) <= MAX_QUOTED;
        let (capacity, rate) = (quoted(capacity)?, quoted(rate)?);
        is_short.then(|| format!("capacity {capacity}, rate {rate}"))
    }

    fn mismatch(&self, rule: &str) -> String {
        let group = self.group().unwrap_or_default();
        let numkeys = self.argument("numkeys").and_then(crate::request::buckets).unwrap_or(0);
        let needed = numkeys.saturating_mul(self.group_len());
        let sent = self.arguments.len().saturating_sub(self.groups_at());
        format!("{rule}{group}' groups: {numkeys} need {needed} arguments, not {sent}")
    }

    /// Which two buckets have the same key.
    fn duplicate(&self, rule: &str) -> String {
        let Some(second) = self.place else { return rule.to_owned() };
        let key = self.argument_of("key", second);
        let first = (0..second).find(|place| self.argument_of("key", *place) == key).unwrap_or(0);
        let key = key.and_then(quoted).map_or_else(String::new, |key| format!("{key} is "));
        format!("{rule}: {key}bucket {} and bucket {}", first.saturating_add(1), second.saturating_add(1))
    }
}

/// The place of the first key that already stands at an earlier place.
#[cold]
pub(crate) fn first_repeated<'a>(keys: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
    let mut seen = HashSet::new();
    keys.enumerate().find(|(_, key)| !seen.insert(*key)).map(|(place, _)| place)
}

/// The rule, and the value that breaks it if it can be shown.
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

/// The value in quotation marks, cut to [`MAX_QUOTED`] bytes. `None` if these are not printable ASCII.
fn quoted(value: &[u8]) -> Option<String> {
    let is_printable = |byte: &u8| (b' '..=b'~').contains(byte);
    let shown = value.get(..MAX_QUOTED).unwrap_or(value);
    let text = std::str::from_utf8(shown).ok().filter(|_| shown.iter().all(is_printable))?;
    let dots = if shown.len() < value.len() { "..." } else { "" };
    Some(format!("'{text}'{dots}"))
}
