//! What happens when a server loads the module.
//!
//! By hand rather than by `redis_module!` and its relatives, because they do not hold on every server:
//!
//! - `redis_module!` subscribes to events before it calls `init`. If that then refuses an argument of `MODULE LOAD`, Redis
//!   6.0 to 7.0 go on to call a module that was unloaded.
//! - Its `configurations:` end Redis 6 and pass over arguments that they do not know.
//! - Its event handlers do not load on Redis 6, nor do `#[command]`s before 7.2.
//! - The context's `log` hands the message on as a format, and `server_info().field()` leaks a string a call.
//! - Its allocator brings nothing to a bucket, which is allocated in one place.
//!
//! What the crate offers and holds everywhere is used: key specifications, `INFO`, calls of the server's own commands.

use super::api::{missing, server, server_setting};
use super::call::{arguments, Argument};
use super::log::{log, NOTICE, WARNING};
use super::{config, data_type, info, listeners, register, settings, waiting};
use redis_module::raw;
use std::ffi::{c_int, c_void, CStr};
use std::ptr;
use tokenbucket_core::cast::signed_32;

const NAME: &CStr = c"tokenbucket";

/// The module's version as servers show it: one number, two digits each for major, minor and patch.
const VERSION: c_int = (part(env!("CARGO_PKG_VERSION_MAJOR")) * 100 + part(env!("CARGO_PKG_VERSION_MINOR")))
    * 100
    + part(env!("CARGO_PKG_VERSION_PATCH"));

/// Reads one of the three numbers while the module is compiled: below 100, or it would run into the one before it.
const fn part(digits: &str) -> c_int {
    let Ok(number) = c_int::from_str_radix(digits, 10) else { return 0 };
    assert!(number < 100);
    number
}

const LOADED: c_int = 0;
const FAILED: c_int = 1;

/// Loads the module. The server calls it by this name.
///
/// # Safety
/// To be called by the server alone.
#[allow(non_snake_case)]
#[no_mangle]
pub(super) unsafe extern "C" fn RedisModule_OnLoad(
    context: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    let api_version = signed_32(raw::REDISMODULE_APIVER_1);
    // SAFETY: the context is the one that the server gave for this; it copies the name.
    let initialised = unsafe { raw::Export_RedisModule_Init(context, NAME.as_ptr(), VERSION, api_version) };
    if let Some(function) = missing() {
        // A server older than any that was tried, on which nothing can be relied upon: not even on a log.
        eprintln!("tokenbucket: this server is too old: it has no {function}");
        return FAILED;
    }
    if initialised != 0 {
        log(
            context,
            WARNING,
            "tokenbucket was not loaded: a module of this name is loaded already, see MODULE LIST",
        );
        return FAILED;
    }
    // SAFETY: the server passes `argc` arguments that stay valid until this function returns.
    let arguments = unsafe { arguments(argv, argc) };
    match set_up(context, arguments) {
        Ok(()) => LOADED,
        Err(message) => {
            log(context, WARNING, &format!("tokenbucket was not loaded: {message}"));
            FAILED
        }
    }
}

/// Takes each step in the order in which a server can be asked for it.
fn set_up(context: *mut raw::RedisModuleCtx, arguments: &[Argument]) -> Result<(), String> {
    config::read_arguments(arguments)?;
    set_options(context);
    if !data_type::register(context, waiting::UNLINK) {
        return Err("the server refused the data type tb-bucket".to_owned());
    }
    // Settings first: the configuration file has a say in which commands there are.
    config::register(context)?;
    let drop_ins = if settings::cl_throttle() { crate::COMMANDS.drop_ins } else { &[] };
    for name in register::register(context, crate::COMMANDS.own, drop_ins)? {
        let name = name.to_string_lossy();
        log(context, NOTICE, &format!("tokenbucket leaves {name} to the module that has it already"));
    }
    warn_of_replayed_scripts(context);
    info::register(context);
    listeners::watch(context);
    waiting::watch(context);
    Ok(())
}

/// Redis 6 can be set to replicate scripts as they were called. What they take would be decided again, by replicas
/// and at each start, where a call decides nothing.
fn warn_of_replayed_scripts(context: *mut raw::RedisModuleCtx) {
    const SETTING: &str = "lua-replicate-commands";
    if server_setting(context, SETTING).as_deref() == Some("no") {
        let what = "takes in scripts reach neither replicas nor append-only files";
        log(context, WARNING, &format!("tokenbucket: {SETTING} is 'no', so {what}"));
    }
}

/// Valkey's flag for modules that can have their slots migrated atomically. Without it, Valkey 9 refuses to.
const VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

/// Tells the server what this module copes with.
fn set_options(context: *mut raw::RedisModuleCtx) {
    let everywhere = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    let valkey = if is_valkey() { VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION } else { 0 };
    // SAFETY: the context is valid while the module is being loaded.
    unsafe { server!(RedisModule_SetModuleOptions)(context, signed_32(everywhere) | valkey) };
}

/// Returns whether the server offers its functions under Valkey's names too.
fn is_valkey() -> bool {
    let mut function: *mut c_void = ptr::null_mut();
    // SAFETY: the server writes a pointer to `function` if it knows the name, which is a constant.
    unsafe {
        raw::RedisModule_GetApi.is_some_and(|get| {
            let name = c"ValkeyModule_SetModuleOptions";
            get(name.as_ptr(), (&raw mut function).cast()) == LOADED
        })
    }
}
