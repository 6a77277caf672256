//! A command: its implementation, and its description for the server.

use super::call::{Call, Decisions};
use std::ffi::{c_int, CStr};
use tokenbucket_core::error::Refusal;

/// A command of the module.
pub(crate) trait Command {
    /// The description for clients, ACLs and cluster routing.
    const SPEC: Spec;

    /// Executes one call, up to and including its reply.
    ///
    /// # Errors
    /// Becomes the reply. Nothing has been changed or replied then.
    fn run(call: Call) -> Result<(), Refusal>;
}

/// The description of a command, for `COMMAND INFO`, `COMMAND DOCS`, `COMMAND GETKEYS`, ACLs and routing.
#[derive(Clone, Copy)]
pub(crate) struct Spec {
    /// The name that clients send.
    pub(crate) name: &'static CStr,
    /// One line without a full stop.
    pub(crate) summary: &'static CStr,
    /// Big-O, with what N is.
    pub(crate) complexity: &'static CStr,
    /// The first version of the module with this command.
    pub(crate) since: &'static CStr,
    /// The clients that may call it.
    pub(crate) audience: Audience,
    /// How to treat a call from a master or a file.
    pub(crate) from_master: FromMaster,
    /// The positions of its keys.
    pub(crate) keys: Keys,
    /// Its arguments, for `COMMAND DOCS`.
    pub(crate) arguments: &'static [ArgumentSpec],
}

impl Spec {
    /// The defaults of commands that decide: for clients that write, and replicated as effects. Each says itself since when it
    /// is there.
    pub(crate) const DECIDING: Self = Self {
        name: c"",
        summary: c"",
        complexity: c"O(1)",
        since: c"",
        audience: Audience::Writers,
        from_master: FromMaster::Ignored,
        keys: Keys::First,
        arguments: &[],
    };

    /// Returns the syntax of the command: its name and its arguments, with optional and repeated ones in brackets.
    pub(super) fn syntax(&self) -> String {
        let name = self.name.to_string_lossy().to_ascii_uppercase();
        format!("{name} {}", syntax(self.arguments))
    }

    /// Replies the decisions on a call of this command.
    pub(crate) fn reply(&self, call: &Call, decisions: &Decisions) {
        match self.keys {
            Keys::Groups { .. } => call.reply_decisions(decisions),
            _ => call.reply_decision(&decisions.binding),
        }
    }
}

/// Returns the syntax of arguments.
fn syntax(arguments: &[ArgumentSpec]) -> String {
    let syntaxes = arguments.iter().map(|argument| {
        let required = match argument.kind {
            Kind::Groups(members) => format!("{0} [{0} ...]", syntax(members)),
            Kind::Together(members) => syntax(members),
            Kind::Word(word) => word.to_string_lossy().into_owned(),
            Kind::Key | Kind::Decimal | Kind::Whole | Kind::Text => {
                let words = argument.word.into_iter().chain([argument.name]);
                words.map(CStr::to_string_lossy).collect::<Vec<_>>().join(" ")
            }
        };
        if argument.optional {
            format!("[{required}]")
        } else {
            required
        }
    });
    syntaxes.collect::<Vec<_>>().join(" ")
}

/// The clients that may call a command, and whether it writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Clients, on servers that accept writes.
    Writers,
    /// Clients, on servers that accept writes, whose calls may wait.
    WaitingWriters,
    /// Clients, even on read-only replicas.
    Readers,
    /// Operators, even on read-only replicas.
    Operators,
    /// Operators, with care, masters and append-only files.
    Servers,
}

impl Audience {
    /// Returns whether the commands write on behalf of clients.
    pub(super) const fn writes(self) -> bool {
        matches!(self, Self::Writers | Self::WaitingWriters)
    }
}

/// How to treat a call from a master or a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FromMaster {
    /// Execute it like a client's call.
    Executed,
    /// Ignore it: the master decided it, and sends its effect.
    Ignored,
}

