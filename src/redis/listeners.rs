//! Decides whether a listener may exist that receives replicated effects.
//!
//! The effect of a write costs the server as much as a third of the write, even without an
//! append-only file, a backlog or a replica. So it is built only while a listener may exist: without one a take
//! costs 6,920 instructions instead of 9,570 (Redis 7.0.15, the whole call; `make guard` counts the first, and the
//! second with `LOOPS_BETWEEN_LOOKS` at `u32::MAX`).
//!
//! # Why no listener is ever missed
//!
//! The switch is on from the start. Only [`on_cron_loop`] turns it off, and only while the server reports that it is a
//! master outside a cluster, is not loading, and has no append-only file, no backlog and no replica. From such a state a
//! listener can appear in five ways, and each turns the switch on before the listener's first byte:
//!
//! - A replica or an append-only file needs a snapshot of the data, taken by a fork. The snapshot contains what is written
//!   before the fork. The server announces the fork to modules before it serves another command.
//! - A replica may start from a file that `SAVE` wrote, without a fork, while another replica was still
//!   waiting for its own snapshot: the file names a place in the stream. The server announces that it writes a file.
//! - A server that stops being a replica keeps the backlog of its time as one. It announces both changes of role.
//! - Loading a data file may restore a backlog. Loading is announced.
//! - The configuration changes. That is announced too, although a fork follows wherever it matters.
//!
//! On a server that does not announce all of these the switch stays on. Valkey's snapshot without a fork is used only if
//! all modules declare that they support it; this one does not.

use super::api::{context_flags, replication_info, subscribe};
use super::call::Call;
use super::waiting;
use redis_module::raw;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The number of cron loops between two checks for listeners; ten make a second by default.
const LOOPS_BETWEEN_LOOKS: u32 = 10;

static MAY_EXIST: AtomicBool = AtomicBool::new(true);
static ALL_ANNOUNCED: AtomicBool = AtomicBool::new(false);
static LOOPS: AtomicU32 = AtomicU32::new(0);

/// Returns whether a listener may exist. Read and set on the server's main thread alone.
#[inline]
pub(super) fn may_exist() -> bool {
    MAY_EXIST.load(Ordering::Relaxed)
}

/// Returns whether a call comes from a master or a file. Without a listener it does not: the switch stays on on a server
/// that has a master or is loading.
#[inline]
pub(super) fn is_replicated(call: &Call) -> bool {
    may_exist() && call.is_replicated()
}

/// Returns whether the server's periodic work has begun since the module was loaded.
pub(super) fn has_cron_run() -> bool {
    LOOPS.load(Ordering::Relaxed) != 0
}

/// The events that turn the switch on.
const LISTENER_EVENTS: [(u64, u64); 5] = [
    (raw::REDISMODULE_EVENT_FORK_CHILD, 1),
    (raw::REDISMODULE_EVENT_PERSISTENCE, 1),
    (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, 1),
    (raw::REDISMODULE_EVENT_LOADING, 1),
    (raw::REDISMODULE_EVENT_CONFIG, 1),
];

/// Subscribes to the events.
pub(super) fn watch(context: *mut raw::RedisModuleCtx) {
    let announced =
        LISTENER_EVENTS.into_iter().filter(|event| subscribe(context, *event, on_listener_event)).count();
    // Otherwise the switch simply stays on.
    ALL_ANNOUNCED.store(announced == LISTENER_EVENTS.len(), Ordering::Relaxed);
    subscribe(context, (raw::REDISMODULE_EVENT_CRON_LOOP, 1), on_cron_loop);
}

unsafe extern "C" fn on_listener_event(
    context: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    MAY_EXIST.store(true, Ordering::Relaxed);
    if event.id == raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED {
        waiting::on_role_changed(context);
    }
}

unsafe extern "C" fn on_cron_loop(
    context: *mut raw::RedisModuleCtx,
    _event: raw::RedisModuleEvent,
    _subevent: u64,
    _data: *mut c_void,
) {
    waiting::on_cron_loop();
    let loops = LOOPS.load(Ordering::Relaxed).wrapping_add(1);
    LOOPS.store(loops, Ordering::Relaxed);
    if !may_exist() || !ALL_ANNOUNCED.load(Ordering::Relaxed) {
        return;
    }
    if loops % LOOPS_BETWEEN_LOOKS == 0 && has_no_listener(context) {
        MAY_EXIST.store(false, Ordering::Relaxed);
    }
}

fn has_no_listener(context: *mut raw::RedisModuleCtx) -> bool {
    let relevant = raw::REDISMODULE_CTX_FLAGS_MASTER
        | raw::REDISMODULE_CTX_FLAGS_CLUSTER
        | raw::REDISMODULE_CTX_FLAGS_AOF
        | raw::REDISMODULE_CTX_FLAGS_LOADING
        | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
    let is_alone = context_flags(context) & relevant == raw::REDISMODULE_CTX_FLAGS_MASTER;
    // A report without these fields counts as a listener.
    is_alone && replication_info(context, [c"connected_slaves", c"repl_backlog_active"]) == [Some(0), Some(0)]
}
