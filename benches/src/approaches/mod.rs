//! Ways to limit: one decision is a few exchanges with the server.

mod by_clients;

use crate::client::Client;
use crate::server::{Module, CELL_NAME};
use crate::throttlecrab::THROTTLECRAB_NAME;
use redis::{from_redis_value_ref, RedisResult, Value};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub const TAKE: &str = "TB.TAKE {key} {capacity} {rate}";
/// The decision of the script that people copy.
pub const SCRIPT_TAKE: &str = "EVALSHA {token-bucket} 1 {key} {capacity} {tokens_s} 1";
/// The decision of the script that clients have for servers without the module.
pub const FALLBACK_TAKE: &str = "EVALSHA {fallback} 1 {key} TAKE {capacity} {rate}";
/// Redis's own window counter, which Redis has from 8.8 on: it counts up to a bound, and only the first count of a window
/// sets its end.
pub const WINDOW_COUNT: &str = "INCREX {key} BYINT 1 UBOUND {capacity} PX {window_ms} ENX";
pub const CELL_THROTTLE: &str = "CL.THROTTLE {key} {burst} {count} {period_s}";

/// A way to limit, or to hold one of so many places for as long as something lasts: the window of the limit.
#[derive(Clone, Copy)]
pub struct Approach {
    pub name: &'static str,
    /// What the server has to have.
    pub module: Module,
    way: Way,
    /// What is asked, where commands decide.
    ask: &'static str,
    /// Sent by whoever counts to one.
    at_one: &'static str,
    /// Sent by whoever counts too high.
    take_back: &'static str,
    /// How a place is given back.
    give_back: &'static str,
    /// Exchanges with the server for which a place is held.
    work: u32,
}

/// How many clients hold a place now, and the most that did: from the reply that gives it until the command that gives it
/// back, so never more than the server has given.
static IN_FLIGHT: AtomicU64 = AtomicU64::new(0);
static MOST_IN_FLIGHT: AtomicU64 = AtomicU64::new(0);

/// The most places that were in flight at once since this was last asked.
pub fn most_in_flight() -> u64 {
    MOST_IN_FLIGHT.swap(0, Relaxed)
}

#[derive(Clone, Copy)]
enum Way {
    /// One command, whatever it replies.
    Plain,
    /// One command allows by the number at this place of its reply.
    Number(usize, u64),
    /// A count up to the capacity allows: which reply has it, and at which place.
    Count(usize, usize),
    ReadComputeWrite,
    Watch,
    InBatches,
    RememberingDenials,
}

const fn approach(name: &'static str, module: Module, way: Way, ask: &'static str) -> Approach {
    Approach { name, module, way, ask, at_one: "", take_back: "", give_back: "", work: 0 }
}

/// The module.
pub const OWN: Approach = approach("TB.TAKE", Module::Own, Way::Number(0, 1), TAKE);
/// The module, asked for many tokens at once.
pub const IN_BATCHES: Approach = approach(
    "TB.TAKEUPTO in batches of 100",
    Module::Own,
    Way::InBatches,
    "TB.TAKEUPTO {key} {capacity} {rate} 100",
);
/// The module, not asked again before it would allow.
pub const REMEMBERING: Approach =
    approach("TB.TAKE, denials remembered", Module::Own, Way::RememberingDenials, TAKE);
/// A plain command, which limits nothing: the floor of what a call costs.
pub const GET: Approach = approach("GET", Module::None, Way::Plain, "GET {key}");
/// Stores an integer for as long as a bucket would live, which limits nothing: the least that a call takes up.
pub const INTEGER_WITH_EXPIRY: Approach =
    approach("SET with expiry", Module::None, Way::Plain, "SET {key} 1 PX {window_ms}");
const SET_THE_WINDOW: &str = "PEXPIRE {key} {window_ms}";

/// A server that does nothing but limit.
pub fn throttlecrab() -> Approach {
    let throttle = "THROTTLE {key} {capacity} {count} {period_s}";
    approach(&THROTTLECRAB_NAME, Module::ThrottleCrab, Way::Number(0, 1), throttle)
}

/// Every approach on Redis.
pub fn all() -> [Approach; 9] {
    let plain = |name, way, ask| approach(name, Module::None, way, ask);
    // A sorted set that holds one member for each decision of the last window.
    let log = "MULTI ; ZREMRANGEBYSCORE {key} -inf {window_begin_us} ; ZADD {key} {now_us} {id} ; \
               ZCARD {key} ; PEXPIRE {key} {window_ms} ; EXEC";
    let sliding = plain("sorted-set sliding window", Way::Count(5, 2), log);
    let fixed = plain("INCR + EXPIRE fixed window", Way::Count(0, 0), "INCR {key}");
    [
        OWN,
        plain("Lua token bucket", Way::Number(0, 1), SCRIPT_TAKE),
        plain("clients/fallback.lua", Way::Number(0, 1), FALLBACK_TAKE),
        plain("read, compute, write", Way::ReadComputeWrite, ""),
        plain("WATCH / MULTI / EXEC", Way::Watch, ""),
        // What was denied must not count against the next.
        Approach { take_back: "ZREM {key} {id}", ..sliding },
        Approach { at_one: SET_THE_WINDOW, ..fixed },
        // It replies the count, and by how much that went up.
        plain("INCREX fixed window", Way::Number(1, 1), WINDOW_COUNT),
        approach(&CELL_NAME, Module::RedisCell, Way::Number(0, 0), CELL_THROTTLE),
    ]
}

