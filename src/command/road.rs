//! The one road that a decision takes: open, decide, store, replicate, tell, reply.

use crate::bucket::{Change, Decision, Operation, Outcome};
use crate::effect::{Effect, ExpiryWindow};
use crate::error::Error;
use crate::redis::{
    count, now_us, on_oom, replicate, replicate_deletion, Access, Argument, BucketKey, Call, OnOom, Written,
};
use crate::request::Request;
use std::ffi::CStr;

/// Decides on one bucket, makes it so, and returns what to reply.
///
/// # Errors
/// Without having changed anything.
#[inline(always)] // Once per command, with the operation that is its own.
pub(super) fn spend<'call>(
    call: Call<'call>,
    request: &Request<'call, Argument<'call>>,
) -> Result<Decision, Error> {
    let key = BucketKey::open(call, *request.key, Access::Write)?;
    let now_us = now_us();
    let mut outcome = decide(&key, request, now_us)?;
    admit(&key, &mut outcome)?;
    conclude(&call, request, key, &outcome, now_us);
    Ok(outcome.decision)
}

/// Makes an outcome so on the open key of one bucket, and lets everybody know who has to.
#[inline(always)]
pub(super) fn conclude<'call>(
    call: &Call<'call>,
    request: &Request<'call, Argument<'call>>,
    mut key: BucketKey<'call>,
    outcome: &Outcome,
    now_us: i64,
) {
    match write(&mut key, outcome, now_us) {
        Trace::None => {}
        Trace::Written(written) => replicate(call, &[written]),
        Trace::Deleted => replicate_deletion(call, key.name()),
    }
    drop(key);
    tell(call, request, outcome);
    count().decision(outcome.decision.allowed != 0);
}

/// Decides on one bucket and leaves it as it is.
///
/// # Errors
/// [`Error::WrongType`].
#[inline]
pub(super) fn foresee<'call>(
    call: Call<'call>,
    request: &Request<'call, Argument<'call>>,
) -> Result<Decision, Error> {
    let key = BucketKey::open(call, *request.key, Access::Read)?;
    Ok(decide(&key, request, now_us())?.decision)
}

/// What the request comes to on the bucket behind an open key.
#[inline(always)]
pub(super) fn decide(
    key: &BucketKey,
    request: &Request<'_, Argument<'_>>,
    now_us: i64,
) -> Result<Outcome, Error> {
    request.limit.decide(key.bucket(), request.operation, now_us).map_err(|_| Error::DebtTooDeep)
}

/// Lets an outcome pass unless it would create a bucket for which there is no memory.
#[inline(always)]
pub(super) fn admit(key: &BucketKey, outcome: &mut Outcome) -> Result<(), Error> {
    let creates = key.bucket().is_none() && matches!(outcome.change, Change::Store { .. });
    if creates && key.call().is_out_of_memory() {
        match on_oom() {
            OnOom::Deny => return Err(Error::OutOfMemory),
            OnOom::Allow => outcome.change = Change::Keep,
        }
    }
    Ok(())
}

/// What a write leaves for replicas to follow.
pub(super) enum Trace<'call> {
    None,
    Written(Written<'call>),
    Deleted,
}

/// Makes an outcome so.
#[inline(always)]
pub(super) fn write<'call>(key: &mut BucketKey<'call>, outcome: &Outcome, now_us: i64) -> Trace<'call> {
    match outcome.change {
        Change::Keep => Trace::None,
        Change::Store { bucket, full_at_us } => {
            key.store(bucket);
            let expire_at_ms = key.expire_within(ExpiryWindow::new(full_at_us, now_us), now_us);
            key.signal_modified();
            Trace::Written(Written {
                name: *key.name(),
                effect: Effect { bucket, expire_at_ms: Some(expire_at_ms) },
            })
        }
        Change::Clear => {
            key.delete();
            key.signal_modified();
            Trace::Deleted
        }
    }
}

/// Counts and announces what became of one bucket, once its key is closed.
#[inline(always)]
pub(super) fn tell(call: &Call, request: &Request<'_, Argument<'_>>, outcome: &Outcome) {
    count().granted(outcome);
    if let Some(event) = event(request.operation, outcome) {
        call.notify(event, request.key);
        if outcome.change == Change::Clear {
            call.notify_generic(c"del", request.key);
        }
    }
}

/// The keyspace event of an outcome: nothing for a call that neither moved a token nor was denied any.
#[inline]
fn event(operation: Operation, outcome: &Outcome) -> Option<&'static CStr> {
    if outcome.decision.allowed == 0 {
        return Some(c"tb.deny");
    }
    match (operation, outcome.change) {
        (_, Change::Keep) => None,
        (Operation::Give { .. }, _) => Some(c"tb.give"),
        _ => Some(c"tb.take"),
    }
}
