//! Serves calls whose turn it is, by one timer.

use super::super::api::{context_flags, replication_info, server, server_setting};
use super::super::clock::system_now_us;
use super::super::COUNTERS;
use super::calls::{mark_gone, with_calls};
use super::client::{Answer, Client};
use super::slice::{arm, is_poll_due, Slice, POLL_US};
use redis_module::raw;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use tokenbucket_core::invariant::expected;
use tokenbucket_core::queue::{Arrival, Levels};

/// How long to wait before checking again, in microseconds, while writes are forbidden.
const PAUSED_US: i64 = 10_000;
/// How long to wait before examining a call again that was next and got nothing, in microseconds.
const DENIED_US: i64 = 1_000;

/// The server's own reply to blocked clients when it becomes a replica.
const NOW_A_REPLICA: &str =
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";
/// The reply where the server itself sends none.
const SLOT_MOVED: &str = "UNBLOCKED this node no longer serves the slot of the call";

fn serve(slice: &mut Slice, context: *mut raw::RedisModuleCtx, now_us: i64) {
    mark_gone();
    while let Some(arrival) = with_calls(|calls| calls.queue.next_served(now_us, slice)) {
        resume(context, arrival, now_us);
        mark_gone();
    }
}

/// The reason why a call must have a client.
const HAS_CLIENT: &str = "a call that waits has a client";

/// Serves a call whose turn it is.
fn resume(context: *mut raw::RedisModuleCtx, arrival: Arrival, now_us: i64) {
    let Some(client) = expected(client(arrival), HAS_CLIENT) else {
        return with_calls(|calls| calls.queue.leave(arrival));
    };
    if !client.is_ours(context) {
        return with_calls(|calls| calls.queue.postpone(arrival, now_us.saturating_add(POLL_US)));
    }
    match client.grant(context, now_us) {
        None => with_calls(|calls| calls.queue.postpone(arrival, now_us.saturating_add(DENIED_US))),
        Some(answer) => {
            let is_granted = answer.as_ref().is_ok_and(|decisions| decisions.binding.allowed != 0);
            COUNTERS.wait_ended(is_granted);
            if is_granted {
                with_calls(|calls| calls.queue.grant(arrival));
            }
            finish(arrival, answer);
        }
    }
}

/// Unblocks a client with its answer.
fn finish(arrival: Arrival, answer: Answer) {
    let client = with_calls(|calls| {
        calls.queue.leave(arrival);
        calls.clients.remove(&arrival)
    });
    let Some(mut client) = expected(client, HAS_CLIENT) else { return };
    // SAFETY: the client is the server's until `on_free`. It calls `on_end`, which replies the answer, and then that.
    unsafe {
        client.as_mut().answer = Some(answer);
        server!(RedisModule_UnblockClient)(client.as_ref().handle, client.as_ptr().cast());
    }
}

/// Ends all waits on a server that has become a replica.
pub(super) fn end_all_on_replica() {
    arrivals().into_iter().for_each(|arrival| finish(arrival, Err(NOW_A_REPLICA.to_owned())));
}

pub(super) unsafe extern "C" fn on_timer(context: *mut raw::RedisModuleCtx, _data: *mut c_void) {
    with_calls(|calls| calls.timer = None);
    let now_us = system_now_us();
    let mut slice = Slice::begin(context, now_us);
    let not_before_us = match cannot_write(context, now_us) {
        // A slice without time goes on as soon as it may.
        true => loop {
            if !slice.has_time() {
                break 0;
            }
            if !end_overdue(&mut slice, context, now_us, false) {
                break PAUSED_US;
            }
        },
        false => {
            serve_and_end(&mut slice, context, now_us);
            0
        }
    };
    slice.end();
    arm(now_us, not_before_us);
}

/// Serves the calls whose turn it is, and denies those that have timed out, while the slice has time.
fn serve_and_end(slice: &mut Slice, context: *mut raw::RedisModuleCtx, now_us: i64) {
    follow_clock(context, now_us);
    if is_poll_due(now_us) {
        with_calls(|calls| calls.polled_us = now_us);
        with_calls(|calls| calls.queue.mark_gone(None, None));
        end_moved(context);
    }
    mark_gone();
    // However long a release is served, the waits of others end in time.
    while slice.is_young() && end_overdue(slice, context, now_us, true) {}
    serve(slice, context, now_us);
    while slice.has_time() && end_overdue(slice, context, now_us, true) {
        serve(slice, context, now_us);
    }
}

