//! Loads the module.
//!
//! Without `redis_module!` and its relatives, which fail on some servers:
//!
//! - `redis_module!` subscribes to events before it calls `init`. If that then refuses an argument of `MODULE LOAD`, Redis
//!   6.0 to 7.0 keep calling the unloaded module.
//! - Its `configurations:` crash Redis 6 and ignore unknown arguments.
//! - Its event handlers do not load on Redis 6, nor do `#[command]`s before 7.2.
//! - The context's `log` passes the message as a format, and `server_info().field()` leaks a string a call.
//! - Its allocator is no help with buckets, which are allocated in one place.
//!
//! The module uses what works everywhere: key specifications, `INFO`, calls of the server's own commands.

use super::api::{context_flags, find, has_command, missing, server, server_setting};
use super::call::{arguments, Argument};
use super::log::{log, NOTICE, WARNING};
use super::{config, data_type, info, listeners, register, settings, waiting};
use redis_module::raw;
use std::ffi::{c_int, CStr};
use std::sync::OnceLock;
use tokenbucket_core::cast::signed_32;

const NAME: &CStr = c"tokenbucket";

/// The version as one number, with two digits each for major, minor and patch, which servers show.
const VERSION: c_int = (part(env!("CARGO_PKG_VERSION_MAJOR")) * 100 + part(env!("CARGO_PKG_VERSION_MINOR")))
    * 100
    + part(env!("CARGO_PKG_VERSION_PATCH"));

/// Reads one of the three numbers at compile time. It must be below 100, to fit its two digits.
const fn part(digits: &str) -> c_int {
    let Ok(number) = c_int::from_str_radix(digits, 10) else { return 0 };
    assert!(number < 100);
    number
}

const API_VERSION: c_int = 1;
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
    // SAFETY: the context is the one that the server gave for this; it copies the name.
    let initialised = unsafe { raw::Export_RedisModule_Init(context, NAME.as_ptr(), VERSION, API_VERSION) };
    if let Some(function) = missing() {
        // The server is older than any tested one, and may not even have a log.
        eprintln!("tokenbucket: this server is too old: it lacks {function}");
        return FAILED;
    }
    // SAFETY: the server passes `argc` arguments that stay valid until this function returns.
    let arguments = unsafe { arguments(argv, argc) };
    let done = if initialised == 0 { set_up(context, arguments) } else { set_up_again(context, arguments) };
    match done {
        Ok(()) => LOADED,
        Err(message) => {
            log(context, WARNING, &format!("tokenbucket was not loaded: {message}"));
            FAILED
        }
    }
}

/// Takes the steps in the order that servers require.
fn set_up(context: *mut raw::RedisModuleCtx, arguments: &[Argument]) -> Result<(), String> {
    config::read_arguments(arguments)?;
    set_options(context);
    if !data_type::register(context, Some(waiting::unlink), Some(waiting::unlink_in_db)) {
        return Err("the server refused the data type tb-bucket".to_owned());
    }
    // Settings first: the configuration file decides which commands there are.
    config::register(context)?;
    let drop_ins = if settings::cl_throttle() { crate::COMMANDS.drop_ins } else { &[] };
    for name in register::register(context, crate::COMMANDS.own, drop_ins)? {
        let name = name.to_string_lossy();
        log(context, NOTICE, &format!("tokenbucket did not register {name}: another module has it"));
    }
    warn_of_renamed_commands(context);
    warn_of_replayed_scripts(context);
    warn_of_missing_buckets(context);
    info::register(context);
    listeners::watch(context);
    waiting::watch(context);
    LOADED_WITH.get_or_init(|| arguments.iter().map(|argument| argument.as_ref().to_vec()).collect());
    Ok(())
}

/// The arguments that this file was loaded with.
static LOADED_WITH: OnceLock<Vec<Vec<u8>>> = OnceLock::new();

/// Ignores a second `loadmodule` line with the same arguments. From Redis 7.0 on `CONFIG REWRITE` adds one for a module of
/// the command line, and a server whose module refuses to load does not start.
///
/// # Errors
/// A line that says why the module was not loaded.
fn set_up_again(context: *mut raw::RedisModuleCtx, arguments: &[Argument]) -> Result<(), String> {
    let is_same = |first: &Vec<Vec<u8>>| first.iter().eq(arguments.iter().map(AsRef::as_ref));
    if listeners::has_cron_run() || !LOADED_WITH.get().is_some_and(is_same) {
        return Err("a module of this name is loaded (MODULE LIST): delete one loadmodule line".into());
    }
    log(context, NOTICE, "tokenbucket is loaded already: this loadmodule line changes nothing");
    // SAFETY: the context is valid while the module is being loaded; the server copies the name. It adds this description
    // to its list only if the name is free, so the first one stays.
    unsafe { server!(RedisModule_SetModuleAttribs)(context, NAME.as_ptr(), VERSION, API_VERSION) };
    Ok(())
}

/// A configuration may rename the commands that the module calls. Without them it takes the safe answer.
fn warn_of_renamed_commands(context: *mut raw::RedisModuleCtx) {
    let commands = [
        (c"CONFIG", "with min-replicas-to-write set, no waiting call is served"),
        (c"SETRANGE", "over maxmemory no bucket is created, even while keys are evicted"),
        (c"TYPE", "calls do not wait in a cluster"),
    ];
    for (name, without) in commands.into_iter().filter(|(name, _)| !has_command(context, name)) {
        log(context, WARNING, &format!("tokenbucket: the server has no command {name:?}, so {without}"));
    }
}

/// Redis 6 can be set to replicate scripts instead of their effects. Replicas and restarts would run their takes again,
/// where calls decide nothing.
fn warn_of_replayed_scripts(context: *mut raw::RedisModuleCtx) {
    const SETTING: &str = "lua-replicate-commands";
    if server_setting(context, SETTING).as_deref() == Some("no") {
        let what = "takes in scripts reach neither replicas nor append-only files";
        log(context, WARNING, &format!("tokenbucket: {SETTING} is 'no', so {what}"));
    }
}

/// Warns on a replica, which refused without the module each bucket that its master sent, and goes on from there.
fn warn_of_missing_buckets(context: *mut raw::RedisModuleCtx) {
    if context_flags(context) & raw::REDISMODULE_CTX_FLAGS_REPLICA_IS_ONLINE != 0 {
        let what = "this replica lacks the buckets that its master has already. Resynchronise it fully";
        let cure = "MULTI, REPLICAOF NO ONE, REPLICAOF host port, EXEC; in a cluster stop it, delete its data, start it";
        log(context, WARNING, &format!("tokenbucket: {what}: {cure}"));
    }
}

/// Valkey's flag for modules that can have their slots migrated atomically. Without it, Valkey 9 refuses to.
const VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

/// Declares what this module supports.
fn set_options(context: *mut raw::RedisModuleCtx) {
    let everywhere = raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED
        | raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD;
    // Only Valkey has its functions under this name.
    let is_valkey = find(c"ValkeyModule_SetModuleOptions").is_some();
    let valkey = if is_valkey { VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION } else { 0 };
    // SAFETY: the context is valid while the module is being loaded.
    unsafe { server!(RedisModule_SetModuleOptions)(context, signed_32(everywhere) | valkey) };
}
