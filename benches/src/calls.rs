//! The calls whose cost is measured one by one, and what has to be there before.

use crate::connection::Connection;
use crate::limit::Limit;
use crate::peer::Peer;
use crate::random::Random;
use crate::resp::{Batch, Reply};
use crate::script;
use anyhow::{bail, ensure, Result};

/// A user's limit: 1,000 tokens, one a second.
const LIMIT: Limit = Limit { capacity: 1000, count: 1, period_s: 1 };
/// The same as the commands are told it.
const CAPACITY: &str = "1000";
const RATE: &str = "1";
/// A bucket in use has been taken from before.
const TAKEN_BEFORE: &str = "30";
/// A limit whose emptied bucket denies for six minutes, longer than anything is measured.
const SLOW_CAPACITY: &str = "10";
const SLOW_RATE: &str = "10/h";
const BUCKETS_AT_ONCE: usize = 10;

/// Calls in one write to the server.
#[derive(Clone, Copy)]
pub struct Shape {
    pub keys: u64,
    pub pipeline: usize,
}

/// One kind of call.
#[derive(Clone, Debug)]
pub enum Call {
    Ping,
    Get,
    Set,
    Incr,
    Increx,
    TakeAllowed,
    TakeDenied,
    Peek,
    MultiTake,
    Lua,
    Peer(Peer),
}

impl Call {
    pub fn name(&self) -> String {
        match self {
            Self::Ping => "PING".into(),
            Self::Get => "GET".into(),
            Self::Set => "SET".into(),
            Self::Incr => "INCR".into(),
            Self::Increx => "INCREX".into(),
            Self::TakeAllowed => "TB.TAKE, allowed".into(),
            Self::TakeDenied => "TB.TAKE, denied".into(),
            Self::Peek => "TB.PEEK".into(),
            Self::MultiTake => format!("TB.MTAKE of {BUCKETS_AT_ONCE}"),
            Self::Lua => "Lua script, EVALSHA".into(),
            Self::Peer(peer) => format!("{} ({})", peer.command(), peer.name),
        }
    }

    /// How many times the work of a plain command it is, about: so many fewer are needed to measure it.
    pub fn weight(&self) -> usize {
        match self {
            Self::MultiTake | Self::Lua => 10,
            Self::Peer(_) => 4,
            _ => 1,
        }
    }

    /// The command alone.
    pub fn command(&self) -> &str {
        match self {
            Self::Ping => "PING",
            Self::Get => "GET",
            Self::Set => "SET",
            Self::Incr => "INCR",
            Self::Increx => "INCREX",
            Self::TakeAllowed | Self::TakeDenied => "TB.TAKE",
            Self::Peek => "TB.PEEK",
            Self::MultiTake => "TB.MTAKE",
            Self::Lua => "EVALSHA",
            Self::Peer(peer) => peer.command(),
        }
    }

    /// Empties the server and gives every key the state in which the call finds it.
    pub fn prepare(&self, connection: &mut Connection, shape: Shape) -> Result<()> {
        connection.say("FLUSHALL")?;
        script::load(connection)?;
        let mut numbers = 0..shape.keys;
        loop {
            let mut batch = Batch::new();
            for number in numbers.by_ref().take(shape.pipeline) {
                batch.push(self.preparation(&key(number)));
            }
            if batch.commands() == 0 {
                return Ok(());
            }
            connection.exchange(&batch, |reply| reply.clone().checked().map(drop))?;
        }
    }

    fn preparation(&self, key: &str) -> Vec<String> {
        match self {
            Self::Ping => owned(&["PING"]),
            Self::Get | Self::Set => owned(&["SET", key, "1"]),
            Self::TakeAllowed | Self::Peek | Self::MultiTake => {
                owned(&["TB.TAKE", key, CAPACITY, RATE, TAKEN_BEFORE])
            }
            Self::TakeDenied => owned(&["TB.TAKE", key, SLOW_CAPACITY, SLOW_RATE, SLOW_CAPACITY]),
            Self::Lua => owned(&["EVALSHA", script::sha(), "1", key, CAPACITY, RATE, TAKEN_BEFORE]),
            Self::Incr | Self::Increx | Self::Peer(_) => self.words(|| key.to_owned()),
        }
    }

    /// Makes a number of calls on random keys and judges each reply.
    pub fn make(
        &self,
        connection: &mut Connection,
        shape: Shape,
        calls: usize,
        random: &mut Random,
    ) -> Result<()> {
        let batches = self.batches(shape, calls, random);
        batches.iter().try_for_each(|batch| connection.exchange(batch, |reply| self.judge(reply)))
    }

    /// A number of calls on random keys, as they are sent.
    pub fn batches(&self, shape: Shape, calls: usize, random: &mut Random) -> Vec<Batch> {
        let batch = |first: usize| {
            let mut batch = Batch::new();
            for _ in first..calls.min(first + shape.pipeline) {
                batch.push(self.random_words(shape, random));
            }
            batch
        };
        (0..calls).step_by(shape.pipeline).map(batch).collect()
    }

    fn random_words(&self, shape: Shape, random: &mut Random) -> Vec<String> {
        let several = if matches!(self, Self::MultiTake) { BUCKETS_AT_ONCE } else { 1 };
        let mut keys = random.distinct(several, shape.keys).into_iter().map(key);
        self.words(|| keys.next().unwrap_or_default())
    }

    fn words(&self, mut key: impl FnMut() -> String) -> Vec<String> {
        match self {
            Self::Ping => owned(&["PING"]),
            Self::Get => owned(&["GET", &key()]),
            Self::Set => owned(&["SET", &key(), "1"]),
            Self::Incr => owned(&["INCR", &key()]),
            Self::Increx => owned(&["INCREX", &key(), "BYINT", "1", "UBOUND", CAPACITY, "EX", "1000", "ENX"]),
            Self::TakeAllowed => owned(&["TB.TAKE", &key(), CAPACITY, RATE]),
            Self::TakeDenied => owned(&["TB.TAKE", &key(), SLOW_CAPACITY, SLOW_RATE]),
            Self::Peek => owned(&["TB.PEEK", &key(), CAPACITY, RATE]),
            Self::MultiTake => {
                let mut words = owned(&["TB.MTAKE", &BUCKETS_AT_ONCE.to_string()]);
                for _ in 0..BUCKETS_AT_ONCE {
                    words.extend(owned(&[&key(), CAPACITY, RATE, "1"]));
                }
                words
            }
            Self::Lua => owned(&["EVALSHA", script::sha(), "1", &key(), CAPACITY, RATE, "1"]),
            Self::Peer(peer) => peer.words(&key(), LIMIT),
        }
    }

    /// Fails unless the reply is the one whose cost is to be measured.
    pub fn judge(&self, reply: &Reply) -> Result<()> {
        let expected = match self {
            Self::TakeDenied => 0,
            Self::TakeAllowed | Self::Peek | Self::MultiTake | Self::Lua => 1,
            Self::Ping | Self::Get | Self::Set | Self::Incr | Self::Increx | Self::Peer(_) => {
                return reply.clone().checked().map(drop);
            }
        };
        let Reply::Array(fields) = reply else { bail!("{}: {reply:?}", self.name()) };
        let allowed = fields.first() == Some(&Reply::Integer(expected));
        ensure!(allowed, "{} should have replied {expected} first: {reply:?}", self.name());
        Ok(())
    }
}

/// The key of a user: 12 bytes, up to ten million of them.
pub fn key(number: u64) -> String {
    format!("user:{number:07}")
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(ToString::to_string).collect()
}
