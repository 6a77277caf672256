//! Calls that wait their turn in the server.
//!
//! The [`Queue`] of the core says whose turn it is. This is the server's side: clients that are blocked ([`client`]),
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

mod client;
mod gone;
mod rights;
mod serve;
mod slots;
mod timer;
mod turn;

pub(super) use gone::UNLINK;
pub(super) use serve::{after_command, before_command, on_cron_loop, on_role_changed, watch};

use super::api::server;
use super::call::{Argument, Call, Decisions, OwnedString};
use super::clock::system_now_us;
use super::info;
use super::key::BucketKey;
use super::settings::MAX_WAITERS;
use super::spec::Spec;
use client::Client;
use redis_module::raw;
use std::collections::{BTreeMap, HashMap};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicPtr;
use std::sync::{Mutex, PoisonError};
use tokenbucket_core::error::{Error, Refusal};
use tokenbucket_core::queue::{Arrival, Db, Part, Queue};
use tokenbucket_core::request::Request;

/// Decides on the requests of a call. Errors become its reply.
type Decide<T> = for<'call> fn(Call<'call>, &[Request<Argument<'call>>]) -> Result<T, Refusal>;

/// How calls that wait are decided.
#[derive(Clone, Copy)]
pub(crate) struct Resume {
    /// Grants a call whose turn it is, or denies it if it cannot be granted any more; `None` if it is to go on waiting. If
    /// it is not [its turn](Call::is_its_turn), lets its buckets count on from a clock that stepped back, and nothing else.
    pub(crate) grant: Decide<Option<Decisions>>,
    /// Denies a call whose time is over, and writes nothing.
    pub(crate) deny: Decide<Decisions>,
}

/// The calls that wait, and their clients.
#[derive(Default)]
struct WaitingCalls {
    queue: Queue<OwnedString>,
    clients: BTreeMap<Arrival, NonNull<Client>>,
    /// Their arrivals by the server's handle.
    blocked: HashMap<usize, Arrival>,
    /// The server's timer, and when it fires, in Unix microseconds.
    timer: Option<(raw::RedisModuleTimerID, i64)>,
    /// When all buckets were last looked at because the server does not report that keys go, in Unix microseconds.
    polled_us: i64,
    /// When the clock was last looked at.
    seen_us: i64,
    /// By how much the clock was set back since.
    set_back_us: i64,
}

impl WaitingCalls {
    /// Notes by how much the clock was set back since it was last looked at, and returns it.
    fn look_at_clock(&mut self, now_us: i64) -> i64 {
        if self.queue.count() == 0 {
            (self.seen_us, self.set_back_us) = (now_us, 0);
        }
        let back_us = self.seen_us.saturating_sub(now_us).max(0);
        self.seen_us = now_us;
        self.set_back_us = self.set_back_us.saturating_add(back_us);
        back_us
    }
}

// SAFETY: the pointers are to clients and strings that the server keeps for us; only its main thread comes here.
unsafe impl Send for WaitingCalls {}

static CALLS: Mutex<Option<WaitingCalls>> = Mutex::new(None);

/// A context of the module's own, for what happens outside of commands; null until the module is loaded.
static CONTEXT: AtomicPtr<raw::RedisModuleCtx> = AtomicPtr::new(ptr::null_mut());

/// Works on the calls. Only the server's main thread comes here, and it never comes twice at the same time, except in [`gone`].
fn with_calls<T>(work: impl FnOnce(&mut WaitingCalls) -> T) -> T {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let calls = calls.get_or_insert_default();
    let result = work(calls);
    info::counters().set_waiting(calls.queue.count());
    result
}

/// Returns whether calls wait.
#[inline(always)]
pub(crate) fn is_any() -> bool {
    info::counters().waiting() > 0
}

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
    let Some((client, handle)) = Client::block(call, spec, requests, resume) else {
        return false;
    };
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

fn selected_db(context: *mut raw::RedisModuleCtx) -> Db {
    // SAFETY: the context is valid for the call.
    unsafe { server!(RedisModule_GetSelectedDb)(context) }
}

fn select_db(context: *mut raw::RedisModuleCtx, db: Db) {
    // SAFETY: the context is valid for the call. A database that there is no longer is not selected.
    unsafe { server!(RedisModule_SelectDb)(context, db) };
}
