//! The server's clock, which `TIME` shows.

use redis_module::raw;

/// Returns Unix microseconds, never negative.
///
/// From Redis 7.2 on this is the time at which the server began the command, script or transaction. Before that its
/// `TIME` reads the system's clock, and so do we.
#[inline]
pub(crate) fn now_us() -> i64 {
    // SAFETY: the table of functions was filled when the module was loaded, and is never written again.
    match unsafe { raw::RedisModule_CachedMicroseconds } {
        // SAFETY: takes nothing and only reads a variable of the server.
        Some(cached) => unsafe { cached() }.max(0),
        None => system_now_us(),
    }
}

/// Returns the system's time. Any thread may call this.
pub(super) fn system_now_us() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing. The call cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    let tv_us = time.tv_nsec.unsigned_abs() / 1000;
    time.tv_sec.wrapping_mul(1_000_000).wrapping_add_unsigned(tv_us).max(0)
}
