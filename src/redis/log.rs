//! Writes the server's log.

use super::api::server;
use redis_module::raw;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};

/// The level of normal events that operators may want to know.
pub(super) const NOTICE: &CStr = c"notice";
/// The level of faults.
pub(super) const WARNING: &CStr = c"warning";

/// Writes a line.
pub(super) fn log(context: *mut raw::RedisModuleCtx, level: &CStr, message: &str) {
    let message = CString::new(message).unwrap_or_default();
    // SAFETY: the context is valid for the call that it belongs to; the format says one string, which follows.
    unsafe { server!(RedisModule_Log)(context, level.as_ptr(), c"%s".as_ptr(), message.as_ptr()) };
}

/// Writes a warning, the first time only: clients must not be able to fill the log.
pub(super) fn warn_once(warned: &AtomicBool, context: *mut raw::RedisModuleCtx, message: &str) {
    if !warned.swap(true, Ordering::Relaxed) {
        log(context, WARNING, message);
    }
}