/// All ways to hold a place, the module's first, then what all are compared with, by which it is held during so many exchanges with the server. A decision
/// is to be given a place and to give it back.
pub fn places(work: u32) -> [Approach; 4] {
    let named = |approach, give_back| Approach { give_back, work, ..approach };
    let counted = |name, ask| {
        let counter = approach(name, Module::None, Way::Count(0, 0), ask);
        named(Approach { take_back: "DECR {key}", ..counter }, "DECR {key}")
    };
    let hold = "TB.HOLD {key} {capacity} 0 1 {window_ms} {uuid}";
    let hold = approach("TB.HOLD / TB.SETTLE", Module::Own, Way::Number(0, 1), hold);
    let script = "EVALSHA {semaphore} 1 {key} {now_ms} {window_ms} {capacity} {uuid}";
    let script = approach("sorted-set semaphore in Lua", Module::None, Way::Number(0, 1), script);
    [
        named(hold, "TB.SETTLE {key} {capacity} 0 {uuid} 0"),
        counted("INCR / DECR, EXPIRE by each", "INCR {key} ; PEXPIRE {key} {window_ms}"),
        Approach { at_one: SET_THE_WINDOW, ..counted("INCR / DECR, EXPIRE by the first", "INCR {key}") },
        named(script, "ZREM {key} {uuid}"),
    ]
}

/// Ways to wait for a place: the module's, which is asked once, and those that are asked again and again.
pub fn waits() -> [Approach; 3] {
    let [hold, _, _, script] = places(0);
    let ask = "TB.BHOLD {key} {capacity} 0 1 {window_ms} {uuid} 600000";
    [
        Approach { name: "TB.BHOLD", ask, ..hold },
        Approach { name: "TB.HOLD every 10 ms", ..hold },
        Approach { name: "sorted-set semaphore every 10 ms", ..script },
    ]
}

impl Approach {
    /// Gives back a place that was kept.
    pub async fn give_back(&self, client: &mut Client, key: &str) {
        client.ask(&[self.give_back], key).await.unwrap();
    }

    /// Makes one decision; whether it allowed. Fails if the server replies an error, or if it is given up.
    pub async fn decide(&self, client: &mut Client, key: &str) -> RedisResult<bool> {
        match self.way {
            Way::ReadComputeWrite => by_clients::read_compute_write(client, key).await,
            Way::Watch => by_clients::watch(client, key).await,
            Way::InBatches => by_clients::in_batches(client, self.ask, key).await,
            Way::RememberingDenials => by_clients::remembering_denials(client, self.ask, key).await,
            _ if self.give_back.is_empty() => self.keep(client, key).await,
            _ => self.hold(client, key).await,
        }
    }

    /// Takes a place, works, and gives it back; whether there was one.
    async fn hold(&self, client: &mut Client, key: &str) -> RedisResult<bool> {
        let Some(mut unsent) = self.ask(client, key).await? else { return Ok(false) };
        MOST_IN_FLIGHT.fetch_max(IN_FLIGHT.fetch_add(1, Relaxed) + 1, Relaxed);
        for _ in 0..self.work {
            client.ask(&[std::mem::take(&mut unsent), "PING"], key).await?;
        }
        IN_FLIGHT.fetch_sub(1, Relaxed);
        client.ask(&[unsent, self.give_back], key).await?;
        Ok(true)
    }

    /// Gives nothing back, as who dies holding a place does not; whether it was allowed.
    pub async fn keep(&self, client: &mut Client, key: &str) -> RedisResult<bool> {
        let Some(unsent) = self.ask(client, key).await? else { return Ok(false) };
        client.ask(&[unsent], key).await?;
        Ok(true)
    }

    /// What the next exchange has to begin with, if the commands allow.
    async fn ask(&self, client: &mut Client, key: &str) -> RedisResult<Option<&'static str>> {
        client.decisions += 1;
        let replies = client.ask(&[self.ask], key).await?;
        let number = |reply: usize, place: usize| match &replies[reply] {
            Value::Array(fields) => from_redis_value_ref(&fields[place]),
            count => from_redis_value_ref(count),
        };
        match self.way {
            Way::Number(place, allows) => Ok((number(0, place)? == allows).then_some("")),
            Way::Count(reply, place) => {
                let count: u64 = number(reply, place)?;
                if count <= client.limit.capacity {
                    return Ok(Some(if count == 1 { self.at_one } else { "" }));
                }
                client.ask(&[self.take_back], key).await?;
                Ok(None)
            }
            _ => Ok(Some("")),
        }
    }
}
