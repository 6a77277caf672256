//! redis-cell on a server of its own, and what it means by its replies. Nothing of it is part of this project:
//! `REDIS_CELL` says which library to load.

use crate::common::{exact, integers, text, Connection, Server, ServerBuilder};
use redis::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Nanoseconds in a microsecond, a millisecond and a second.
pub const US: i64 = 1000;
pub const MS: i64 = 1_000_000;
pub const S: i64 = 1_000_000_000;

/// A limit in the words of `CL.THROTTLE`.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub burst: i64,
    pub count: i64,
    pub period_s: i64,
}

impl Limit {
    pub fn capacity(&self) -> i64 {
        self.burst + 1
    }

    /// How long a token takes to flow, in nanoseconds; redis-cell cuts off what is less.
    pub fn interval_ns(&self) -> i64 {
        self.period_s * S / self.count
    }

    /// How long the bucket takes to fill, in nanoseconds.
    pub fn fill_ns(&self) -> i64 {
        self.interval_ns() * self.capacity()
    }

    /// Whether nothing is ever rounded at this limit, neither by redis-cell nor by the module.
    pub fn is_exact(&self) -> bool {
        let whole_us = (self.period_s * S) % (self.count * US) == 0;
        whole_us && (self.period_s % self.count == 0 || self.count % self.period_s == 0)
    }

    /// The limit that is meant.
    pub fn exact(&self) -> exact::Limit {
        exact::throttle::limit(self.burst, self.count, self.period_s)
    }

    /// The words behind the key.
    pub fn words(&self) -> String {
        format!("{} {} {}", self.burst, self.count, self.period_s)
    }

    pub fn call(&self, key: &str, quantity: Option<i64>) -> String {
        let quantity = quantity.map_or(String::new(), |quantity| quantity.to_string());
        format!("{key} {} {quantity}", self.words())
    }
}

pub use exact::throttle::Reply;

/// What redis-cell decided, to the nanosecond.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// As release 0.5 words it.
    pub reply: Reply,
    /// By how much the key was gone before its bucket was full.
    pub lost_ns: i64,
    /// Until the bucket was full, before the call.
    pub full_in_before_ns: i64,
    /// Until the bucket is full.
    pub full_in_ns: i64,
}

pub struct Cell {
    pub server: Server,
    pub client: Connection,
    /// Whether it rounds seconds up, as from release 0.3 on, and not down, as the published crate.
    pub rounds_up: bool,
    /// When each bucket is full, in Unix nanoseconds, as it was last seen.
    full_at_ns: BTreeMap<String, i64>,
}

impl Cell {
    pub fn start(builder: ServerBuilder) -> Self {
        let server = builder.start();
        let mut client = server.connect();
        // Half a second.
        let probe = throttle(&mut client, "probe 0 2 1");
        assert_eq!(probe[..4], [0, 1, 0, -1]);
        client.say("DEL probe");
        Self { server, client, rounds_up: probe[4] == 1, full_at_ns: BTreeMap::new() }
    }

    /// Sends a call, asserts that the seconds of its reply are those that were stored before it and the call, rounded as
    /// this release does, and puts the newest's instead.
    pub fn throttle(&mut self, key: &str, limit: &Limit, quantity: Option<i64>) -> Told {
        let now_ns = self.server.clock().now_us() * US;
        // With nothing in between: servers also look for expired keys when nobody asks.
        let call = format!("CL.THROTTLE {}", limit.call(key, quantity));
        let replies = self.client.transaction(&[&format!("GET {key}"), &call]);
        let [stored, reply] = replies.as_slice() else { panic!("not two replies: {replies:?}") };
        let stored_ns: Option<i64> = (*stored != Value::Nil).then(|| text(stored).parse().unwrap());
        let [limited, capacity, remaining, retry_after, reset_after] = fields(reply);
        let known_ns = self.full_at_ns.remove(key).unwrap_or(now_ns);
        let before_ns = stored_ns.map_or(0, |full_at_ns| (full_at_ns - now_ns).max(0));
        let lost_ns = if stored_ns.is_none() { (known_ns - now_ns).max(0) } else { 0 };
        // Its expiry is rounded down to milliseconds, and servers count from the millisecond that has begun.
        assert!(lost_ns < 2 * MS, "{key} was gone {lost_ns} ns before its bucket was full");
        let cost_ns = limit.interval_ns() * quantity.unwrap_or(1);
        let full_in_ns = before_ns + if limited == 0 { cost_ns } else { 0 };
        self.full_at_ns.insert(key.to_owned(), now_ns + full_in_ns);
        // Until the same call passes, if it was limited and ever passes.
        let ever_passes = limited == 1 && retry_after >= 0;
        let passes_in_ns = ever_passes.then_some(before_ns + cost_ns - limit.fill_ns());
        let as_told = |ns: i64| if self.rounds_up { seconds(ns) } else { ns / S };
        let expected = (passes_in_ns.map_or(-1, as_told), as_told(full_in_ns));
        assert_eq!((retry_after, reset_after), expected, "{call}: {reply:?} of {stored:?}");
        let retry_after = passes_in_ns.map_or(-1, seconds);
        let reply = [limited, capacity, remaining, retry_after, seconds(full_in_ns)];
        Told { reply, lost_ns, full_in_before_ns: before_ns, full_in_ns }
    }
}

/// The library that servers load.
pub fn redis_cell() -> String {
    let library = std::env::var_os("REDIS_CELL").map(PathBuf::from);
    let library = library.expect("REDIS_CELL has to name a library: benches/build-redis-cell.sh builds one");
    library.canonicalize().expect("REDIS_CELL has to be there").display().to_string()
}

/// A server with redis-cell instead of the module.
pub fn with_redis_cell() -> ServerBuilder {
    Server::builder().without_module().option("loadmodule", redis_cell())
}

/// Seconds as release 0.5 counts them: whole milliseconds, rounded up.
fn seconds(ns: i64) -> i64 {
    (ns / MS + 999) / 1000
}

/// Sends `CL.THROTTLE` with arguments given as words.
pub fn throttle(client: &mut Connection, words: &str) -> Reply {
    fields(&client.say(&format!("CL.THROTTLE {words}")))
}

fn fields(reply: &Value) -> Reply {
    integers(reply).try_into().unwrap_or_else(|fields| panic!("not five fields: {fields:?}"))
}
