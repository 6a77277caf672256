//! Keys that are removed or overwritten, by any command or expiry.

use super::super::call::Argument;
use super::super::clock::system_now_us;
use super::calls::{is_any, with_calls, CALLS};
use super::timer;
use redis_module::raw;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokenbucket_core::queue::Db;

/// A key, with its database if that is known.
type GoneKey = (Option<Db>, Box<[u8]>);

/// Removed keys that are not marked yet.
static GONE: Mutex<Vec<GoneKey>> = Mutex::new(Vec::new());

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
    list().push((db, key.as_ref().into()));
    // If one of our own calls removes the key, or finds it expired, it marks the key later.
    if let Ok(calls) = CALLS.try_lock() {
        drop(calls);
        if mark_gone() {
            timer::arm(system_now_us(), 0);
        }
    }
}

/// Marks the removed keys in the queue. Returns whether the queue has anything to examine.
pub(super) fn mark_gone() -> bool {
    let gone = std::mem::take(&mut *list());
    with_calls(|calls| {
        for (db, key) in gone {
            calls.queue.mark_gone(db, Some(&key));
        }
        calls.queue.is_marked(i64::MIN)
    })
}

fn list() -> MutexGuard<'static, Vec<GoneKey>> {
    GONE.lock().unwrap_or_else(PoisonError::into_inner)
}
