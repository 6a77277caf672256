//! Ways to limit, each behind the same interface: one decision is a few exchanges with the server.

mod client_bucket;
mod fixed_window;
mod one_command;
mod places;
mod sliding_window;

pub use one_command::OneCommand;
pub use places::{Places, Then, COUNTER, SEMAPHORE};

use crate::arguments::Arguments;
use crate::template::Limit;
use anyhow::{bail, Context, Result};
use client_bucket::ClientBucket;
use one_command::{denies_by_one_or_below_zero, first_is_one, second_is_one};
use redis::{from_redis_value_ref, Connection, FromRedisValue, Pipeline, Value};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The module's decision.
pub const TAKE: &str = "TB.TAKE {key} {capacity} {rate}";
/// The script's decision.
pub const SCRIPT_TAKE: &str = "EVALSHA {script} 1 {key} {capacity} {tokens_s} {cost}";
/// Redis's own window counter, which Redis has from 8.8 on: it counts up to a bound, and only the first count of a window
/// sets its end.
pub const WINDOW_COUNT: &str = "INCREX {key} BYINT 1 UBOUND {capacity} PX {window_ms} ENX";

/// Every approach that the server knows.
pub fn all(arguments: &Arguments, has_increx: bool) -> Vec<Box<dyn Approach>> {
    let mut all: Vec<Box<dyn Approach>> = vec![
        Box::new(take(arguments)),
        Box::new(OneCommand::new("Lua token bucket", SCRIPT_TAKE, first_is_one)),
        Box::new(ClientBucket { is_watched: false }),
        Box::new(ClientBucket { is_watched: true }),
        Box::new(sliding_window::SlidingWindow),
        Box::new(fixed_window::FixedWindow),
    ];
    if has_increx {
        all.push(Box::new(OneCommand::new("INCREX fixed window", WINDOW_COUNT, second_is_one)));
    }
    for peer in &arguments.peers {
        let approach = OneCommand::new(&peer.label(), &peer.call, denies_by_one_or_below_zero);
        all.push(Box::new(approach.of_module(&peer.module)));
    }
    all
}

/// The module.
pub fn take(arguments: &Arguments) -> OneCommand {
    OneCommand::new("TB.TAKE", TAKE, first_is_one).of_module(&arguments.module)
}

/// Stores an integer for as long as a bucket would live, which limits nothing: the least that a call takes up.
pub fn integer_with_expiry() -> OneCommand {
    OneCommand::plain("SET with expiry", "SET {key} 1 PX {window_ms}")
}

/// A way to limit.
pub trait Approach {
    fn name(&self) -> &str;

    /// The module that the server has to have.
    fn module(&self) -> Option<&Path> {
        None
    }

    /// Whether it keeps to whatever limit it is given.
    fn has_any_limit(&self) -> bool {
        true
    }

    /// A client that decides one at a time.
    fn client(&self, number: usize, limit: Limit) -> Box<dyn Client>;
}

/// The steps of one client.
pub trait Client {
    /// Writes the first commands of a decision.
    fn begin(&mut self, key: &str, batch: &mut Pipeline);

    /// Makes of the replies either a decision or the next commands.
    fn proceed(&mut self, replies: &[Value], key: &str, batch: &mut Pipeline) -> Result<Step>;
}

/// Where a decision stands after an exchange.
pub enum Step {
    /// The batch has the next commands.
    Ask,
    /// Another was faster; the batch has the commands of a new try.
    Retry,
    Decided {
        allowed: bool,
    },
    /// Too many tries.
    GaveUp,
}

/// Makes one decision, step by step; whether it allowed.
pub fn decide(connection: &mut Connection, client: &mut dyn Client, key: &str) -> Result<bool> {
    let mut batch = Pipeline::new();
    client.begin(key, &mut batch);
    loop {
        let replies: Vec<Value> = batch.query(connection)?;
        batch.clear();
        match client.proceed(&replies, key, &mut batch)? {
            Step::Ask | Step::Retry => {}
            Step::Decided { allowed } => return Ok(allowed),
            Step::GaveUp => bail!("a decision was given up although nobody was in its way"),
        }
    }
}

/// The last of several replies.
fn last<T: FromRedisValue>(replies: &[Value]) -> Result<T> {
    Ok(from_redis_value_ref(replies.last().context("no reply")?)?)
}

/// The time of a client, in Unix microseconds.
fn client_now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros().try_into().unwrap_or(u64::MAX)
}
