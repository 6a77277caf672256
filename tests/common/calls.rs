//! The commands, what each of them is, and example calls with what follows from them.
//!
//! The one list that tests walk wherever a promise is the same for all commands. A command that is added is a line
//! in [`COMMANDS`] and a few in [`CALLS`].

use super::{shown, Connection, Server};

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
    /// The same, and their calls may wait.
    WaitingWriters,
    /// Whoever runs the server, also on read-only replicas.
    Operators,
    /// Masters and files.
    Servers,
}

use Audience::{Operators, Readers, Servers, WaitingWriters, Writers};

impl Audience {
    /// Whether what is for them changes nothing.
    pub fn only_reads(self) -> bool {
        matches!(self, Readers | Operators)
    }

    /// Whether applications are among them.
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
    command("TB.SETTLE", Writers, &["key key", "capacity double", "rate string", "id string", "used double"]),
    command("TB.MHOLD", Writers, &["numkeys integer", "ttl_ms integer", "id string", "bucket block multiple"]),
    command("TB.MSETTLE", Writers, &["numkeys integer", "id string", "bucket block multiple"]),
    command("TB.BTAKE", WaitingWriters, &["key key", "capacity double", "rate string", "cost double", "max_wait_ms integer", "share block optional"]),
    command("TB.BMTAKE", WaitingWriters, &["numkeys integer", "max_wait_ms integer", "bucket block multiple"]),
    command("TB.BHOLD", WaitingWriters, &["key key", "capacity double", "rate string", "amount double", "ttl_ms integer", "id string", "max_wait_ms integer", "share block optional"]),
    command("TB.BMHOLD", WaitingWriters, &["numkeys integer", "ttl_ms integer", "id string", "max_wait_ms integer", "bucket block multiple"]),
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// So many whole tokens were taken.
    Took(i64),
    /// So many whole tokens are held.
    Held(i64),
    /// Tokens were put back, and there is room for more.
    Gave,
    /// The bucket is full, and its key is gone.
    Filled,
    Denied,
    /// Allowed, though there was nothing to take or give.
    Idle,
    /// A question, not a decision.
    Asked,
    Refused,
}

use Outcome::{Asked, Denied, Filled, Gave, Held, Idle, Refused, Took};

impl Outcome {
    /// Whether it changes what is stored.
    pub fn writes(self) -> bool {
        matches!(self, Took(_) | Held(_) | Gave | Filled)
    }
}

const fn call(words: &'static str, reply: &'static str, outcome: Outcome) -> Call {
    Call { words, reply, outcome }
}

