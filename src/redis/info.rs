//! The section of `INFO` that shows the counters.

use super::api::server;
use super::{waiting, COUNTERS};
use redis_module::server_events::INFO_COMMAND_HANDLER_LIST;
use redis_module::{raw, InfoContext, RedisResult};
use redis_module_macros::info_command_handler;
use std::ffi::c_int;

/// Adds the only section, named after the module.
#[info_command_handler]
fn add_counters(info: &InfoContext, for_crash_report: bool) -> RedisResult<()> {
    let fields = COUNTERS.fields().into_iter().map(|(name, value)| (name.to_owned(), value.into()));
    // A crash may come while the queue is locked.
    let tenants = (!for_crash_report).then(waiting::all_tenants).unwrap_or_default();
    // Clients split such a field at its commas.
    let escaped = |name: &[u8]| name.escape_ascii().to_string().replace(',', "\\x2c");
    let tenants = tenants.iter().map(|(name, calls)| format!("\"{}\"={calls}", escaped(name)));
    let tenants = tenants.collect::<Vec<_>>().join(",");
    let fields = fields.chain([("waiting_tenants".to_owned(), tenants.into())]);
    info.build_one_section((String::new(), fields.collect()))
}

/// Registers the callback of `INFO`.
pub(super) fn register(context: *mut raw::RedisModuleCtx) {
    // SAFETY: the context is valid while the module is being loaded.
    unsafe { server!(RedisModule_RegisterInfoFunc)(context, Some(report)) };
}

/// Calls every handler. The crate's own function adds a backtrace to crash reports too, and taking one there ends
/// Valkey 8.1.1 in the middle of its report.
unsafe extern "C" fn report(info: *mut raw::RedisModuleInfoCtx, for_crash_report: c_int) {
    let info = InfoContext::new(info);
    for handler in INFO_COMMAND_HANDLER_LIST {
        // The only error means that another section was requested.
        let _ = handler(&info, for_crash_report != 0);
    }
}
