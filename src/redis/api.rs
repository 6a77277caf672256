//! The server's functions, which are found by name when the module is loaded.

use redis_module::{raw, Context, RedisValue};
use std::ffi::{c_int, c_void, CStr};
use tokenbucket_core::cast::unsigned_32;

/// Returns a function of the server that `required!` names. Naming another does not compile.
///
/// Its `unsafe` block must justify the call too. Taking the function is sound because loading begins with [`missing`].
macro_rules! server {
    ($name:ident) => {{
        let _ = $crate::redis::api::Required::$name;
        redis_module::raw::$name.unwrap_unchecked()
    }};
}
pub(super) use server;

/// Declares the functions without which nothing works, which the oldest supported server has: those that we call, and
/// behind the semicolon those that redis-module unwraps inside.
macro_rules! required {
    ($($name:ident),* ; $($hidden:ident),* $(,)?) => {
        /// The names of the functions that we call.
        #[allow(non_camel_case_types)]
        pub(super) enum Required {
            $($name),*
        }

        /// Returns the first function that this server lacks, if any.
        pub(super) fn missing() -> Option<&'static str> {
            // SAFETY: the table of functions is written once, before this is called, on the same thread.
            let functions = unsafe {
                [
                    $((stringify!($name), { raw::$name }.is_some()),)*
                    $((stringify!($hidden), { raw::$hidden }.is_some()),)*
                ]
            };
            functions.into_iter().find(|(_, is_there)| !is_there).map(|(name, _)| name)
        }
    };
}

required! {
    RedisModule_Alloc,
    RedisModule_AvoidReplicaTraffic,
    RedisModule_BlockClientOnKeys,
    RedisModule_Call,
    RedisModule_CallReplyStringPtr,
    RedisModule_CloseKey,
    RedisModule_CreateCommand,
    RedisModule_CreateDataType,
    RedisModule_CreateString,
    RedisModule_CreateTimer,
    RedisModule_DeleteKey,
    RedisModule_DigestAddLongLong,
    RedisModule_DigestAddStringBuffer,
    RedisModule_DigestEndSequence,
    RedisModule_EmitAOF,
    RedisModule_Free,
    RedisModule_FreeCallReply,
    RedisModule_FreeServerInfo,
    RedisModule_FreeString,
    RedisModule_GetBlockedClientPrivateData,
    RedisModule_GetContextFlags,
    RedisModule_GetContextFromIO,
    RedisModule_GetExpire,
    RedisModule_GetSelectedDb,
    RedisModule_GetServerInfo,
    RedisModule_GetThreadSafeContext,
    RedisModule_IsIOError,
    RedisModule_KeyType,
    RedisModule_LoadSigned,
    RedisModule_LoadStringBuffer,
    RedisModule_Log,
    RedisModule_LogIOError,
    RedisModule_MallocSize,
    RedisModule_ModuleTypeGetType,
    RedisModule_ModuleTypeGetValue,
    RedisModule_ModuleTypeReplaceValue,
    RedisModule_ModuleTypeSetValue,
    RedisModule_NotifyKeyspaceEvent,
    RedisModule_OpenKey,
    RedisModule_RegisterInfoFunc,
    RedisModule_Replicate,
    RedisModule_ReplicateVerbatim,
    RedisModule_ReplyWithArray,
    RedisModule_ReplyWithError,
    RedisModule_ReplyWithLongLong,
    RedisModule_ReplyWithNull,
    RedisModule_ReplyWithSimpleString,
    RedisModule_ReplyWithStringBuffer,
    RedisModule_RetainString,
    RedisModule_SaveSigned,
    RedisModule_SaveStringBuffer,
    RedisModule_SelectDb,
    RedisModule_ServerInfoGetFieldSigned,
    RedisModule_SetDisconnectCallback,
    RedisModule_SetExpire,
    RedisModule_SetModuleOptions,
    RedisModule_SignalModifiedKey,
    RedisModule_StopTimer,
    RedisModule_StringDMA,
    RedisModule_StringPtrLen,
    RedisModule_SubscribeToServerEvent,
    RedisModule_UnblockClient,
    RedisModule_UnlinkKey;
    RedisModule_CallReplyArrayElement,
    RedisModule_CallReplyLength,
    RedisModule_CallReplyType,
    RedisModule_InfoAddFieldULongLong,
    RedisModule_InfoAddSection,
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

/// Returns a setting of the server, as `CONFIG GET` replies it; `None` if there is no such setting.
pub(super) fn server_setting(context: *mut raw::RedisModuleCtx, name: &str) -> Option<String> {
    let Ok(RedisValue::Array(mut answer)) = Context::new(context).call("CONFIG", &["GET", name]) else {
        return None;
    };
    match answer.pop() {
        Some(RedisValue::SimpleString(value)) => Some(value),
        _ => None,
    }
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