/// The positions of the keys among the arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// There are no keys.
    None,
    /// The first argument.
    First,
    /// Every second argument.
    EverySecond,
    /// The first argument of each group. The first argument of the call is their number.
    Groups {
        /// The position of the first key; the command's name has position 0.
        first: c_int,
        /// The arguments of a group.
        len: c_int,
    },
}

/// One argument, or a group of them.
#[derive(Clone, Copy)]
pub(crate) struct ArgumentSpec {
    pub(crate) name: &'static CStr,
    pub(crate) kind: Kind,
    /// The word in front of the value.
    pub(crate) word: Option<&'static CStr>,
    pub(crate) optional: bool,
}

/// The kind of an argument.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Key,
    /// A decimal number.
    Decimal,
    /// A whole number.
    Whole,
    /// Text.
    Text,
    /// This word.
    Word(&'static CStr),
    /// Arguments that come together.
    Together(&'static [ArgumentSpec]),
    /// A group that repeats.
    Groups(&'static [ArgumentSpec]),
}

impl ArgumentSpec {
    /// Describes one or more buckets with these arguments each.
    pub(crate) const fn buckets(each: &'static [Self]) -> Self {
        Self::required(c"bucket", Kind::Groups(each))
    }

    /// Describes a required argument.
    pub(crate) const fn required(name: &'static CStr, kind: Kind) -> Self {
        Self { name, kind, word: None, optional: false }
    }

    /// Describes an optional argument.
    pub(crate) const fn optional(name: &'static CStr, kind: Kind) -> Self {
        Self { name, kind, word: None, optional: true }
    }

    /// Describes the argument behind a word.
    pub(crate) const fn behind(self, word: &'static CStr) -> Self {
        Self { word: Some(word), ..self }
    }
}

/// The key of a bucket.
pub(crate) const KEY: ArgumentSpec = ArgumentSpec::required(c"key", Kind::Key);
/// The most tokens of a bucket.
pub(crate) const CAPACITY: ArgumentSpec = ArgumentSpec::required(c"capacity", Kind::Decimal);
/// The refill rate: `5`, `100/m`.
pub(crate) const RATE: ArgumentSpec = ArgumentSpec::required(c"rate", Kind::Text);
/// The tokens that a call takes.
pub(crate) const COST: ArgumentSpec = ArgumentSpec::required(c"cost", Kind::Decimal);
/// The tokens that a call takes: 1 if left out.
pub(crate) const OPTIONAL_COST: ArgumentSpec = ArgumentSpec::optional(c"cost", Kind::Decimal);
/// The tokens that a call charges, holds or refunds.
pub(crate) const AMOUNT: ArgumentSpec = ArgumentSpec::required(c"amount", Kind::Decimal);
/// The time until a hold ends.
pub(crate) const TTL_MS: ArgumentSpec = ArgumentSpec::required(c"ttl_ms", Kind::Whole);
/// The longest wait of a call.
pub(crate) const MAX_WAIT_MS: ArgumentSpec = ArgumentSpec::required(c"max_wait_ms", Kind::Whole);
/// The id of a hold.
pub(crate) const ID: ArgumentSpec = ArgumentSpec::required(c"id", Kind::Text);
/// The tokens of a hold that were used.
pub(crate) const USED: ArgumentSpec = ArgumentSpec::required(c"used", Kind::Decimal);
/// The number of buckets that follow.
pub(crate) const NUMKEYS: ArgumentSpec = ArgumentSpec::required(c"numkeys", Kind::Whole);
/// The number of buckets in an alternative.
pub(crate) const EACH: ArgumentSpec = ArgumentSpec::required(c"each", Kind::Whole);
/// The share of a call that may wait.
pub(crate) const SHARE: ArgumentSpec = ArgumentSpec::optional(
    c"share",
    Kind::Together(&[
        ArgumentSpec::required(c"tenant", Kind::Text).behind(c"SHARE"),
        ArgumentSpec::optional(c"weight", Kind::Decimal).behind(c"WEIGHT"),
    ]),
);
