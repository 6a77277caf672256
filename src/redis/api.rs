//! The server's functions, which are found by name when the module is loaded.

use redis_module::{raw, Context, RedisValue};
use std::ffi::{c_int, c_void, CStr};
use std::io;
use std::ptr::{self, NonNull};
use tokenbucket_core::cast::unsigned_32;

/// A function without which nothing works, and whether this server has it. The oldest supported server has all.
pub(super) type Needed = (&'static str, fn() -> bool);

/// The functions that [`server!`] names anywhere.
#[linkme::distributed_slice]
pub(super) static NEEDED: [Needed];

macro_rules! needed {
    ($name:ident) => {
        // SAFETY: the table of functions is written once, before this is called, on the same thread.
        (stringify!($name), || unsafe { redis_module::raw::$name }.is_some())
    };
}
pub(super) use needed;

/// Returns a function of the server, which becomes one of [`NEEDED`].
///
/// Its `unsafe` block must justify the call too. Taking the function is sound because loading begins with [`missing`].
macro_rules! server {
    ($name:ident) => {{
        #[linkme::distributed_slice($crate::redis::api::NEEDED)]
        static THIS: $crate::redis::api::Needed = $crate::redis::api::needed!($name);
        redis_module::raw::$name.unwrap_unchecked()
    }};
}
pub(super) use server;

/// Returns the first needed function that this server lacks, if any.
pub(super) fn missing() -> Option<&'static str> {
    let unwrapped_by_redis_module: [Needed; 5] = [
        needed!(RedisModule_CallReplyArrayElement),
        needed!(RedisModule_CallReplyLength),
        needed!(RedisModule_CallReplyType),
        needed!(RedisModule_InfoAddFieldULongLong),
        needed!(RedisModule_InfoAddSection),
    ];
    let mut needed = NEEDED.iter().chain(&unwrapped_by_redis_module);
    needed.find(|(_, is_there)| !is_there()).map(|(name, _)| *name)
}

/// Returns a function of the server that [`raw`] does not list, if the server has it.
pub(super) fn find(name: &CStr) -> Option<NonNull<c_void>> {
    let mut function: *mut c_void = ptr::null_mut();
    // SAFETY: the server writes a pointer to `function` if it knows the name.
    let status = unsafe { raw::RedisModule_GetApi?(name.as_ptr(), (&raw mut function).cast()) };
    NonNull::new(function).filter(|_| status == 0)
}

/// Returns the flags of a context that is valid.
#[inline]
pub(super) fn context_flags(context: *mut raw::RedisModuleCtx) -> u32 {
    // SAFETY: the server gave the caller this context, which is valid for the time of the call.
    unsigned_32(unsafe { server!(RedisModule_GetContextFlags)(context) })
}

/// Returns the number of the selected database of a context that is valid.
pub(super) fn selected_db(context: *mut raw::RedisModuleCtx) -> c_int {
    // SAFETY: as above.
    unsafe { server!(RedisModule_GetSelectedDb)(context) }
}

/// Selects a database, unless it no longer exists.
pub(super) fn select_db(context: *mut raw::RedisModuleCtx, db: c_int) {
    // SAFETY: as above.
    unsafe { server!(RedisModule_SelectDb)(context, db) };
}

/// Returns whether the server has a command of its own under this name. All of them need arguments, so none is executed.
pub(super) fn has_command(context: *mut raw::RedisModuleCtx, name: &CStr) -> bool {
    // SAFETY: the context is valid, and the format says that no argument follows. Such a call has no reply.
    unsafe { server!(RedisModule_Call)(context, name.as_ptr(), c"".as_ptr()) };
    io::Error::last_os_error().raw_os_error() != Some(libc::ENOENT)
}

/// Returns a setting of the server, as `CONFIG GET` replies it; `None` if there is no such setting.
pub(super) fn server_setting(context: *mut raw::RedisModuleCtx, name: &str) -> Option<String> {
    let Ok(RedisValue::Array(mut answer)) = Context::new(context).call("CONFIG", &["GET", name]) else {
        return None;
    };
    let Some(RedisValue::SimpleString(value)) = answer.pop() else { return None };
    Some(value)
}

/// Reads whole numbers of `INFO replication`: `None` for fields that the server does not report.
pub(super) fn replication_info<const N: usize>(
    context: *mut raw::RedisModuleCtx,
    fields: [&CStr; N],
) -> [Option<i64>; N] {
    // SAFETY: the context is valid, and the names are constants. The report is read and freed here, once.
    unsafe {
        let report = server!(RedisModule_GetServerInfo)(context, c"replication".as_ptr());
        if report.is_null() {
            return [None; N];
        }
        let values = fields.map(|field| {
            let mut error = 0;
            let value = server!(RedisModule_ServerInfoGetFieldSigned)(report, field.as_ptr(), &raw mut error);
            (error == 0).then_some(value)
        });
        server!(RedisModule_FreeServerInfo)(context, report);
        values
    }
}

/// A callback for an event.
pub(super) type OnEvent =
    unsafe extern "C" fn(*mut raw::RedisModuleCtx, raw::RedisModuleEvent, u64, *mut c_void);

/// Subscribes to an event while the module is being loaded. A module has one function for each event: the last one.
/// False if the server does not know the event.
pub(super) fn subscribe(
    context: *mut raw::RedisModuleCtx,
    (id, version): (u64, u64),
    on_event: OnEvent,
) -> bool {
    let event = raw::RedisModuleEvent { id, dataver: version };
    // SAFETY: the context is valid while the module is being loaded. A server refuses events it does not know.
    unsafe { server!(RedisModule_SubscribeToServerEvent)(context, event, Some(on_event)) == 0 }
}
