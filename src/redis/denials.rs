//! The keys that this server has denied most.

use super::call::{Argument, Call};
use super::settings::TOP_KEYS;
use std::sync::{Mutex, PoisonError};
use tokenbucket_core::top::Top;

static TOP: Mutex<Option<Top>> = Mutex::new(None);

/// Looks at the keys denied most, or forgets them.
pub(crate) fn with_top<T>(look: impl FnOnce(&mut Option<Top>) -> T) -> T {
    // Only the server's main thread comes here.
    look(&mut TOP.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Starts anew if the setting of the number of counters has changed.
pub(super) fn follow_setting() {
    with_top(|top| {
        if top.as_ref().is_some_and(|top| top.max_counters() != TOP_KEYS.count()) {
            *top = None;
        }
    });
}

/// Counts a denial, and sends its keyspace event.
#[inline(never)] // Out of the way of those that are allowed.
pub(crate) fn announce_denial(call: &Call, key: &Argument) {
    let max_counters = TOP_KEYS.count();
    if max_counters > 0 {
        with_top(|top| {
            top.get_or_insert_with(|| Top::new(max_counters)).count(key.as_ref(), call.now_us() / 1000);
        });
    }
    call.notify(c"tb.deny", key);
}
