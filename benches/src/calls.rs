//! The calls whose cost is measured one by one, and what has to be there before.

use crate::approaches::{CELL_THROTTLE, FALLBACK_TAKE, SCRIPT_TAKE, TAKE, WINDOW_COUNT};
use crate::common::Connection;
use crate::server::{Module, CELL_NAME};
use crate::template::{add, key, Limit};
use fastrand::Rng;
use redis::{Pipeline, Value};
use std::ops::Range;

pub const INCR: &str = "INCR";
pub const INCREX: &str = "INCREX";
pub const ALLOWED: &str = "TB.TAKE, allowed";
pub const DENIED: &str = "TB.TAKE, denied";
pub const SCRIPT: &str = "Lua script, EVALSHA";
pub const FALLBACK: &str = "clients/fallback.lua, EVALSHA";
pub const DENIED_UNCOUNTED: &str = "TB.TAKE, denied, top-keys 0";
pub const DAILY: &str = "TB.TAKE, rate 1000@d";
pub const MONTHLY: &str = "TB.TAKE, rate 1000@mo";
pub const FIRST: &str = "TB.HOLD, the first";
pub const RENEWED: &str = "TB.HOLD, renewed";
pub const TAKE_TOGETHER: &str = "TB.MTAKE of 1";
pub const TAKE_ANY: &str = "TB.TAKEANY of 1";
pub const TAKE_LAST: &str = "TB.TAKEANY, the last of 10 of 2";
pub const PEEKS_AND_TAKE: &str = "TB.MTAKE of 2 behind 20 TB.PEEK";
pub const BESIDE_1: &str = "TB.HOLD + TB.SETTLE beside 1 hold";
pub const BESIDE_1000: &str = "TB.HOLD + TB.SETTLE beside 1,000";
pub const BESIDE_10000: &str = "TB.HOLD + TB.SETTLE beside 10,000";

/// A user's limit: 1,000 tokens, one a second.
const USER: Limit = Limit { capacity: 1000, count: 1, period_s: 1 };
/// A limit whose emptied bucket denies for six minutes, longer than anything is measured.
const SLOW: Limit = Limit { capacity: 10, count: 10, period_s: 3600 };
/// A limit that holds never reach.
const WIDE: Limit = Limit { capacity: 1_000_000_000, count: 1000, period_s: 1 };

/// A call, and how to bring a key into the state in which the call finds it. Either may be several commands on one key.
#[derive(Clone, Copy)]
pub struct Call {
    pub name: &'static str,
    pub call: &'static str,
    /// What prepares a key, if not the call itself.
    pub before: &'static str,
    pub limit: Limit,
    /// How many keys are prepared, if not as many as the measurement has.
    pub keys: Option<u64>,
    /// Whether each call is on a key of its own, rather than on a random one.
    pub once_a_key: bool,
    /// The first element of the reply whose cost is to be measured.
    pub first: Option<i64>,
    /// How many times the work of a plain command it is, about: so many fewer are needed to measure it.
    pub weight: usize,
    /// What the server has to have.
    pub module: Module,
}

/// A call of which nothing is expected but that it succeeds.
pub const PLAIN: Call = Call {
    name: "",
    call: "",
    before: "",
    limit: USER,
    keys: None,
    once_a_key: false,
    first: None,
    weight: 1,
    module: Module::Own,
};
const USED: Call = Call { before: "TB.TAKE {key} {capacity} {rate} 30", first: Some(1), ..PLAIN };
/// Not full again while anything is counted.
const DRAINED: Call =
    Call { before: "TB.TAKE {key} {capacity} 17 900000000", limit: WIDE, first: Some(1), ..PLAIN };
const EMPTY: Call =
    Call { before: "TB.TAKE {key} {capacity} {rate} {capacity}", limit: SLOW, first: Some(0), ..PLAIN };
/// A denial that is not counted by its key. The server keeps the setting: nothing is measured there afterwards.
pub const UNCOUNTED: Call = Call {
    name: DENIED_UNCOUNTED,
    call: TAKE,
    before: "CONFIG SET tokenbucket.top-keys 0 ; TB.TAKE {key} {capacity} {rate} {capacity}",
    ..EMPTY
};
const TEN_BUCKETS: &str =
    "TB.MTAKE 10 {bucket} {bucket} {bucket} {bucket} {bucket} {bucket} {bucket} {bucket} {bucket} {bucket}";
