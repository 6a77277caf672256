//! What the server reports: commands, removed keys, changed databases, its role, its periodic work. Nothing here serves a call:
//! the timer does.

use super::super::api::{context_flags, selected_db, server, subscribe};
use super::super::call::{Argument, Call};
use super::super::clock::system_now_us;
use super::calls::{is_any, mark_gone, note_gone, with_calls, CONTEXT};
use super::serve::{end_all_on_replica, on_timer};
use super::slice::{arm, disarm, reports_removed_keys};

use redis_module::raw;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering;
use tokenbucket_core::queue::Db;

/// Notes that any argument of a command may be a removed key, on servers that do not report them.
#[cold]
#[inline(never)]
pub(in crate::redis) fn before_command(call: Call) {
    if !reports_removed_keys() {
        let (db, keys) = (selected_db(call.context), call.arguments());
        with_calls(|calls| keys.iter().for_each(|key| calls.queue.mark(db, key.as_ref())));
        arm(system_now_us(), 0);
    }
}

/// Has the timer serve the calls whose turn it is after a write command of the module, in the same round of the server's loop.
#[cold]
#[inline(never)]
pub(in crate::redis) fn after_command() {
    mark_gone();
    arm(system_now_us(), 0);
}

/// Prepares for work outside of commands, and subscribes to flushed and swapped databases.
pub(in crate::redis) fn watch(context: *mut raw::RedisModuleCtx) {
    // SAFETY: the table of functions was filled before. Both make a context that stays until the server ends.
    let own = unsafe {
        match raw::RedisModule_GetDetachedThreadSafeContext {
            Some(make) => make(context),
            None => server!(RedisModule_GetThreadSafeContext)(ptr::null_mut()),
        }
    };
    CONTEXT.store(own, Ordering::Relaxed);
    with_calls(|calls| calls.on_timer = Some(on_timer));
    for id in [raw::REDISMODULE_EVENT_FLUSHDB, raw::REDISMODULE_EVENT_SWAPDB] {
        subscribe(context, (id, 1), on_databases_changed);
    }
}

unsafe extern "C" fn on_databases_changed(
    _context: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    _subevent: u64,
    data: *mut c_void,
) {
    if !is_any() {
        return;
    }
    // SAFETY: the server passes what belongs to the event.
    let dbs = unsafe {
        if event.id == raw::REDISMODULE_EVENT_FLUSHDB {
            let flushed = data.cast::<raw::RedisModuleFlushInfo>().as_ref();
            [flushed.map(|flushed| flushed.dbnum).filter(|db| *db >= 0); 2]
        } else {
            let swapped = data.cast::<raw::RedisModuleSwapDbInfo>().as_ref();
            [swapped.map(|swapped| swapped.dbnum_first), swapped.map(|swapped| swapped.dbnum_second)]
        }
    };
    with_calls(|calls| dbs.into_iter().for_each(|db| calls.queue.mark_gone(db, None)));
    arm(system_now_us(), 0);
}

/// Ends all waits on a server that has become a replica. The server has done so itself, with few exceptions.
pub(in crate::redis) fn on_role_changed(context: *mut raw::RedisModuleCtx) {
    if is_any() && context_flags(context) & raw::REDISMODULE_CTX_FLAGS_SLAVE != 0 {
        end_all_on_replica();
    }
}

/// Detects a clock that was set, which the server's timers do not follow.
pub(in crate::redis) fn on_cron_loop() {
    if !is_any() {
        return;
    }
    let now_us = system_now_us();
    let is_set = with_calls(|calls| {
        calls.look_at_clock(now_us) > 0 || calls.timer.is_some_and(|(_, at_us)| at_us <= now_us)
    });
    if is_set {
        disarm();
        arm(now_us, 0);
    }
}

/// Notes a removed or overwritten key (6.2). Older servers do not report it.
pub(in crate::redis) unsafe extern "C" fn unlink(key: *mut raw::RedisModuleString, _value: *const c_void) {
    // SAFETY: the server passes the key's name, or null where there is none.
    unsafe { Argument::of(&key) }.into_iter().for_each(|key| gone(None, key));
}

/// Notes a removed key, with its database (7.0 and later).
pub(in crate::redis) unsafe extern "C" fn unlink_in_db(
    context: *mut raw::RedisModuleKeyOptCtx,
    _value: *const c_void,
) {
    // SAFETY: the table of functions was filled before; the context is valid for this call.
    unsafe {
        let functions = (raw::RedisModule_GetKeyNameFromOptCtx, raw::RedisModule_GetDbIdFromOptCtx);
        if let (Some(name), Some(db)) = functions {
            let key = name(context).cast_mut();
            Argument::of(&key).into_iter().for_each(|key| gone(Some(db(context)), key));
        }
    }
}

fn gone(db: Option<Db>, key: &Argument) {
    if !is_any() {
        return;
    }
    if note_gone(db, key) {
        arm(system_now_us(), 0);
    }
}
