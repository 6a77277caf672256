//! Decides whether there is memory for a new bucket.
//!
//! Being above `maxmemory` does not decide it: while the server evicts, it is above at times and accepts every write. A new
//! bucket is refused if the server would refuse a command of its own that may need memory, which it decides before it
//! calls the module. From 7.0 on a module's call can have the same check.

use super::api::{has_command, server};
use super::call::{Argument, Call};
use redis_module::raw;
use std::ffi::{c_char, CStr};
use std::slice;

/// Returns whether the server would refuse to let one of its own commands create the key `name`.
#[cold]
pub(super) fn is_refused(call: &Call, name: &Argument) -> bool {
    // Where the command was renamed, being above `maxmemory` has to decide.
    !has_command(call.context, c"SETRANGE")
        || match verdict(call, name) {
            Some(refused) => refused,
            // A server before 7.0 does not report whether eviction freed enough. With a policy this assumes that it did.
            None => call.flags() & raw::REDISMODULE_CTX_FLAGS_EVICT == 0,
        }
}

/// Checks a command that may need memory and would change nothing: writing no bytes into a string that does not exist.
/// `None` if the server has no such check.
fn verdict(call: &Call, name: &Argument) -> Option<bool> {
    // SAFETY: the table of functions was filled when the module was loaded, and is never written again.
    let (since_7_0, since_7_2) =
        unsafe { (raw::RedisModule_SetCommandInfo, raw::RedisModule_CachedMicroseconds) };
    // M: refuse like a client's command. E: reply the error. D: only check.
    let format: &CStr = match (since_7_0, since_7_2) {
        (_, Some(_)) => c"MEDslc",
        (Some(_), _) => c"MEslc",
        _ => return None,
    };
    let offset: i64 = 0;
    // SAFETY: context and name are valid for the call; the format says a string, a number and a C string, which is
    // what follows. A reply that is not null is read before it is freed, once.
    unsafe {
        let reply = server!(RedisModule_Call)(
            call.context,
            c"SETRANGE".as_ptr(),
            format.as_ptr(),
            name.string,
            offset,
            c"".as_ptr(),
        );
        if reply.is_null() {
            // A check that passed. A call has a reply.
            return since_7_2.map(|_| false);
        }
        let refused = is_oom(reply);
        server!(RedisModule_FreeCallReply)(reply);
        Some(refused)
    }
}

/// Returns whether a reply is the error of a server that has no memory left.
///
/// # Safety
/// The reply must be alive.
unsafe fn is_oom(reply: *mut raw::RedisModuleCallReply) -> bool {
    let mut len = 0;
    // SAFETY: by the contract of this function; the server reports how many bytes can be read at the pointer.
    unsafe {
        if raw::call_reply_type(reply) != raw::ReplyType::Error {
            return false;
        }
        let text: *const c_char = server!(RedisModule_CallReplyStringPtr)(reply, &raw mut len);
        !text.is_null() && slice::from_raw_parts(text.cast::<u8>(), len).starts_with(b"OOM")
    }
}