/// Nine alternatives in which a bucket lacks its cost, and one that allows.
const LAST_OF_TEN: &str = concat!(
    "TB.TAKEANY 20 2 ",
    "{bucket} {key} {capacity} {rate} 1000 {bucket} {key} {capacity} {rate} 1000 {bucket} {key} {capacity} {rate} 1000 ",
    "{bucket} {key} {capacity} {rate} 1000 {bucket} {key} {capacity} {rate} 1000 {bucket} {key} {capacity} {rate} 1000 ",
    "{bucket} {key} {capacity} {rate} 1000 {bucket} {key} {capacity} {rate} 1000 {bucket} {key} {capacity} {rate} 1000 ",
    "{bucket} {bucket}"
);
/// What clients do instead, without the certainty of getting what they saw.
const TWENTY_PEEKS_AND_TAKE: &str = concat!(
    "TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; ",
    "TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; ",
    "TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; ",
    "TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; ",
    "TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; ",
    "TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; ",
    "TB.PEEK {key} {capacity} {rate} ; TB.PEEK {key} {capacity} {rate} ; TB.MTAKE 2 {bucket} {bucket}"
);
const SCRIPT_PREPARES: &str = "EVALSHA {token-bucket} 1 {key} {capacity} {tokens_s} 30";
const FALLBACK_PREPARES: &str = "EVALSHA {fallback} 1 {key} TAKE {capacity} {rate} 30";

const HELD: Call =
    Call { call: "TB.HOLD {key} {capacity} {rate} 5 5400000 {uuid}", limit: WIDE, first: Some(1), ..PLAIN };
/// One bucket for all calls, and what is prepared are the holds beside the counted one: half of them end before it, half
/// of them after it.
const SETTLED: Call = Call {
    call: "TB.HOLD held {capacity} {rate} 5 5400000 {uuid} ; TB.SETTLE held {capacity} {rate} {uuid} 2",
    before: "TB.HOLD held {capacity} {rate} 5 3600000 {key}-ends-before-the-counted ; \
             TB.HOLD held {capacity} {rate} 5 7200000 {key}-ends-behind-the-counted",
    weight: 2,
    ..HELD
};
/// On a bucket that a take has emptied for longer than the hold lasts, so that its key may stay as long as it did.
const FIRST_HOLD: Call = Call {
    name: FIRST,
    call: "TB.HOLD {key} {capacity} {rate} 5 60000 {uuid}",
    before: "TB.TAKE {key} {capacity} {rate} 900000",
    once_a_key: true,
    ..HELD
};
const ONE_BEFORE: &str = "TB.HOLD held {capacity} {rate} 5 3600000 {key}-ends-before-the-counted";

pub const CALLS: [Call; 27] = [
    Call { name: "PING", call: "PING", ..PLAIN },
    Call { name: "GET", call: "GET {key}", before: "SET {key} 1", ..PLAIN },
    Call { name: "SET", call: "SET {key} 1", ..PLAIN },
    Call { name: INCR, call: "INCR {key}", ..PLAIN },
    Call { name: INCREX, call: WINDOW_COUNT, ..PLAIN },
    Call { name: ALLOWED, call: TAKE, ..USED },
    Call { name: DENIED, call: TAKE, ..EMPTY },
    Call { name: "TB.TAKE, rate 17", call: "TB.TAKE {key} {capacity} 17", ..DRAINED },
    Call { name: "TB.TAKE, rate 16.6667", call: "TB.TAKE {key} {capacity} 16.6667", ..DRAINED },
    Call { name: DAILY, call: "TB.TAKE {key} {capacity} 1000@d", ..USED },
    Call { name: MONTHLY, call: "TB.TAKE {key} {capacity} 1000@mo", ..USED },
    Call { name: "TB.TAKE, cost 2", call: "TB.TAKE {key} {capacity} {rate} 2", ..USED },
    Call { name: "TB.TAKE, cost 0.5", call: "TB.TAKE {key} {capacity} {rate} 0.5", ..USED },
    Call { name: "TB.PEEK", call: "TB.PEEK {key} {capacity} {rate}", ..USED },
    Call { name: "TB.PEEK, denied", call: "TB.PEEK {key} {capacity} {rate}", ..EMPTY },
    Call { name: "TB.MTAKE of 10", call: TEN_BUCKETS, weight: 10, ..USED },
    Call { name: TAKE_TOGETHER, call: "TB.MTAKE 1 {bucket}", ..USED },
    Call { name: TAKE_ANY, call: "TB.TAKEANY 1 1 {bucket}", ..USED },
    Call { name: TAKE_LAST, call: LAST_OF_TEN, weight: 10, first: Some(10), ..USED },
    Call { name: PEEKS_AND_TAKE, call: TWENTY_PEEKS_AND_TAKE, weight: 20, ..USED },
    FIRST_HOLD,
    Call { name: RENEWED, ..HELD },
    Call { name: BESIDE_1, before: ONE_BEFORE, keys: Some(1), ..SETTLED },
    Call { name: BESIDE_1000, keys: Some(500), ..SETTLED },
    Call { name: BESIDE_10000, keys: Some(5000), weight: 20, ..SETTLED },
    Call { name: SCRIPT, call: SCRIPT_TAKE, before: SCRIPT_PREPARES, weight: 10, ..USED },
    Call { name: FALLBACK, call: FALLBACK_TAKE, before: FALLBACK_PREPARES, weight: 20, ..USED },
];

