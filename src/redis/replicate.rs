//! Sends the result of a write to replicas and to the append-only file.

use super::api::server;
use super::call::{Argument, Call, OwnedString};
use super::{listeners, log};
use redis_module::raw;
use std::ffi::c_int;
use std::sync::atomic::AtomicBool;
use tokenbucket_core::effect::{self, Effect};

/// How a write is replicated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replication {
    /// The effect; the call while there is no listener, because that is free and counts as a change for the save points.
    /// Should a server read the call, it decides nothing there.
    CallOrEffect,
    /// Always the effect: the call would be decided again.
    Effect,
}

/// Sends the writes of one call as one command, so that a replica never sees half of them. `effects` is called only if they
/// are sent.
#[inline(always)]
pub(crate) fn replicate<'call, E: AsRef<[(Argument<'call>, Effect)]>>(
    call: &Call,
    replication: Replication,
    effects: impl FnOnce() -> E,
) {
    if replication == Replication::CallOrEffect && !listeners::may_exist() {
        replicate_verbatim(call);
        return;
    }
    let status = match effects().as_ref() {
        [(name, effect)] => replicate_one(call, name, effect),
        all => replicate_all(call, all),
    };
    if status != 0 {
        warn_of_refusal(call);
    }
}

fn replicate_one(call: &Call, name: &Argument, effect: &Effect) -> c_int {
    let effect = effect.encode();
    let bytes = effect.as_ref();
    // SAFETY: the context is valid for the call, the name is a constant, and the format says one string and one
    // buffer with its length, which is what follows.
    unsafe {
        server!(RedisModule_Replicate)(
            call.context,
            effect::COMMAND.as_ptr(),
            c"sb".as_ptr(),
            name.string,
            bytes.as_ptr(),
            bytes.len(),
        )
    }
}

fn replicate_all(call: &Call, effects: &[(Argument, Effect)]) -> c_int {
    let encoded: Vec<OwnedString> =
        effects.iter().map(|(_, effect)| OwnedString::new(effect.encode().as_ref())).collect();
    let mut arguments: Vec<*mut raw::RedisModuleString> =
        effects.iter().zip(&encoded).flat_map(|((name, _), effect)| [name.string, effect.0]).collect();
    // SAFETY: the context is valid for the call, the name is a constant, and the format says a vector of strings
    // with its length, which is what follows. The server keeps references of its own.
    unsafe {
        server!(RedisModule_Replicate)(
            call.context,
            effect::COMMAND.as_ptr(),
            c"v".as_ptr(),
            arguments.as_mut_ptr(),
            arguments.len(),
        )
    }
}

/// Warns of a server that does not know the command. No known server does that, but nothing else would report it.
#[cold]
fn warn_of_refusal(call: &Call) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    log::warn_once(
        &WARNED,
        call.context,
        "the server does not replicate TB.RESTORE: replicas and files go stale",
    );
}

/// Sends the call itself.
#[inline]
pub(crate) fn replicate_verbatim(call: &Call) {
    // SAFETY: the context is valid for the call.
    unsafe { server!(RedisModule_ReplicateVerbatim)(call.context) };
}
