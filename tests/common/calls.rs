//! The commands, what each of them is, and example calls with what follows from them.
//!
//! The one list that tests walk wherever a promise is the same for all commands. A command that is added is a line
//! in [`COMMANDS`] and a few in `calls.txt`.

use super::{shown, Connection};
use std::sync::LazyLock;

pub struct Command {
    pub name: &'static str,
    pub audience: Audience,
    /// The arguments in `COMMAND DOCS`: name, type and flags.
    pub arguments: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Whoever may look: it changes nothing, and read-only replicas answer it.
    Readers,
    Writers,
    /// Writers whose calls may wait.
    WaitingWriters,
    /// Whoever runs the server, also on read-only replicas.
    Operators,
    /// Masters and files.
    Servers,
}

use Audience::{Operators, Readers, Servers, WaitingWriters, Writers};

impl Audience {
    /// Returns whether what is for them changes nothing.
    pub fn only_reads(self) -> bool {
        matches!(self, Readers | Operators)
    }

    /// Returns whether applications are among them.
    pub fn are_clients(self) -> bool {
        matches!(self, Readers | Writers | WaitingWriters)
    }
}

const fn command(name: &'static str, audience: Audience, arguments: &'static [&'static str]) -> Command {
    Command { name, audience, arguments }
}

const COST: &[&str] = &["key key", "capacity double", "rate string", "cost double optional"];
const AMOUNT: &[&str] = &["key key", "capacity double", "rate string", "amount double"];

#[rustfmt::skip] // A line for each.
pub const COMMANDS: &[Command] = &[
    command("TB.TAKE", Writers, COST),
    command("TB.PEEK", Readers, COST),
    command("TB.TAKEUPTO", Writers, &["key key", "capacity double", "rate string", "max integer"]),
    command("TB.RESERVE", Writers, &["key key", "capacity double", "rate string", "cost double", "max_wait_ms integer"]),
    command("TB.CHARGE", Writers, AMOUNT),
    command("TB.GIVE", Writers, AMOUNT),
    command("TB.MTAKE", Writers, &["numkeys integer", "bucket block multiple"]),
    command("TB.HOLD", Writers, &["key key", "capacity double", "rate string", "amount double", "ttl_ms integer", "id string"]),
    command("TB.RENEW", Writers, &["key key", "capacity double", "rate string", "ttl_ms integer", "id string"]),
    command("TB.SETTLE", Writers, &["key key", "capacity double", "rate string", "id string", "used double"]),
    command("TB.MHOLD", Writers, &["numkeys integer", "ttl_ms integer", "id string", "bucket block multiple"]),
    command("TB.MRENEW", Writers, &["numkeys integer", "ttl_ms integer", "id string", "bucket block multiple"]),
    command("TB.MSETTLE", Writers, &["numkeys integer", "id string", "bucket block multiple"]),
    command("TB.TAKEANY", Writers, &["numkeys integer", "each integer", "bucket block multiple"]),
    command("TB.HOLDANY", Writers, &["numkeys integer", "each integer", "ttl_ms integer", "id string", "bucket block multiple"]),
    command("TB.BTAKE", WaitingWriters, &["key key", "capacity double", "rate string", "cost double", "max_wait_ms integer", "share block optional"]),
    command("TB.BMTAKE", WaitingWriters, &["numkeys integer", "max_wait_ms integer", "bucket block multiple"]),
    command("TB.BHOLD", WaitingWriters, &["key key", "capacity double", "rate string", "amount double", "ttl_ms integer", "id string", "max_wait_ms integer", "share block optional"]),
    command("TB.BMHOLD", WaitingWriters, &["numkeys integer", "ttl_ms integer", "id string", "max_wait_ms integer", "bucket block multiple"]),
    command("TB.OVERRIDE", Servers, &["key key", "capacity double", "rate string", "ttl_ms integer", "full pure-token optional"]),
    command("TB.HOLDS", Readers, &["key key"]),
    command("TB.STATE", Readers, &["key key"]),
    command("TB.TOP", Operators, &["n integer optional", "reset pure-token optional"]),
    command("TB.RESTORE", Servers, &["bucket block multiple"]),
    command("cl.throttle", Writers, &["key key", "max_burst integer", "count integer", "period integer", "quantity integer optional"]),
];

/// A call, made after [`prepare`].
pub struct Call {
    pub words: &'static str,
    /// As [`shown`].
    pub reply: &'static str,
    pub outcome: Outcome,
}

/// What a call does. A number is in whole tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Took(i64),
    Held(i64),
    /// Tokens were put back, and there is room for more.
    Gave,
    /// The bucket is full, and its key is gone.
    Filled,
    Denied,
    /// The limit was overridden.
    Overrode,
    /// Allowed, though there was nothing to take or give.
    Idle,
    /// A question, not a decision.
    Asked,
    Refused,
}

