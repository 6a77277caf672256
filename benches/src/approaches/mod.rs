//! Ways to limit: one decision is a few exchanges with the server.

mod client_bucket;
mod local;
mod places;

pub use local::Memory;
pub use places::{Places, COUNTER};

use crate::client::Client;
use crate::server::{redis_cell, Module, CELL_NAME};
use redis::{from_redis_value, from_redis_value_ref, RedisResult};

/// The module's decision.
pub const TAKE: &str = "TB.TAKE {key} {capacity} {rate}";
/// The decision of the script that people copy.
pub const SCRIPT_TAKE: &str = "EVALSHA {token-bucket} 1 {key} {capacity} {tokens_s} 1";
/// The decision of the script that clients have for servers without the module.
pub const FALLBACK_TAKE: &str = "EVALSHA {fallback} 1 {key} TAKE {capacity} {rate}";
/// Redis's own window counter, which Redis has from 8.8 on: it counts up to a bound, and only the first count of a window
/// sets its end.
pub const WINDOW_COUNT: &str = "INCREX {key} BYINT 1 UBOUND {capacity} PX {window_ms} ENX";
/// The decision of redis-cell.
pub const CELL_THROTTLE: &str = "CL.THROTTLE {key} {burst} {count} {period_s}";

/// A way to limit.
pub struct Approach {
    pub name: String,
    /// What the server has to have.
    pub module: Module,
    way: Way,
}

enum Way {
    /// One command, and the place and the value of the number in its reply by which it allows. A plain command allows
    /// whatever it replies.
    Command {
        call: &'static str,
        allows: Option<(usize, i64)>,
    },
    ClientBucket {
        is_watched: bool,
    },
    FixedWindow,
    SlidingWindow,
    InBatches,
    RememberingDenials,
    Places(Places),
}

/// Every approach that the server knows.
pub fn all(has_increx: bool) -> Vec<Approach> {
    let of_clients = |name: &str, way| Approach { name: name.to_owned(), module: Module::None, way };
    let mut all = vec![
        take(),
        command("Lua token bucket", Module::None, SCRIPT_TAKE, Some((0, 1))),
        command("clients/fallback.lua", Module::None, FALLBACK_TAKE, Some((0, 1))),
        of_clients("read, compute, write", Way::ClientBucket { is_watched: false }),
        of_clients("WATCH / MULTI / EXEC", Way::ClientBucket { is_watched: true }),
        of_clients("sorted-set sliding window", Way::SlidingWindow),
        of_clients("INCR + EXPIRE fixed window", Way::FixedWindow),
    ];
    if has_increx {
        // It replies the count, and by how much that went up.
        all.push(command("INCREX fixed window", Module::None, WINDOW_COUNT, Some((1, 1))));
    }
    if redis_cell().is_some() {
        all.push(command(&CELL_NAME, Module::RedisCell, CELL_THROTTLE, Some((0, 0))));
    }
    all
}

/// The module.
pub fn take() -> Approach {
    command("TB.TAKE", Module::Own, TAKE, Some((0, 1)))
}

/// The module, asked for many tokens at once.
pub fn in_batches() -> Approach {
    let name = format!("TB.TAKEUPTO in batches of {}", local::BATCH);
    Approach { name, module: Module::Own, way: Way::InBatches }
}

/// The module, not asked again before it would allow.
pub fn remembering_denials() -> Approach {
    Approach {
        name: "TB.TAKE, denials remembered".to_owned(),
        module: Module::Own,
        way: Way::RememberingDenials,
    }
}

/// A plain command, which limits nothing: the floor of what a call costs.
pub fn get() -> Approach {
    command("GET", Module::None, "GET {key}", None)
}

/// Stores an integer for as long as a bucket would live, which limits nothing: the least that a call takes up.
pub fn integer_with_expiry() -> Approach {
    command("SET with expiry", Module::None, "SET {key} 1 PX {window_ms}", None)
}

fn command(name: &str, module: Module, call: &'static str, allows: Option<(usize, i64)>) -> Approach {
    Approach { name: name.to_owned(), module, way: Way::Command { call, allows } }
}

impl Approach {
    /// Makes one decision; whether it allowed. Fails if the server replies an error, or if it is given up.
    pub async fn decide(&self, client: &mut Client, key: &str) -> RedisResult<bool> {
        client.begin();
        match &self.way {
            Way::Command { call, allows } => {
                let mut replies = client.ask(&[call], key).await?;
                let Some((place, number)) = *allows else { return Ok(true) };
                let numbers: Vec<i64> = from_redis_value(replies.remove(0))?;
                Ok(numbers[place] == number)
            }
            Way::ClientBucket { is_watched: false } => client_bucket::unwatched(client, key).await,
            Way::ClientBucket { is_watched: true } => client_bucket::watched(client, key).await,
            Way::FixedWindow => fixed_window(client, key).await,
            Way::SlidingWindow => sliding_window(client, key).await,
            Way::InBatches => local::in_batches(client, key).await,
            Way::RememberingDenials => local::remembering_denials(client, key).await,
            Way::Places(places) => places.decide(client, key).await,
        }
    }
}

/// INCR, and EXPIRE if it was the first of a window.
async fn fixed_window(client: &mut Client, key: &str) -> RedisResult<bool> {
    let count = client.ask_number("INCR {key}", key).await?;
    if count == 1 {
        client.ask(&["PEXPIRE {key} {window_ms}"], key).await?;
    }
    Ok(count <= client.limit.capacity as i64)
}

/// A sorted set that holds one member for each decision of the last window.
async fn sliding_window(client: &mut Client, key: &str) -> RedisResult<bool> {
    let member = client.short_id();
    let log = format!("ZADD {{key}} {{now_us}} {member} ; ZCARD {{key}} ; PEXPIRE {{key}} {{window_ms}}");
    let forget = "ZREMRANGEBYSCORE {key} -inf {window_begin_us}";
    let replies = client.ask(&["MULTI", forget, &log, "EXEC"], key).await?;
    let (_, _, count, _): (u64, u64, u64, u64) = from_redis_value_ref(&replies[replies.len() - 1])?;
    let is_allowed = count <= client.limit.capacity;
    if !is_allowed {
        // What was denied must not count against the next.
        client.ask(&[&format!("ZREM {{key}} {member}")], key).await?;
    }
    Ok(is_allowed)
}
