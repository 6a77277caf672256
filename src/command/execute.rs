//! What every command that decides does: open the key, decide, store, replicate, announce.

use crate::bucket::{Change, Decision, Operation, Outcome};
use crate::effect::{Effect, ExpiryWindow};
use crate::error::Error;
use crate::redis::{count, on_oom, replicate, Access, Argument, BucketKey, Call, OnOom, Replication};
use crate::request::Request;
use std::ffi::CStr;

/// Decides on one bucket, writes what follows from it, and returns what to reply.
///
/// # Errors
/// Without having changed anything.
#[inline(always)] // Once per command, with the operation that is its own.
pub(super) fn execute<'call>(
    call: Call<'call>,
    request: &Request<'call, Argument<'call>>,
) -> Result<Decision, Error> {
    let key = BucketKey::open(call, *request.key, Access::Write)?;
    let mut outcome = decide(&key, request)?;
    admit(&key, &mut outcome)?;
    apply(request, key, &outcome, Replication::CallOrEffect);
    Ok(outcome.decision)
}

/// Decides on one bucket and leaves it as it is.
///
/// # Errors
/// [`Error::WrongType`].
#[inline]
pub(super) fn peek<'call>(
    call: Call<'call>,
    request: &Request<'call, Argument<'call>>,
) -> Result<Decision, Error> {
    let key = BucketKey::open(call, *request.key, Access::Read)?;
    Ok(decide(&key, request)?.decision)
}

/// What the request comes to on the bucket behind an open key.
#[inline(always)]
pub(super) fn decide(key: &BucketKey, request: &Request<'_, Argument<'_>>) -> Result<Outcome, Error> {
    request.limit.decide(key.bucket(), request.operation, key.call().now_us()).map_err(|_| Error::DebtTooDeep)
}

/// Lets an outcome pass unless it would create a bucket for which there is no memory.
#[inline]
pub(super) fn admit(key: &BucketKey, outcome: &mut Outcome) -> Result<(), Error> {
    let creates = key.bucket().is_none() && matches!(outcome.change, Change::Store { .. });
    if creates && key.is_out_of_memory() {
        match on_oom() {
            OnOom::Deny => return Err(Error::OutOfMemory),
            OnOom::Allow => outcome.change = Change::Keep,
        }
    }
    Ok(())
}

/// Stores what was decided on one bucket, closes its key, and lets everybody know who has to.
#[inline(always)]
pub(super) fn apply<'call>(
    request: &Request<'call, Argument<'call>>,
    mut key: BucketKey<'call>,
    outcome: &Outcome,
    replication: Replication,
) {
    let call = *key.call();
    if let Some(effect) = store(&mut key, outcome) {
        replicate(&call, replication, &[(*request.key, effect)]);
    }
    drop(key);
    announce(&call, request, outcome);
    count().decision(outcome.decision.allowed != 0);
}

/// Stores what was decided. `None` if nothing was written.
#[inline(always)]
pub(super) fn store(key: &mut BucketKey, outcome: &Outcome) -> Option<Effect> {
    let effect = match outcome.change {
        Change::Keep => return None,
        Change::Store { bucket, full_at_us } => {
            key.store(bucket);
            let expire_at_ms = key.expire_within(ExpiryWindow::new(full_at_us, key.call().now_us()));
            Effect::Stored { bucket, expire_at_ms: Some(expire_at_ms) }
        }
        Change::Clear => {
            key.delete();
            Effect::Cleared
        }
    };
    key.signal_modified();
    Some(effect)
}

/// Counts what left one bucket, and sends its keyspace event, once its key is closed.
#[inline]
pub(super) fn announce(call: &Call, request: &Request<'_, Argument<'_>>, outcome: &Outcome) {
    count().granted(outcome);
    if let Some(event) = event(request.operation, outcome) {
        call.notify(event, request.key);
        if outcome.change == Change::Clear {
            call.notify_deleted(request.key);
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
        // Counts on from a clock that stepped back.
        _ if outcome.granted_micro == 0 => None,
        _ => Some(c"tb.take"),
    }
}