impl Outcome {
    fn read(word: &str) -> Self {
        match word.split_once(' ') {
            Some(("Took", tokens)) => Self::Took(tokens.parse().unwrap()),
            Some(("Held", tokens)) => Self::Held(tokens.parse().unwrap()),
            _ => {
                let all = [Self::Gave, Self::Filled, Self::Denied, Self::Overrode, Self::Idle, Self::Asked];
                all.into_iter()
                    .chain([Self::Refused])
                    .find(|outcome| format!("{outcome:?}") == word)
                    .expect(word)
            }
        }
    }

    /// Returns whether it changes what is stored.
    pub fn writes(self) -> bool {
        matches!(self, Self::Took(_) | Self::Held(_) | Self::Gave | Self::Filled | Self::Overrode)
    }
}

/// The example calls of all commands.
pub static CALLS: LazyLock<Vec<Call>> = LazyLock::new(|| {
    let lines = include_str!("calls.txt").lines().filter(|line| !line.starts_with('#'));
    let calls = lines.map(|line| {
        let [words, reply, outcome] = line.split(" => ").collect::<Vec<_>>().try_into().expect(line);
        Call { words, reply, outcome: Outcome::read(outcome) }
    });
    calls.collect()
});

/// Leaves `k` with 4 of 10 tokens at one a second, `d` 5 tokens in debt, and nothing else: no denial is counted.
pub fn prepare(client: &mut Connection) {
    client.say("FLUSHALL");
    client.say("TB.TOP RESET");
    client.say("TB.TAKE k 10 1 6");
    client.say("TB.CHARGE d 10 1 15");
}

impl Call {
    pub fn of(command: &Command) -> impl Iterator<Item = &'static Self> + '_ {
        CALLS.iter().filter(|call| call.is_of(command))
    }

    fn is_of(&self, command: &Command) -> bool {
        self.words.split(' ').next().is_some_and(|name| name.eq_ignore_ascii_case(command.name))
    }

    pub fn command(&self) -> &'static Command {
        COMMANDS.iter().find(|command| self.is_of(command)).expect("every call is of a command")
    }

    /// Its keys, in order, each as often as it is given.
    pub fn keys(&self) -> Vec<&'static str> {
        self.words.split(' ').skip(1).filter(|word| matches!(word.as_bytes(), [b'a'..=b'w'])).collect()
    }

    /// The words, with other names for the keys.
    pub fn with_keys(&self, mut rename: impl FnMut(&str) -> String) -> String {
        let keys = self.keys();
        let renamed = |word: &str| if keys.contains(&word) { rename(word) } else { word.to_owned() };
        self.words.split(' ').map(renamed).collect::<Vec<_>>().join(" ")
    }

    /// Makes it, and holds the reply against the one that is listed.
    pub fn make(&self, client: &mut Connection) {
        let reply = match client.attempt(self.words) {
            Ok(reply) => shown(&reply),
            Err(error) => error,
        };
        assert_eq!(reply, self.reply, "{}", self.words);
    }
}
