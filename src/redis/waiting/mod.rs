//! Calls that wait their turn in the server.
//!
//! The [`Queue`] of the core says whose turn it is. This is the server's side: clients that are blocked ([`client`], [`block`]),
//! and when they are served ([`serve`]): before and after each write command of the module, and by one timer for all.
//!
//! # What servers need
//!
//! - A client is blocked on a key in the slot of its call, without a time-out of the server's, and is served by `UnblockClient`. Blocked
//!   otherwise, a client that is served in the turn in which its time is over gets no reply (6.0 to 7.0), or ends the
//!   server (7.2.4); and no version sends it elsewhere when its slot moves.
//! - Nothing is written from the callbacks of a key that goes: the write would stand before the `DEL` in the stream of
//!   replicas. They mark the bucket, and a timer serves.
//! - Nothing is written by the timer while clients are paused: that ends the server.

mod block;
mod calls;
mod client;
mod gone;
mod rights;
mod serve;
mod slots;
mod timer;
mod turn;

pub(crate) use calls::is_any;
pub(crate) use client::Resume;
pub(super) use gone::UNLINK;
pub(super) use serve::{after_command, before_command, on_cron_loop, on_role_changed, watch};

use super::api::selected_db;
use super::call::{Argument, Call, OwnedString};
use super::clock::system_now_us;
use super::info;
use super::key::BucketKey;
use super::settings::MAX_WAITERS;
use super::spec::Spec;
use calls::{with_calls, CONTEXT};
use client::Client;
use redis_module::raw;
use std::sync::atomic::Ordering;
use tokenbucket_core::error::Error;
use tokenbucket_core::queue::{Db, Part, Queue};
use tokenbucket_core::request::Request;

/// Returns whether a call may wait: not in a transaction, a script, or on a replica.
///
/// # Errors
/// [`Error::TooManyWaiters`].
pub(crate) fn is_possible(call: &Call) -> Result<bool, Error> {
    let denying = raw::REDISMODULE_CTX_FLAGS_MULTI
        | raw::REDISMODULE_CTX_FLAGS_LUA
        | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
        | raw::REDISMODULE_CTX_FLAGS_SLAVE;
    if call.flags() & denying != 0 {
        return Ok(false);
    }
    if info::counters().waiting() >= MAX_WAITERS.count() {
        return Err(Error::TooManyWaiters);
    }
    Ok(true)
}

/// Lets a call wait for at most `max_wait_ms`, and keeps its requests. False if the server does not block its client.
pub(crate) fn enter(
    call: &Call,
    spec: &'static Spec,
    requests: &[Request<Argument>],
    max_wait_ms: i64,
    resume: Resume,
) -> bool {
    let db = selected_db(call.context);
    let requests: Box<[_]> = requests.iter().map(|request| request.map(Argument::retain)).collect();
    let parts = requests.iter().map(Part::of).collect();
    let client = Client::new(call, CONTEXT.load(Ordering::Relaxed), spec, requests, resume);
    let Some((client, handle)) = block::block(call, client) else { return false };
    with_calls(|calls| {
        calls.look_at_clock(system_now_us());
        // All deadlines move by as much as the clock was set back, which this one is not to.
        let from_us = call.now_us().saturating_add(calls.set_back_us);
        let deadline_us = from_us.saturating_add(max_wait_ms.saturating_mul(1000));
        let arrival = calls.queue.enter(db, parts, deadline_us);
        calls.clients.insert(arrival, client);
        calls.blocked.insert(handle, arrival);
    });
    true
}

/// Returns micro-tokens that waiting calls want of a bucket before a call may take any, which came later.
pub(crate) fn wanted_before(key: &BucketKey) -> Option<i64> {
    with_queue(key, |queue, db, name| queue.wanted_before(db, name, &turn::seen(key)))
}

/// Notes that a bucket has changed, and with it the hold `hold_id`, if one has.
pub(crate) fn mark(key: &BucketKey, hold_id: Option<&[u8]>) {
    with_queue(key, |queue, db, name| match hold_id {
        Some(id) => queue.mark_hold(db, name, id),
        None => queue.mark(db, name),
    });
}

/// Notes that a key is about to hold another bucket, by a command that serves no calls itself: the timer does.
pub(crate) fn mark_replaced(key: &BucketKey) {
    with_queue(key, |queue, db, name| queue.mark_gone(Some(db), Some(name)));
    timer::arm(key.call().now_us(), 0);
}

fn with_queue<T>(key: &BucketKey, work: impl FnOnce(&mut Queue<OwnedString>, Db, &[u8]) -> T) -> T {
    let db = selected_db(key.call().context);
    with_calls(|calls| work(&mut calls.queue, db, key.name().as_ref()))
}
