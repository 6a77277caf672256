//! Sending the result of a write to replicas and to the append-only file.

use super::api::server;
use super::call::{Argument, Call, OwnedString};
use super::listeners;
use crate::effect::{self, Effect, EFFECT_LEN};
use redis_module::raw;

/// A bucket that was written.
pub(crate) struct Written<'call> {
    /// Its key.
    pub(crate) name: Argument<'call>,
    /// What it holds now.
    pub(crate) effect: Effect,
}

/// Sends what was written by one call, as one command, so that a replica never sees half of it.
#[inline]
pub(crate) fn replicate(call: &Call, written: &[Written]) {
    if !listeners::may_exist() {
        // Nobody reads it. Sent all the same, because it is free and counts as a change for the save points;
        // and should somebody be listening after all, the call itself is better than nothing.
        replicate_verbatim(call);
        return;
    }
    match written {
        [] => {}
        [only] => replicate_one(call, only),
        all => replicate_all(call, all),
    }
}

#[inline]
fn replicate_one(call: &Call, written: &Written) {
    let effect = written.effect.encode();
    // SAFETY: the context is valid for the call, the name is a constant, and the format says one string and one
    // buffer with its length, which is what follows.
    unsafe {
        server!(RedisModule_Replicate)(
            call.context,
            effect::COMMAND.as_ptr(),
            c"sb".as_ptr(),
            written.name.string,
            effect.as_ptr(),
            EFFECT_LEN,
        );
    }
}

fn replicate_all(call: &Call, written: &[Written]) {
    let effects: Vec<OwnedString> =
        written.iter().map(|one| OwnedString::new(&one.effect.encode())).collect();
    let mut arguments: Vec<*mut raw::RedisModuleString> =
        written.iter().zip(&effects).flat_map(|(one, effect)| [one.name.string, effect.0]).collect();
    // SAFETY: the context is valid for the call, the name is a constant, and the format says a vector of strings
    // with its length, which is what follows. The server keeps references of its own.
    unsafe {
        server!(RedisModule_Replicate)(
            call.context,
            effect::COMMAND.as_ptr(),
            c"v".as_ptr(),
            arguments.as_mut_ptr(),
            arguments.len(),
        );
    }
}

/// Sends that a key is gone.
pub(crate) fn replicate_deletion(call: &Call, name: &Argument) {
    // SAFETY: the context is valid for the call, the names are constants, and the format says one string.
    unsafe {
        server!(RedisModule_Replicate)(call.context, c"DEL".as_ptr(), c"s".as_ptr(), name.string);
    }
}

/// Sends the call as it came.
#[inline]
pub(crate) fn replicate_verbatim(call: &Call) {
    // SAFETY: the context is valid for the call.
    unsafe { server!(RedisModule_ReplicateVerbatim)(call.context) };
}
