//! Calls that wait their turn in the server.
//!
//! The [`Queue`] of the core decides which call is next. This is the server's side: blocked clients ([`client`], [`block`]),
//! what the server reports ([`events`]), and serving by one timer for all ([`serve`], [`mod@slice`]). No command serves: a command
//! that makes room starts the timer, which fires in the same round of the server's loop. Until then the calls are due, and no
//! other call takes what they want.
//!
//! # What servers need
//!
//! - A client is blocked on a key in the slot of its call, without the server's timeout, and is served by `UnblockClient`.
//!   Otherwise a client that is served in the turn in which it times out gets no reply (6.0 to 7.0), or crashes the
//!   server (7.2.4); and no version redirects it when its slot moves.
//! - The command that blocks a client must not unblock it: that crashes the server (7.2).
//! - The callbacks of a removed key write nothing: replicas would receive the write before the `DEL`. They mark the bucket,
//!   and the timer serves.
//! - The timer writes nothing while clients are paused: that crashes the server.

mod block;
mod calls;
mod client;
mod events;
mod serve;
mod slice;
mod slots;

pub(crate) use calls::is_any;
pub(crate) use client::Resume;
pub(super) use events::{
    after_command, before_command, on_cron_loop, on_role_changed, unlink, unlink_in_db, watch,
};

use super::api::selected_db;
use super::call::{Argument, Call, OwnedString};
use super::clock::system_now_us;
use super::key::BucketKey;
use super::settings::MAX_WAITERS;
use super::spec::Spec;
use super::COUNTERS;
use calls::{with_calls, CONTEXT};
use client::Client;
use redis_module::raw;
use slice::Slice;
use std::sync::atomic::Ordering;
use tokenbucket_core::bucket::Limit;
use tokenbucket_core::queue::{Db, Queue};
use tokenbucket_core::request::Waiting;

/// Returns whether a call may wait: not in a transaction, a script, on a replica, where its slot cannot be checked, or if
/// too many calls wait already.
pub(crate) fn is_possible(call: &Call) -> bool {
    let denying = raw::REDISMODULE_CTX_FLAGS_MULTI
        | raw::REDISMODULE_CTX_FLAGS_LUA
        | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
        | raw::REDISMODULE_CTX_FLAGS_SLAVE;
    call.flags() & denying == 0 && slots::are_known(call.context) && COUNTERS.has_room(MAX_WAITERS.count())
}

/// Blocks the client of a call, and keeps its requests. False if the server refuses.
pub(crate) fn enter(call: &Call, spec: &'static Spec, waiting: &Waiting<Argument>, resume: Resume) -> bool {
    let db = selected_db(call.context);
    let share = waiting.share.as_ref().map(|share| share.map(Argument::retain));
    let requests: Box<[_]> = waiting.requests.iter().map(|request| request.map(Argument::retain)).collect();
    let queued = requests.to_vec();
    let client = Client::new(call, CONTEXT.load(Ordering::Relaxed), spec, requests, resume);
    let Some(mut client) = block::block(call, client) else { return false };
    with_calls(|calls| {
        calls.look_at_clock(system_now_us());
        // All deadlines will move back by this. This one must not.
        let from_us = call.now_us().saturating_add(calls.set_back_us);
        let deadline_us = from_us.saturating_add(waiting.max_wait_ms.saturating_mul(1000));
        let mut levels = Slice::within(call);
        let arrival = calls.queue.enter(db, queued, deadline_us, share, &mut levels);
        calls.clients.insert(arrival, client);
        // SAFETY: the server keeps the client until `on_free`, and does not use it now.
        unsafe { client.as_mut() }.arrival = arrival;
    });
    true
}

/// Returns the micro-tokens of a bucket that waiting calls want before a new call, which takes `micro` under `limit`; `None` if
/// it may proceed.
pub(crate) fn wanted_before(key: &BucketKey, limit: &Limit, micro: i64) -> Option<i64> {
    with_queue(key, |queue, db, name| queue.wanted_before(db, name, &slice::seen(key), limit, micro))
}

/// Returns how many calls of each tenant wait for a bucket, the largest number first, if calls have shares there: at most ten.
pub(crate) fn tenants(key: &BucketKey) -> Vec<(Vec<u8>, usize)> {
    with_queue(key, |queue, db, name| shown(queue, Some((db, name))))
}

/// Returns how many calls of each tenant wait for all buckets, like [`tenants`].
pub(super) fn all_tenants() -> Vec<(Vec<u8>, usize)> {
    with_calls(|calls| shown(&calls.queue, None))
}

/// The most tenants that are shown.
const SHOWN_TENANTS: usize = 10;

fn shown(queue: &Queue<OwnedString>, key: Option<(Db, &[u8])>) -> Vec<(Vec<u8>, usize)> {
    let name = |tenant: Option<&OwnedString>| tenant.map_or_else(Vec::new, |name| name.as_ref().to_vec());
    let tenants = queue.tenants(key, SHOWN_TENANTS).into_iter();
    tenants.map(|(tenant, calls)| (name(tenant), calls)).collect()
}

/// Notes that a call under `limit` has changed a bucket, and its hold `hold_id`, if given, and whether it took tokens.
pub(crate) fn mark(key: &BucketKey, hold_id: Option<&[u8]>, limit: &Limit, has_taken: bool) {
    with_queue(key, |queue, db, name| {
        match has_taken {
            true => queue.mark_taken(db, name, limit),
            false => queue.mark(db, name),
        }
        hold_id.into_iter().for_each(|id| queue.mark_hold(db, name, id));
    });
}

/// Notes that a command which serves no calls replaces a bucket. The timer serves them.
pub(crate) fn mark_replaced(key: &BucketKey) {
    with_queue(key, |queue, db, name| queue.mark_gone(Some(db), Some(name)));
    slice::arm(system_now_us(), 0);
}

fn with_queue<T>(key: &BucketKey, work: impl FnOnce(&mut Queue<OwnedString>, Db, &[u8]) -> T) -> T {
    let db = selected_db(key.call().context);
    with_calls(|calls| work(&mut calls.queue, db, key.name().as_ref()))
}