/// Which keys, and how many calls in one write to the server.
#[derive(Clone, Copy)]
pub struct Shape {
    pub keys: u64,
    pub pipeline: usize,
}

impl Call {
    pub fn named(name: &str) -> Self {
        *CALLS.iter().find(|call| call.name == name).unwrap_or_else(|| panic!("no call is {name}"))
    }

    /// That of redis-cell.
    pub fn of_redis_cell() -> Self {
        Self { name: &CELL_NAME, call: CELL_THROTTLE, weight: 4, module: Module::RedisCell, ..PLAIN }
    }

    pub fn command(&self) -> &'static str {
        self.call.split(' ').next().unwrap_or_default()
    }

    /// Empties the server and prepares all keys.
    pub fn prepare(&self, client: &mut Connection, shape: Shape) {
        client.say("FLUSHALL");
        self.prepare_keys(client, 0..self.keys.unwrap_or(shape.keys));
    }

    /// Gives keys the state in which the call finds them.
    pub fn prepare_keys(&self, client: &mut Connection, numbers: Range<u64>) {
        let shape = Shape { keys: numbers.end, pipeline: 500 };
        let text = if self.before.is_empty() { self.call } else { self.before };
        let exec = |batch: Pipeline| batch.exec(client.inner()).expect("keys are prepared");
        self.batches(text, shape, numbers).for_each(exec);
    }

    /// Makes calls, of which so many have been made before, and judges each reply.
    pub fn make(&self, client: &mut Connection, shape: Shape, calls: Range<usize>, random: &mut Rng) {
        for batch in self.written(shape, calls, random) {
            let replies: Vec<Value> = batch.query(client.inner()).expect("the calls succeed");
            replies.iter().for_each(|reply| self.judge(reply));
        }
    }

    /// Returns these calls as they are sent.
    pub fn written<'a>(
        &'a self,
        shape: Shape,
        calls: Range<usize>,
        random: &'a mut Rng,
    ) -> impl Iterator<Item = Pipeline> + 'a {
        let number = move |made| if self.once_a_key { made as u64 } else { random.u64(0..shape.keys) };
        self.batches(self.call, shape, calls.map(number))
    }

    /// A text for each of several keys.
    fn batches<'a>(
        &'a self,
        text: &'a str,
        shape: Shape,
        mut numbers: impl Iterator<Item = u64> + 'a,
    ) -> impl Iterator<Item = Pipeline> + 'a {
        const ID: &str = "1d0e8c5a-0b1c-4b1e-9f65-3a0f7d1c2b4e";
        // Keys of one call are equally far from each other, so that none is there twice.
        let apart = shape.keys / text.matches("{bucket}").count().max(1) as u64;
        std::iter::from_fn(move || {
            let mut batch = Pipeline::new();
            for number in numbers.by_ref().take(shape.pipeline) {
                let mut keys = (number..).step_by(apart as usize).map(|number| key(number % shape.keys));
                add(&mut batch, text, self.limit, ID, || keys.next().unwrap_or_default());
            }
            (!batch.is_empty()).then_some(batch)
        })
    }

    /// Panics unless the reply is the one whose cost is to be measured.
    pub fn judge(&self, reply: &Value) {
        let Some(expected) = self.first else { return };
        let first = if let Value::Array(fields) = reply { fields.first() } else { None };
        let as_expected = first == Some(&Value::Int(expected));
        assert!(as_expected, "{} should have replied {expected} first: {reply:?}", self.name);
    }
}
