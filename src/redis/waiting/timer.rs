//! The timer of all waiting calls.

use super::super::api::server;
use super::calls::{is_any, with_calls, CONTEXT};
use redis_module::raw;
use std::ptr;
use std::sync::atomic::Ordering;

/// The interval of checks, in microseconds, on servers that do not report removed keys or moved slots.
pub(super) const POLL_US: i64 = 100_000;
/// The least interval for each waiting call. A check takes up to 3 microseconds a call, so less than 1 % of the time.
const POLL_US_PER_CALL: i64 = 500;

/// Sets the timer to the next event, at the earliest `not_before_us` from now.
pub(super) fn arm(now_us: i64, not_before_us: i64) {
    if !is_any() {
        return disarm();
    }
    let earliest_us = now_us.saturating_add(not_before_us);
    let next_us = with_calls(|calls| match calls.set_back_us {
        0 => calls.queue.next_look_us().unwrap_or(i64::MAX),
        _ => now_us,
    });
    let latest_us = if reports_removed_keys() { i64::MAX } else { next_poll_us() };
    let fires_us = next_us.min(latest_us).max(earliest_us);
    if fires_us == i64::MAX || with_calls(|calls| calls.timer.is_some_and(|(_, at_us)| at_us <= fires_us)) {
        return;
    }
    disarm();
    let after_us = fires_us.saturating_sub(now_us).saturating_add(999).max(0);
    let on_timer = with_calls(|calls| calls.on_timer);
    // SAFETY: the context is the module's own; the timer is stopped or fires once.
    let timer = unsafe {
        let context = CONTEXT.load(Ordering::Relaxed);
        server!(RedisModule_CreateTimer)(context, after_us / 1000, on_timer, ptr::null_mut())
    };
    with_calls(|calls| calls.timer = Some((timer, fires_us)));
}

pub(super) fn disarm() {
    if let Some((timer, _)) = with_calls(|calls| calls.timer.take()) {
        // SAFETY: the timer is ours and has not fired.
        unsafe { server!(RedisModule_StopTimer)(CONTEXT.load(Ordering::Relaxed), timer, ptr::null_mut()) };
    }
}

/// Returns when to check all buckets again, on servers that do not report removed keys.
fn next_poll_us() -> i64 {
    with_calls(|calls| {
        let count = i64::try_from(calls.queue.count()).unwrap_or(i64::MAX);
        calls.polled_us.saturating_add(POLL_US.max(count.saturating_mul(POLL_US_PER_CALL)))
    })
}

/// Returns whether it is time to check all buckets.
pub(super) fn is_poll_due(now_us: i64) -> bool {
    !reports_removed_keys() && next_poll_us() <= now_us
}

/// Returns whether the server reports removed keys: from 6.2 on, like defragmentation.
pub(super) fn reports_removed_keys() -> bool {
    // SAFETY: the table of functions was filled when the module was loaded.
    unsafe { raw::RedisModule_DefragAlloc }.is_some()
}
