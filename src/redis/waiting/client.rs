//! A client that is blocked while its call waits.

use super::super::api::server;
use super::super::call::{Argument, Call, Decisions, OwnedString};
use super::super::clock::system_now_us;
use super::super::info;
use super::super::spec::Spec;
use super::{rights, select_db, selected_db, slots, timer, with_calls, Resume, CONTEXT};
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::queue::{Arrival, Db};
use tokenbucket_core::request::Request;

/// What its reply callback says: go on waiting.
const NOT_SERVED: c_int = 1;

/// The reply that ends a wait.
pub(super) enum Answer {
    Decided(Decisions),
    Error(String),
}

impl Answer {
    pub(super) fn is_granted(&self) -> bool {
        matches!(self, Self::Decided(decisions) if decisions.binding.allowed != 0)
    }
}

/// A client whose call waits. It belongs to the server, which gives it back to [`on_free`].
pub(super) struct Client {
    pub(super) db: Db,
    pub(super) handle: *mut raw::RedisModuleBlockedClient,
    arguments: Vec<OwnedString>,
    /// What it wants, by its arguments.
    requests: Box<[Request<OwnedString>]>,
    spec: &'static Spec,
    user: Option<OwnedString>,
    /// The client of a cluster asked a node that is importing the slot.
    pub(super) is_asking: bool,
    resume: Resume,
    pub(super) answer: Option<Answer>,
}

impl Client {
    /// Blocks the client of a call; `None` if the server does not. Returns the server's handle too.
    pub(super) fn block(
        call: &Call,
        spec: &'static Spec,
        requests: Box<[Request<OwnedString>]>,
        resume: Resume,
    ) -> Option<(NonNull<Self>, usize)> {
        let mut client = Box::new(Self {
            db: selected_db(call.context),
            handle: std::ptr::null_mut(),
            arguments: call.arguments().iter().map(Argument::retain).collect(),
            requests,
            spec,
            user: rights::current_user(call.context),
            is_asking: false,
            resume,
            answer: None,
        });
        let key = client.keys().next()?.clone();
        client.is_asking = slots::is_asked(CONTEXT.load(Ordering::Relaxed), &key);
        let blocked_on = seldom_created(key.as_ref()).unwrap_or(key);
        let client = NonNull::from(Box::leak(client));
        let mut keys = [blocked_on.0];
        // SAFETY: the context is valid for the call; the server takes a reference to the key. The client stays where it
        // is until `on_free`, which comes once, and only if there is a handle.
        unsafe {
            let handle = server!(RedisModule_BlockClientOnKeys)(
                call.context,
                Some(on_key),
                Some(on_end),
                Some(on_free),
                0,
                keys.as_mut_ptr(),
                1,
                client.as_ptr().cast(),
            );
            if handle.is_null() {
                drop(Box::from_raw(client.as_ptr()));
                return None;
            }
            server!(RedisModule_SetDisconnectCallback)(handle, Some(on_disconnect));
            (*client.as_ptr()).handle = handle;
            Some((client, handle as usize))
        }
    }

    /// Grants the call, if its turn has come and its user may still call the command; `None` if it goes on waiting.
    pub(super) fn grant(&self, context: *mut raw::RedisModuleCtx, now_us: i64) -> Option<Answer> {
        let refusal = |user| rights::refusal(user, self.spec, &self.arguments);
        if let Some(refusal) = self.user.as_ref().and_then(refusal) {
            return Some(Answer::Error(refusal));
        }
        self.decide(context, now_us, |call, requests| (self.resume.grant)(call.in_turn(), requests))
    }

    /// Lets the buckets of the call count on from a clock that stepped back.
    pub(super) fn follow_clock(&self, context: *mut raw::RedisModuleCtx, now_us: i64) {
        self.decide(context, now_us, self.resume.grant);
    }

    /// Denies the call.
    pub(super) fn deny(&self, context: *mut raw::RedisModuleCtx, now_us: i64) -> Option<Answer> {
        self.decide(context, now_us, |call, requests| (self.resume.deny)(call, requests).map(Some))
    }

    /// Returns the keys of the call.
    pub(super) fn keys(&self) -> impl Iterator<Item = &OwnedString> {
        self.requests.iter().map(|request| &request.key)
    }

