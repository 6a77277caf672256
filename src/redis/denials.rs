//! The most denied keys of this server.

use super::call::{Argument, Call};
use super::settings::TOP_KEYS;
use std::sync::{Mutex, PoisonError};
use tokenbucket_core::top::Top;

static TOP: Mutex<Option<Top>> = Mutex::new(None);

/// Reads or clears the counters of denied keys.
pub(crate) fn with_top<T>(look: impl FnOnce(&mut Option<Top>) -> T) -> T {
    // Only the server's main thread comes here.
    look(&mut TOP.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Clears the counters if the setting of their number has changed.
pub(super) fn follow_setting() {
    with_top(|top| {
        if top.as_ref().is_some_and(|top| top.max_counters() != TOP_KEYS.count()) {
            *top = None;
        }
    });
}

/// Counts a denial, and sends its keyspace event.
#[inline(never)] // Off the path of allowed calls.
pub(crate) fn announce_denial(call: &Call, key: &Argument) {
    let max_counters = TOP_KEYS.count();
    if max_counters > 0 {
        with_top(|top| {
            top.get_or_insert_with(|| Top::new(max_counters)).count(key.as_ref(), call.now_us() / 1000);
        });
    }
    call.notify(c"tb.deny", key);
}
