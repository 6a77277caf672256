//! What a command is: what it does with a call, and its description in the terms of the server's own table.

use super::call::{Call, Decisions};
use std::ffi::CStr;
use std::fmt;
use tokenbucket_core::error::Refusal;

/// A command of the module.
pub(crate) trait Command {
    /// What clients, ACLs and cluster routing have to know of it.
    const SPEC: Spec;

    /// Executes one call, up to and including its reply.
    ///
    /// # Errors
    /// Those that become the reply. Nothing has been changed or replied then.
    fn run(call: Call) -> Result<(), Refusal>;
}

/// The description of a command, for `COMMAND INFO`, `COMMAND DOCS`, `COMMAND GETKEYS`, ACLs and routing.
#[derive(Clone, Copy)]
pub(crate) struct Spec {
    /// As clients write it.
    pub(crate) name: &'static CStr,
    /// One line without a full stop.
    pub(crate) summary: &'static CStr,
    /// Big-O, with what N is.
    pub(crate) complexity: &'static CStr,
    /// The first version of the module that has it.
    pub(crate) since: &'static CStr,
    /// Which clients may call it.
    pub(crate) audience: Audience,
    /// What becomes of a call that comes from a master or a file.
    pub(crate) from_master: FromMaster,
    /// Where its keys are.
    pub(crate) keys: Keys,
    /// Its arguments, for `COMMAND DOCS`.
    pub(crate) arguments: &'static [ArgumentSpec],
}

impl Spec {
    /// What commands that decide have in common: clients that write call them, and replicas get the effect instead.
    pub(crate) const DECIDING: Self = Self {
        name: c"",
        summary: c"",
        complexity: c"O(1)",
        since: c"0.1.0",
        audience: Audience::Writers,
        from_master: FromMaster::Ignored,
        keys: Keys::First,
        arguments: &[],
    };

    /// Returns how the command is used: its name and its arguments, with those in brackets that may be left out or
    /// repeated.
    pub(super) fn syntax(&self) -> String {
        let name = self.name.to_string_lossy().to_ascii_uppercase();
        format!("{name} {}", Arguments(self.arguments))
    }

    /// Replies what is decided of a call of this command.
    pub(crate) fn reply(&self, call: &Call, decisions: &Decisions) {
        match self.keys {
            Keys::EveryFourth { .. } => call.reply_decisions(decisions),
            _ => call.reply_decision(&decisions.binding),
        }
    }
}

/// Arguments as the syntax of a command has them.
struct Arguments(&'static [ArgumentSpec]);

impl fmt::Display for Arguments {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, argument) in self.0.iter().enumerate() {
            let separator = if place == 0 { "" } else { " " };
            let (opening, closing) = if argument.optional { ("[", "]") } else { ("", "") };
            write!(formatter, "{separator}{opening}{argument}{closing}")?;
        }
        Ok(())
    }
}

impl fmt::Display for ArgumentSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Groups(members) => {
                let group = Arguments(members);
                write!(formatter, "{group} [{group} ...]")
            }
            Kind::WholeBehind(word) => write!(formatter, "{} n", word.to_string_lossy()),
            Kind::Word(word) => formatter.write_str(&word.to_string_lossy()),
            Kind::Key | Kind::Decimal | Kind::Whole | Kind::Text => {
                formatter.write_str(&self.name.to_string_lossy())
            }
        }
    }
}

/// Which clients may call a command, and whether it writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Clients, where writes are accepted.
    Writers,
    /// Clients where writes are accepted, whose calls may wait.
    WaitingWriters,
    /// Clients, also on read-only replicas.
    Readers,
    /// Operators, also on read-only replicas.
    Operators,
    /// Masters, append-only files, and operators, with care.
    Servers,
}

impl Audience {
    /// Returns whether it is clients that write.
    pub(super) const fn writes(self) -> bool {
        matches!(self, Self::Writers | Self::WaitingWriters)
    }
}

/// What becomes of a call that comes from a master or a file rather than from a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FromMaster {
    /// It is executed like any other.
    Executed,
    /// Nothing: it was decided where it was made, and its effect is what counts.
    Ignored,
}

/// Where the keys are among the arguments.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Nowhere: there are none.
    None,
    /// The first argument.
    First,
    /// Every second argument.
    EverySecond,
    /// As many as the first argument says, every fourth.
    EveryFourth {
        /// The position of the first of them; the command's name has position 0.
        first: usize,
    },
}

/// One argument, or a group of them.
#[derive(Clone, Copy)]
pub(crate) struct ArgumentSpec {
    pub(crate) name: &'static CStr,
    pub(crate) kind: Kind,
    pub(crate) optional: bool,
}

/// What an argument is.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Key,
    /// A decimal number.
    Decimal,
    /// A whole number.
    Whole,
    /// Text.
    Text,
    /// A whole number behind this word.
    WholeBehind(&'static CStr),
    /// This word.
    Word(&'static CStr),
    /// A group that repeats.
    Groups(&'static [ArgumentSpec]),
}

impl ArgumentSpec {
    /// Returns one bucket or several, with these arguments each.
    pub(crate) const fn buckets(each: &'static [Self]) -> Self {
        Self::required(c"bucket", Kind::Groups(each))
    }

    /// Returns an argument that must be there.
    pub(crate) const fn required(name: &'static CStr, kind: Kind) -> Self {
        Self { name, kind, optional: false }
    }

    /// Returns an argument that may be left out.
    pub(crate) const fn optional(name: &'static CStr, kind: Kind) -> Self {
        Self { name, kind, optional: true }
    }
}

/// The key of a bucket.
pub(crate) const KEY: ArgumentSpec = ArgumentSpec::required(c"key", Kind::Key);
/// The most that a bucket holds.
pub(crate) const CAPACITY: ArgumentSpec = ArgumentSpec::required(c"capacity", Kind::Decimal);
/// How fast it refills: `5`, `100/m`.
pub(crate) const RATE: ArgumentSpec = ArgumentSpec::required(c"rate", Kind::Text);
/// What a call costs.
pub(crate) const COST: ArgumentSpec = ArgumentSpec::required(c"cost", Kind::Decimal);
/// What is charged or given back.
pub(crate) const AMOUNT: ArgumentSpec = ArgumentSpec::required(c"amount", Kind::Decimal);
/// How long a hold lasts.
pub(crate) const TTL_MS: ArgumentSpec = ArgumentSpec::required(c"ttl_ms", Kind::Whole);
/// How long a call waits its turn at most.
pub(crate) const MAX_WAIT_MS: ArgumentSpec = ArgumentSpec::required(c"max_wait_ms", Kind::Whole);
/// The name of a hold.
pub(crate) const ID: ArgumentSpec = ArgumentSpec::required(c"id", Kind::Text);
/// What the work cost for which tokens were held.
pub(crate) const USED: ArgumentSpec = ArgumentSpec::required(c"used", Kind::Decimal);
/// How many keys follow.
pub(crate) const NUMKEYS: ArgumentSpec = ArgumentSpec::required(c"numkeys", Kind::Whole);