/// The keys in [`CALLS`] are the words of one letter. `k` and `d` are what [`prepare`] made, the rest full buckets.
#[rustfmt::skip] // A line for each.
pub const CALLS: &[Call] = &[
    call("TB.TAKE k 10 1", "[1 3 0 7000]", Took(1)),
    call("TB.TAKE k 10 1 0.000001", "[1 3 0 6001]", Took(0)),
    call("TB.TAKE n 10 1 2", "[1 8 0 2000]", Took(2)),
    call("TB.TAKE k 10 1 5", "[0 4 1000 6000]", Denied),
    call("TB.TAKE k 10 1 11", "[0 4 -1 6000]", Denied),
    call("TB.TAKE k 0 1", "[0 0 -1 0]", Denied),
    call("TB.TAKE n 0 1", "[0 0 -1 0]", Denied),
    call("TB.TAKE n 10 1 11", "[0 10 -1 0]", Denied),
    call("TB.TAKE k 10 1 0", "[1 4 0 6000]", Idle),
    call("TB.TAKE d 10 1 0", "[0 -5 5000 15000]", Denied),
    call("TB.TAKE n 10 1 0", "[1 10 0 0]", Idle),
    call("TB.TAKE k ten 1", CAPACITY_ERROR, Refused),
    call("TB.PEEK k 10 1 4", "[1 0 0 10000]", Asked),
    call("TB.PEEK k 10 1 5", "[0 4 1000 6000]", Asked),
    call("TB.PEEK n 10 1", "[1 9 0 1000]", Asked),
    call("TB.PEEK k ten 1", CAPACITY_ERROR, Refused),
    call("TB.TAKEUPTO k 10 1 3", "[3 1 0 9000]", Took(3)),
    call("TB.TAKEUPTO k 10 1 50", "[4 0 0 10000]", Took(4)),
    call("TB.TAKEUPTO n 10 1 7", "[7 3 0 7000]", Took(7)),
    call("TB.TAKEUPTO k 0.5 1 1", "[0 0 -1 0]", Denied),
    call("TB.TAKEUPTO d 10 1 3", "[0 -5 6000 15000]", Denied),
    call("TB.TAKEUPTO k ten 1 1", CAPACITY_ERROR, Refused),
    call("TB.RESERVE k 10 1 6 60000", "[1 -2 2000 12000]", Took(6)),
    call("TB.RESERVE n 10 1 10 0", "[1 0 0 10000]", Took(10)),
    call("TB.RESERVE k 10 1 6 1000", "[0 4 2000 6000]", Denied),
    call("TB.RESERVE k 10 1 0 1000", "[1 4 0 6000]", Idle),
    call("TB.RESERVE d 10 1 0 5000", "[1 -5 5000 15000]", Idle),
    call("TB.RESERVE d 10 1 0 4999", "[0 -5 5000 15000]", Denied),
    call("TB.RESERVE n 2 1 2.000001 3155760000000", "[0 2 -1 0]", Denied),
    call("TB.RESERVE k ten 1 1 0", CAPACITY_ERROR, Refused),
    call("TB.CHARGE k 10 1 5", "[1 -1 1000 11000]", Took(5)),
    call("TB.CHARGE n 10 1 15", "[1 -5 5000 15000]", Took(15)),
    call("TB.CHARGE d 10 1 0", "[1 -5 5000 15000]", Idle),
    call("TB.CHARGE n 10 1 0", "[1 10 0 0]", Idle),
    call("TB.CHARGE k ten 1 1", CAPACITY_ERROR, Refused),
    call("TB.GIVE k 10 1 1", "[1 5 0 5000]", Gave),
    call("TB.GIVE k 10 1 6", "[1 10 0 0]", Filled),
    call("TB.GIVE k 10 1 100", "[1 10 0 0]", Filled),
    call("TB.GIVE k 10 1 0", "[1 4 0 6000]", Idle),
    call("TB.GIVE n 10 1 1", "[1 10 0 0]", Idle),
    call("TB.GIVE k ten 1 1", CAPACITY_ERROR, Refused),
    call("TB.MTAKE 2 k 10 1 1 n 5 1/m 1", "[1 3 0 60000 [[1 3 0 7000] [1 4 0 60000]]]", Took(2)),
    call("TB.MTAKE 2 n 10 1 2 k 10 1 1", "[1 3 0 7000 [[1 8 0 2000] [1 3 0 7000]]]", Took(3)),
    call("TB.MTAKE 3 k 10 1 5 m 10 1 1 n 1 1 2", "[0 1 -1 6000 [[0 4 1000 6000] [1 10 0 0] [0 1 -1 0]]]", Denied),
    call("TB.MTAKE 2 n 10 1 1 d 10 1 0", "[0 -5 5000 15000 [[1 10 0 0] [0 -5 5000 15000]]]", Denied),
    call("TB.MTAKE 1 k 10 1 0", "[1 4 0 6000 [[1 4 0 6000]]]", Idle),
    call("TB.MTAKE 2 k 10 1 1 k 10 1 1", "ERR key must not be given twice in one call: 'k' is bucket 1 and bucket 2", Refused),
    call("TB.HOLD k 10 1 3 60000 id", "[1 1 0 9000]", Held(3)),
    call("TB.HOLD n 10 1 2 60000 id", "[1 8 0 2000]", Held(2)),
    call("TB.HOLD k 10 1 5 60000 id", "[0 4 1000 6000]", Denied),
    call("TB.HOLD k 10 1 11 60000 id", "[0 4 -1 6000]", Denied),
    call("TB.HOLD k 10 1 0 60000 id", "[1 4 0 6000]", Idle),
    call("TB.HOLD k ten 1 1 60000 id", CAPACITY_ERROR, Refused),
    call("TB.SETTLE k 10 1 id 1", "[0 4 -1 6000]", Asked),
    call("TB.SETTLE k ten 1 id 1", CAPACITY_ERROR, Refused),
    call("TB.MHOLD 2 60000 id k 10 1 3 n 5 1/m 1", "[1 1 0 60000 [[1 1 0 9000] [1 4 0 60000]]]", Held(4)),
    call("TB.MHOLD 2 60000 id k 10 1 5 n 5 1/m 1", "[0 4 1000 6000 [[0 4 1000 6000] [1 5 0 0]]]", Denied),
    call("TB.MSETTLE 1 id k 10 1 1", "[0 4 -1 6000 [[0 4 -1 6000]]]", Asked),
    call("TB.BTAKE k 10 1 1 1", "[1 3 0 7000]", Took(1)),
    call("TB.BTAKE k 10 1 1 1 SHARE tenant WEIGHT 3", "[1 3 0 7000]", Took(1)),
    call("TB.BTAKE k 10 1 5 0", "[0 4 1000 6000]", Denied),
    call("TB.BTAKE k 10 1 11 1000", "[0 4 -1 6000]", Denied),
    call("TB.BTAKE k 10 1 0 1000", "[1 4 0 6000]", Idle),
    call("TB.BTAKE d 10 1 0 1000", "[0 -5 5000 15000]", Denied),
    call("TB.BTAKE k ten 1 1 1000", CAPACITY_ERROR, Refused),
    call("TB.BMTAKE 2 1 k 10 1 1 n 5 1/m 1", "[1 3 0 60000 [[1 3 0 7000] [1 4 0 60000]]]", Took(2)),
    call("TB.BMTAKE 2 0 k 10 1 5 n 5 1/m 1", "[0 4 1000 6000 [[0 4 1000 6000] [1 5 0 0]]]", Denied),
    call("TB.BMTAKE 2 1 k 10 1 1 k 10 1 1", "ERR key must not be given twice in one call: 'k' is bucket 1 and bucket 2", Refused),
    call("TB.BHOLD k 10 1 3 60000 id 1", "[1 1 0 9000]", Held(3)),
    call("TB.BHOLD k 10 1 3 60000 id 1 SHARE tenant", "[1 1 0 9000]", Held(3)),
    call("TB.BHOLD k 10 1 5 60000 id 0", "[0 4 1000 6000]", Denied),
    call("TB.BHOLD k 10 1 11 60000 id 1000", "[0 4 -1 6000]", Denied),
    call("TB.BHOLD k 10 1 0 60000 id 1000", "[1 4 0 6000]", Idle),
    call("TB.BHOLD k ten 1 1 60000 id 1000", CAPACITY_ERROR, Refused),
    call("TB.BMHOLD 2 60000 id 1 k 10 1 3 n 5 1/m 1", "[1 1 0 60000 [[1 1 0 9000] [1 4 0 60000]]]", Held(4)),
    call("TB.BMHOLD 2 60000 id 0 k 10 1 5 n 5 1/m 1", "[0 4 1000 6000 [[0 4 1000 6000] [1 5 0 0]]]", Denied),
    call("TB.HOLDS k", "[]", Asked),
    call("TB.STATE k", "[\"4\" 1767225600000007]", Asked),
    call("TB.STATE d", "[\"-5\" 1767225600000007]", Asked),
    call("TB.STATE n", "nil", Asked),
    call("TB.TOP COUNT 1", "[]", Asked),
    call("TB.TOP", "[]", Asked),
    call("TB.TOP RESET", "[]", Asked),
    call("TB.TOP 10", "ERR options of TB.TOP are COUNT n and RESET, each at most once, not '10'", Refused),
    call("TB.RESTORE k x", "ERR effect must have the format that this module replicates", Refused),
    call("CL.THROTTLE k 9 1 1", "[0 10 3 -1 7]", Took(1)),
    call("CL.THROTTLE n 9 1 1 4", "[0 10 6 -1 4]", Took(4)),
    call("CL.THROTTLE k 9 1 1 5", "[1 10 4 1 6]", Denied),
    call("CL.THROTTLE k 9 1 1 0", "[0 10 4 -1 6]", Asked),
    call("CL.THROTTLE d 9 1 1 0", "[1 10 0 5 15]", Asked),
    call("CL.THROTTLE k ten 1 1", "ERR max_burst must be a whole number of tokens from -1 to 999999999999, not 'ten'", Refused),
];

const CAPACITY_ERROR: &str = "ERR capacity must be a decimal number of tokens from 0 to 1e12, not 'ten'";

/// Leaves `k` with 4 of 10 tokens at one a second, `d` 5 tokens in debt, and nothing else: no denial is counted.
pub fn prepare(client: &mut Connection) {
    client.say("FLUSHALL");
    client.say("TB.TOP RESET");
    client.say("TB.TAKE k 10 1 6");
    client.say("TB.CHARGE d 10 1 15");
}

pub fn prepared() -> (Server, Connection) {
    let (server, mut client) = Server::with_clock_and_client();
    prepare(&mut client);
    (server, client)
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
