//! Blocks the client of a call, and handles the server's callbacks until the client is freed.

use super::super::api::server;
use super::super::call::{Call, OwnedString};
use super::super::clock::system_now_us;
use super::super::COUNTERS;
use super::calls::{with_calls, CONTEXT};
use super::client::Client;
use super::slice::arm;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

/// The result of a reply callback that leaves the client blocked.
const NOT_SERVED: c_int = 1;

/// Blocks the client of a call, which belongs to the server from then on, until [`on_free`]; `None` if the server refuses.
pub(super) fn block(call: &Call, client: Client) -> Option<NonNull<Client>> {
    let key = client.keys().next()?.clone();
    let blocked_on = seldom_created(key.as_ref()).unwrap_or(key);
    let client = NonNull::from(Box::leak(Box::new(client)));
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
        Some(client)
    }
}

/// The longest key that is replaced.
const LONGEST_KEY: usize = 1024;

/// Returns a key in the slot of `key` that clients are unlikely to create, if there is one.
///
/// When a key is created, the server walks all clients that are blocked on it, and the bucket of a mutex is created at each
/// grant. Servers need a key in the slot of the call, which need not exist.
fn seldom_created(key: &[u8]) -> Option<OwnedString> {
    let closing =
        |from: usize| key.iter().skip(from).position(|byte| *byte == b'}').map(|at| at.saturating_add(from));
    let opening = key.iter().position(|byte| *byte == b'{');
    let tag =
        opening.and_then(|at| key.get(at.saturating_add(1)..closing(at)?)).filter(|tag| !tag.is_empty());
    // Without a tag the whole key decides the slot, and can be a tag unless it contains a `}`.
    let tag = tag
        .or(Some(key))
        .filter(|tag| !tag.is_empty() && !tag.contains(&b'}') && tag.len() <= LONGEST_KEY)?;
    Some(OwnedString::new(&[b"{", tag, b"} calls wait for tokens"].concat()))
}

/// Keeps the client blocked when its key is created.
unsafe extern "C" fn on_key(
    _context: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    NOT_SERVED
}

/// Replies to a client that is served, or that `CLIENT UNBLOCK` times out.
unsafe extern "C" fn on_end(
    context: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context is that of the callback.
    let Some(client) = (unsafe { client_of(context) }) else { return 0 };
    let now_us = system_now_us();
    let answer = client.answer.take().or_else(|| {
        leave(client);
        COUNTERS.wait_ended(false);
        client.deny(CONTEXT.load(Ordering::Relaxed), now_us)
    });
    let call = Call::resumed(context, now_us);
    match answer {
        Some(Ok(decisions)) => client.spec.reply(&call, &decisions),
        Some(Err(line)) => call.reply_error(&line),
        None => {}
    }
    0
}

/// Ends the wait of a client that disconnects, is killed, or is unblocked with an error.
unsafe extern "C" fn on_disconnect(
    context: *mut raw::RedisModuleCtx,
    _handle: *mut raw::RedisModuleBlockedClient,
) {
    // SAFETY: the context is that of the callback.
    if unsafe { client_of(context) }.is_some_and(|client| leave(client)) {
        COUNTERS.wait_ended(false);
    }
}

/// Returns the client of a callback.
///
/// # Safety
/// The context must be that of a callback for a client of [`block`] other than [`on_free`], and the client must not outlive it.
unsafe fn client_of<'callback>(context: *mut raw::RedisModuleCtx) -> Option<&'callback mut Client> {
    // SAFETY: by the contract of this function, the server passes the client, and has not called `on_free`.
    unsafe { server!(RedisModule_GetBlockedClientPrivateData)(context).cast::<Client>().as_mut() }
}

/// Frees a client, once, when the server no longer needs it.
unsafe extern "C" fn on_free(_context: *mut raw::RedisModuleCtx, data: *mut c_void) {
    if let Some(client) = NonNull::new(data.cast::<Client>()) {
        // SAFETY: made in `block`, and no longer used by the server.
        let client = unsafe { Box::from_raw(client.as_ptr()) };
        leave(&client);
    }
}

/// Removes a client from the queue. Returns whether it was there. The timer serves the calls that it blocked.
fn leave(client: &Client) -> bool {
    let was_there = with_calls(|calls| {
        calls.queue.leave(client.arrival);
        calls.clients.remove(&client.arrival).is_some()
    });
    if was_there {
        arm(system_now_us(), 0);
    }
    was_there
}
