//! The calls whose cost is measured one by one, and what has to be there before.

use crate::approaches::{SCRIPT_TAKE, TAKE, WINDOW_COUNT};
use crate::arguments::Peer;
use crate::server::ask;
use crate::template::{key, Limit, Template};
use anyhow::{ensure, Context, Result};
use fastrand::Rng;
use redis::{Connection, Pipeline, Value};
use std::ops::Range;
use std::path::PathBuf;

pub const INCR: &str = "INCR";
pub const INCREX: &str = "INCREX";
pub const ALLOWED: &str = "TB.TAKE, allowed";
pub const RENEWED: &str = "TB.HOLD, renewed";
pub const BESIDE_1: &str = "TB.HOLD + TB.SETTLE beside 1 hold";
pub const BESIDE_1000: &str = "TB.HOLD + TB.SETTLE beside 1,000";
pub const BESIDE_10000: &str = "TB.HOLD + TB.SETTLE beside 10,000";

/// A user's limit: 1,000 tokens, one a second.
const USER: Limit = Limit { capacity: 1000, count: 1, period_s: 1 };
/// A limit whose emptied bucket denies for six minutes, longer than anything is measured.
const SLOW: Limit = Limit { capacity: 10, count: 10, period_s: 3600 };
/// A limit that holds never reach.
const WIDE: Limit = Limit { capacity: 1_000_000_000, count: 1000, period_s: 1 };

/// A call, and how to bring a key into the state in which the call finds it. Either may be several commands on one key,
/// with ` ; ` between them.
struct Row {
    name: &'static str,
    call: &'static str,
    /// What prepares a key, if not the call itself. Its cost is `BEFORE`.
    before: &'static str,
    limit: Limit,
    /// How many keys are prepared, if not as many as the measurement has.
    keys: Option<u64>,
    /// The first element of the reply whose cost is to be measured.
    first: Option<i64>,
    /// How many times the work of a plain command it is, about: so many fewer are needed to measure it.
    weight: usize,
}

/// What a bucket in use has been taken from before.
const BEFORE: &str = "30";
const TEN_BUCKETS: [&str; 10] = ["{key} {capacity} {rate} {cost}"; 10];

const PLAIN: Row = Row { name: "", call: "", before: "", limit: USER, keys: None, first: None, weight: 1 };
const USED: Row = Row { before: "TB.TAKE {key} {capacity} {rate} {cost}", first: Some(1), ..PLAIN };
/// Not full again while anything is counted.
const DRAINED: Row = Row { before: "TB.TAKE {key} {capacity} 17 900", ..USED };
const EMPTY: Row =
    Row { before: "TB.TAKE {key} {capacity} {rate} {capacity}", limit: SLOW, first: Some(0), ..PLAIN };

const HELD: Row =
    Row { call: "TB.HOLD {key} {capacity} {rate} 5 5400000 {id}", limit: WIDE, first: Some(1), ..PLAIN };
/// One bucket for all calls, and what is prepared are the holds beside the counted one: half of them end before it, half
/// of them after it.
const SETTLED: Row = Row {
    call: "TB.HOLD held {capacity} {rate} 5 5400000 {id} ; TB.SETTLE held {capacity} {rate} {id} 2",
    before: "TB.HOLD held {capacity} {rate} 5 3600000 {key}-ends-before-the-counted ; \
             TB.HOLD held {capacity} {rate} 5 7200000 {key}-ends-behind-the-counted",
    weight: 2,
    ..HELD
};
const ONE_BEFORE: &str = "TB.HOLD held {capacity} {rate} 5 3600000 {key}-ends-before-the-counted";

const ROWS: [Row; 19] = [
    Row { name: "PING", call: "PING", ..PLAIN },
    Row { name: "GET", call: "GET {key}", before: "SET {key} 1", ..PLAIN },
    Row { name: "SET", call: "SET {key} 1", ..PLAIN },
    Row { name: INCR, call: "INCR {key}", ..PLAIN },
    Row { name: INCREX, call: WINDOW_COUNT, ..PLAIN },
    Row { name: ALLOWED, call: TAKE, ..USED },
    Row { name: "TB.TAKE, denied", call: TAKE, ..EMPTY },
    Row { name: "TB.TAKE, rate 17", call: "TB.TAKE {key} {capacity} 17", ..DRAINED },
    Row { name: "TB.TAKE, rate 16.6667", call: "TB.TAKE {key} {capacity} 16.6667", ..DRAINED },
    Row { name: "TB.TAKE, cost 2", call: "TB.TAKE {key} {capacity} {rate} 2", ..USED },
    Row { name: "TB.TAKE, cost 0.5", call: "TB.TAKE {key} {capacity} {rate} 0.5", ..USED },
    Row { name: "TB.PEEK", call: "TB.PEEK {key} {capacity} {rate}", ..USED },
    Row { name: "TB.PEEK, denied", call: "TB.PEEK {key} {capacity} {rate}", ..EMPTY },
    Row { name: "TB.MTAKE of 10", call: "TB.MTAKE 10 {buckets}", weight: 10, ..USED },
    Row { name: RENEWED, ..HELD },
    Row { name: BESIDE_1, before: ONE_BEFORE, keys: Some(1), ..SETTLED },
    Row { name: BESIDE_1000, keys: Some(500), ..SETTLED },
    Row { name: BESIDE_10000, keys: Some(5000), ..SETTLED },
    Row { name: "Lua script, EVALSHA", call: SCRIPT_TAKE, before: SCRIPT_TAKE, weight: 10, ..USED },
];