    fn decide(
        &self,
        context: *mut raw::RedisModuleCtx,
        now_us: i64,
        decide: impl for<'call> FnOnce(
            Call<'call>,
            &[Request<Argument<'call>>],
        ) -> Result<Option<Decisions>, Refusal>,
    ) -> Option<Answer> {
        select_db(context, self.db);
        let requests: Vec<_> =
            self.requests.iter().map(|request| request.map(OwnedString::argument)).collect();
        match decide(Call::resumed(context, now_us), &requests) {
            Ok(decisions) => decisions.map(Answer::Decided),
            Err(refusal) => {
                info::counters().error();
                Some(Answer::Error(refusal.line(&self.spec.syntax(), &self.arguments)))
            }
        }
    }
}

/// The longest key for which another one is made.
const LONGEST_KEY: usize = 1024;

/// Returns a key in the slot of `key` that no client is likely to create, if there is one.
///
/// When a key is created, the server walks all clients that are blocked on it, and the bucket of a mutex is created at each
/// grant. Servers want a key that is in the slot of the call, and need not exist.
fn seldom_created(key: &[u8]) -> Option<OwnedString> {
    let closing =
        |from: usize| key.iter().skip(from).position(|byte| *byte == b'}').map(|at| at.saturating_add(from));
    let opening = key.iter().position(|byte| *byte == b'{');
    let tag =
        opening.and_then(|at| key.get(at.saturating_add(1)..closing(at)?)).filter(|tag| !tag.is_empty());
    // Without a tag the slot is that of the whole key, which can be a tag if nothing in it ends one.
    let tag = tag
        .or(Some(key))
        .filter(|tag| !tag.is_empty() && !tag.contains(&b'}') && tag.len() <= LONGEST_KEY)?;
    Some(OwnedString::new(&[b"{", tag, b"} calls wait for tokens"].concat()))
}

/// Goes on waiting when the key is created on which the client is blocked for the server.
unsafe extern "C" fn on_key(
    _context: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    NOT_SERVED
}

/// Replies when a client is served, or by `CLIENT UNBLOCK`, which ends its wait as if its time were over.
unsafe extern "C" fn on_end(
    context: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the server passes what it was given in `block`, and has not given back to `on_free`.
    let client = unsafe {
        let data = server!(RedisModule_GetBlockedClientPrivateData)(context);
        match data.cast::<Client>().as_mut() {
            Some(client) => client,
            None => return 0,
        }
    };
    let now_us = system_now_us();
    let answer = client.answer.take().or_else(|| {
        leave(client.handle);
        info::counters().wait_ended(false);
        client.deny(CONTEXT.load(Ordering::Relaxed), now_us)
    });
    let call = Call::resumed(context, now_us);
    match answer {
        Some(Answer::Decided(decisions)) => client.spec.reply(&call, &decisions),
        Some(Answer::Error(line)) => call.reply_error(&line),
        None => {}
    }
    0
}

/// Ends the wait when a client goes away, is killed, or is unblocked with an error.
unsafe extern "C" fn on_disconnect(
    _context: *mut raw::RedisModuleCtx,
    handle: *mut raw::RedisModuleBlockedClient,
) {
    if leave(handle).is_some() {
        info::counters().wait_ended(false);
    }
}

/// Frees a client that was blocked, once, when the server has done with it.
unsafe extern "C" fn on_free(_context: *mut raw::RedisModuleCtx, data: *mut c_void) {
    if let Some(client) = NonNull::new(data.cast::<Client>()) {
        // SAFETY: made in `block`, and forgotten by the server now.
        let client = unsafe { Box::from_raw(client.as_ptr()) };
        leave(client.handle);
    }
}

/// Takes a client out of the queue, if it is there. Those that it kept are served soon.
fn leave(handle: *mut raw::RedisModuleBlockedClient) -> Option<Arrival> {
    let arrival = with_calls(|calls| {
        let arrival = calls.blocked.remove(&(handle as usize))?;
        calls.clients.remove(&arrival);
        calls.queue.leave(arrival);
        Some(arrival)
    })?;
    timer::arm(system_now_us(), 0);
    Some(arrival)
}