/// Returns whether writes are forbidden now, and with them grants.
fn cannot_write(context: *mut raw::RedisModuleCtx, now_us: i64) -> bool {
    let flags = raw::REDISMODULE_CTX_FLAGS_SLAVE | raw::REDISMODULE_CTX_FLAGS_LOADING;
    // SAFETY: takes nothing.
    let is_paused = unsafe { server!(RedisModule_AvoidReplicaTraffic)() != 0 };
    context_flags(context) & flags != 0 || is_paused || lacks_replicas(context, now_us)
}

/// How long the timer caches the number of replicas, which the server updates once a second. Reading it each time took 8 %
/// of the time of a server that served 700 calls a second.
const REPLICAS_READ_EVERY_US: i64 = 50_000;

/// Returns whether the server refuses writes because it has fewer replicas than `min-replicas-to-write`: it checks the
/// commands of clients only.
fn lacks_replicas(context: *mut raw::RedisModuleCtx, now_us: i64) -> bool {
    static LACKS: AtomicBool = AtomicBool::new(false);
    static READ_AT_US: AtomicI64 = AtomicI64::new(i64::MIN);
    let is_fresh = 0..REPLICAS_READ_EVERY_US;
    if !is_fresh.contains(&now_us.saturating_sub(READ_AT_US.load(Ordering::Relaxed))) {
        READ_AT_US.store(now_us, Ordering::Relaxed);
        LACKS.store(read_lacks_replicas(context), Ordering::Relaxed);
    }
    LACKS.load(Ordering::Relaxed)
}

fn read_lacks_replicas(context: *mut raw::RedisModuleCtx) -> bool {
    // Reported only by servers that have the setting on.
    let [good_replicas] = replication_info(context, [c"min_slaves_good_slaves"]);
    let least_replicas = || server_setting(context, "min-replicas-to-write")?.parse().ok();
    // Without `CONFIG` nobody knows how many are enough.
    good_replicas.is_some_and(|good| least_replicas().is_none_or(|least: i64| good < least))
}

/// Denies a call that has timed out. Returns whether there was one. While calls are served, a call that may be next does
/// not time out.
fn end_overdue(slice: &mut Slice, context: *mut raw::RedisModuleCtx, now_us: i64, are_served: bool) -> bool {
    let overdue = with_calls(|calls| calls.queue.overdue(now_us, are_served, slice));
    let Some(arrival) = overdue else { return false };
    let client = client(arrival);
    // The denial must not count the call itself among the others.
    with_calls(|calls| calls.queue.leave(arrival));
    if let Some(client) = client {
        COUNTERS.wait_ended(false);
        let answer = client.is_ours(context).then(|| client.deny(context, now_us)).flatten();
        finish(arrival, answer.unwrap_or_else(|| Err(SLOT_MOVED.to_owned())));
    }
    true
}

/// Ends the waits for slots that this node no longer serves, on a server that does not do so itself.
fn end_moved(context: *mut raw::RedisModuleCtx) {
    for arrival in arrivals() {
        if client(arrival).is_some_and(|client| !client.is_ours(context)) {
            finish(arrival, Err(SLOT_MOVED.to_owned()));
        }
    }
}

/// Rebases deadlines and buckets after the clock stepped back.
fn follow_clock(context: *mut raw::RedisModuleCtx, now_us: i64) {
    let set_back_us = with_calls(|calls| std::mem::take(&mut calls.set_back_us));
    if set_back_us == 0 {
        return;
    }
    for client in arrivals().into_iter().filter_map(client) {
        client.follow_clock(context, now_us);
    }
    with_calls(|calls| {
        calls.queue.set_back(set_back_us);
        calls.polled_us = calls.polled_us.saturating_sub(set_back_us);
        calls.queue.mark_gone(None, None);
    });
}

fn arrivals() -> Vec<Arrival> {
    with_calls(|calls| calls.queue.arrivals().collect())
}

/// Returns the client of a waiting call, which must not be used after the call has left.
fn client<'turn>(arrival: Arrival) -> Option<&'turn Client> {
    let client = with_calls(|calls| calls.clients.get(&arrival).copied());
    // SAFETY: the server keeps it until `on_free`, which does not come while we serve.
    client.map(|client| unsafe { client.as_ref() })
}