/// Which keys, and how many calls in one write to the server.
#[derive(Clone, Copy)]
pub struct Shape {
    pub keys: u64,
    pub pipeline: usize,
}

/// One kind of call.
#[derive(Clone)]
pub struct Call {
    pub name: String,
    pub weight: usize,
    call: Vec<Template>,
    before: Vec<Template>,
    keys: Option<u64>,
    first: Option<i64>,
    /// The module of a peer, if it is not our own that is called.
    pub module: Option<PathBuf>,
}

impl Call {
    /// A row of the table.
    pub fn named(name: &str) -> Result<Self> {
        let row = ROWS.iter().find(|row| row.name == name).with_context(|| format!("no call is {name}"))?;
        let call = row.call.replace("{buckets}", &TEN_BUCKETS.join(" "));
        let before = if row.before.is_empty() { &call } else { row.before }.replace("{cost}", BEFORE);
        let (weight, keys, first) = (row.weight, row.keys, row.first);
        Ok(Self { weight, keys, first, ..Self::new(name, &call, &before, row.limit) })
    }

    pub fn all_named(names: &[&str]) -> Result<Vec<Self>> {
        names.iter().map(|name| Self::named(name)).collect()
    }

    /// A call of which nothing is expected but that it succeeds.
    pub fn new(name: &str, call: &str, before: &str, limit: Limit) -> Self {
        let templates = |text: &str| text.split(" ; ").map(|text| Template::new(text, limit)).collect();
        let (call, before) = (templates(call), templates(before));
        Self { name: name.to_owned(), weight: 1, call, before, keys: None, first: None, module: None }
    }

    pub fn of_peer(peer: &Peer) -> Self {
        Self {
            weight: 4,
            module: Some(peer.module.clone()),
            ..Self::new(&peer.label(), &peer.call, &peer.call, USER)
        }
    }

    /// The command alone.
    pub fn command(&self) -> &str {
        self.call[0].command()
    }

    /// Empties the server and prepares all keys.
    pub fn prepare(&self, connection: &mut Connection, shape: Shape) -> Result<()> {
        ask::<()>(connection, &["FLUSHALL"])?;
        self.prepare_keys(connection, 0..self.keys.unwrap_or(shape.keys))
    }

    /// Gives keys the state in which the call finds them.
    pub fn prepare_keys(&self, connection: &mut Connection, mut numbers: Range<u64>) -> Result<()> {
        const AT_ONCE: usize = 500;
        while !numbers.is_empty() {
            let mut batch = Pipeline::new();
            for number in numbers.by_ref().take(AT_ONCE) {
                for before in &self.before {
                    batch.add_command(before.on(|| key(number)));
                }
            }
            batch.exec(connection)?;
        }
        Ok(())
    }

    /// Makes a number of calls on random keys and judges each reply.
    pub fn make(
        &self,
        connection: &mut Connection,
        shape: Shape,
        calls: usize,
        random: &mut Rng,
    ) -> Result<()> {
        for batch in self.batches(shape, calls, random) {
            let replies: Vec<Value> = batch.query(connection)?;
            replies.into_iter().try_for_each(|reply| self.judge(reply))?;
        }
        Ok(())
    }

    /// A number of calls on random keys, as they are sent.
    pub fn batches<'a>(
        &'a self,
        shape: Shape,
        calls: usize,
        random: &'a mut Rng,
    ) -> impl Iterator<Item = Pipeline> + 'a {
        (0..calls).step_by(shape.pipeline).map(move |first| {
            let mut batch = Pipeline::new();
            for _ in first..calls.min(first + shape.pipeline) {
                self.on_random_keys(shape.keys, random, &mut batch);
            }
            batch
        })
    }

    /// On keys that are equally far from each other, so that none is there twice.
    fn on_random_keys(&self, keys: u64, random: &mut Rng, batch: &mut Pipeline) {
        let first = random.u64(0..keys);
        for call in &self.call {
            let apart = keys / call.keys().max(1);
            let mut numbers = (first..).step_by(apart as usize);
            batch.add_command(call.on(|| key(numbers.next().unwrap_or_default() % keys)));
        }
    }

    /// Fails unless the reply is the one whose cost is to be measured.
    pub fn judge(&self, reply: Value) -> Result<()> {
        let reply = reply.extract_error()?;
        let Some(expected) = self.first else { return Ok(()) };
        let first = if let Value::Array(fields) = &reply { fields.first() } else { None };
        let as_expected = first == Some(&Value::Int(expected));
        ensure!(as_expected, "{} should have replied {expected} first: {reply:?}", self.name);
        Ok(())
    }
}
