//! Checks at the grant whether the user may still call the command.

use super::super::api::find;
use super::super::call::OwnedString;
use super::super::spec::Spec;
use redis_module::raw;
use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::{self, NonNull};
use tokenbucket_core::queue::Db;

/// `ACLCheckPermissions` of a user, arguments, their number, a database, and where to store a reason. Valkey has it from 9.1
/// on, where rights can depend on the database.
type CheckInDb = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, Db, *mut c_void) -> c_int;

/// Returns the user of a client, on servers that report it to modules (from 7.0 on).
pub(super) fn current_user(context: *mut raw::RedisModuleCtx) -> Option<OwnedString> {
    // SAFETY: the table of functions was filled before, and the context is valid for the call. The name is ours to free.
    unsafe {
        let name = raw::RedisModule_GetCurrentUserName?(context);
        (!name.is_null()).then_some(name).map(OwnedString)
    }
}

/// Returns the error of a call whose user lost the permission while it waited; `None` if the user may call it.
pub(super) fn refusal(user: &OwnedString, db: Db, spec: &Spec, arguments: &[OwnedString]) -> Option<String> {
    let command = OwnedString::new(spec.name.to_bytes());
    let mut call: Vec<_> = std::iter::once(&command).chain(arguments).map(|argument| argument.0).collect();
    let count = i32::try_from(call.len()).unwrap_or(i32::MAX);
    // SAFETY: the table of functions was filled before, and the function found has this type; all strings live until the end
    // of this function. The server makes the user for us, and we free it once.
    let is_allowed = unsafe {
        let user_of = raw::RedisModule_GetModuleUserFromUserName?;
        let check = raw::RedisModule_ACLCheckCommandPermissions?;
        let free = raw::RedisModule_FreeModuleUser?;
        let found = NonNull::new(user_of(user.0));
        let is_allowed = |found: NonNull<raw::RedisModuleUser>| {
            let (found, call) = (found.as_ptr(), call.as_mut_ptr());
            let status = match find(c"RedisModule_ACLCheckPermissions") {
                Some(check) => {
                    let check = transmute::<NonNull<c_void>, CheckInDb>(check);
                    check(found.cast(), call.cast(), count, db, ptr::null_mut())
                }
                None => check(found, call, count),
            };
            free(found);
            status == 0
        };
        found.is_some_and(is_allowed)
    };
    let (user, command) =
        (String::from_utf8_lossy(user.as_ref()), spec.name.to_string_lossy().to_lowercase());
    (!is_allowed)
        .then(|| format!("NOPERM User {user} has no permissions to run the '{command}' command on its keys"))
}
