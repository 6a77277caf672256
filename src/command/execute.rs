//! What every command that decides does: open the key, decide, store, replicate, announce.

use crate::redis::{
    announce_denial, counters, on_oom, replicate, Access, Argument, BucketKey, Call, OnOom, Replication,
};
use std::ffi::CStr;
use tokenbucket_core::bucket::{Bucket, Change, Decision, Limit, NoHolds, Operation, Outcome};
use tokenbucket_core::effect::{Effect, HoldChange, HoldChanges};
use tokenbucket_core::error::Error;
use tokenbucket_core::expiry::ExpiryWindow;
use tokenbucket_core::hold::Holds;
use tokenbucket_core::request::Request;

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
    if key.has_holds() {
        return execute_with_holds(*request, key.into_cold());
    }
    let mut outcome = decide_alone(&key, request)?;
    admit(&key, &mut outcome)?;
    apply::<false>(request, key, &outcome, Replication::CallOrEffect);
    Ok(outcome.decision)
}

/// The same on a bucket that has holds: out of the way of all others.
#[cold]
#[inline(never)]
fn execute_with_holds<'call>(
    request: Request<'call, Argument<'call>>,
    key: BucketKey<'call>,
) -> Result<Decision, Error> {
    let outcome = decide(&key, &request)?;
    apply::<true>(&request, key, &outcome, Replication::CallOrEffect);
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
    match key.holds() {
        None => decide_alone(key, request),
        Some(holds) => {
            decide_with_holds(request.limit, key.bucket(), holds, request.operation, key.call().now_us())
        }
    }
}

#[inline(always)]
fn decide_alone(key: &BucketKey, request: &Request<'_, Argument<'_>>) -> Result<Outcome, Error> {
    Ok(request.limit.decide(key.bucket(), request.operation, key.call().now_us())?)
}

#[cold]
#[inline(never)] // By values, so that the caller can keep them in registers.
fn decide_with_holds(
    limit: Limit,
    stored: Option<Bucket>,
    holds: &Holds,
    operation: Operation,
    now_us: i64,
) -> Result<Outcome, Error> {
    Ok(limit.decide_with(stored, holds, operation, now_us)?)
}

/// What becomes of a bucket that would have allowed what another denies.
pub(super) fn denied_by_another(key: &BucketKey, limit: &Limit) -> Outcome {
    let now_us = key.call().now_us();
    match key.holds() {
        None => limit.denied_by_another(key.bucket(), NoHolds, now_us),
        Some(holds) => limit.denied_by_another(key.bucket(), holds, now_us),
    }
}

/// Lets an outcome pass unless it would create a bucket for which there is no memory.
#[inline(always)]
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
pub(super) fn apply<'call, const MAY_HAVE_HOLDS: bool>(
    request: &Request<'call, Argument<'call>>,
    mut key: BucketKey<'call>,
    outcome: &Outcome,
    replication: Replication,
) {
    let call = *key.call();
    let written = if MAY_HAVE_HOLDS { store(&mut key, outcome) } else { store_alone(&mut key, outcome) };
    if let Some(written) = written {
        replicate(&call, replication, || [(*request.key, written.effect(Vec::new()))]);
    }
    drop(key);
    announce(&call, request, outcome);
    counters().decision(outcome.decision.allowed != 0);
}

/// What a replica needs to drop the holds that were dropped here, and to notice that it lacks some.
#[derive(Clone, Copy)]
pub(super) struct HoldCounts {
    pub(super) dropped: usize,
    pub(super) len: usize,
}

/// What was written to one key.
#[derive(Clone, Copy)]
pub(super) enum Written {
    Stored {
        bucket: Bucket,
        expire_at_ms: i64,
        /// If holds were changed: how many were dropped because they had ended, and how many there are now.
        holds: Option<HoldCounts>,
    },
    Cleared,
}

impl Written {
    /// What replicas and files are sent of it, with the holds that were set or removed.
    #[inline]
    pub(super) fn effect(self, changes: Vec<HoldChange>) -> Effect {
        match self {
            Self::Stored { bucket, expire_at_ms, holds: None } => {
                Effect::Stored { bucket, expire_at_ms: Some(expire_at_ms) }
            }
            Self::Stored { bucket, expire_at_ms, holds: Some(HoldCounts { dropped, len }) } => {
                let [dropped, len] = [dropped, len].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
                let holds = HoldChanges { dropped, changes, len };
                Effect::Changed { bucket, expire_at_ms: Some(expire_at_ms), holds }
            }
            Self::Cleared => Effect::Cleared,
        }
    }
}

/// Stores what was decided. `None` if nothing was written.
#[inline]
pub(super) fn store(key: &mut BucketKey, outcome: &Outcome) -> Option<Written> {
    match outcome.change {
        Change::Store { bucket, full_at_us } if key.has_holds() => {
            Some(store_with_holds(key, bucket, full_at_us))
        }
        _ => store_alone(key, outcome),
    }
}

/// The same where nothing is held.
#[inline(always)]
pub(super) fn store_alone(key: &mut BucketKey, outcome: &Outcome) -> Option<Written> {
    let written = match outcome.change {
        Change::Keep => return None,
        Change::Store { bucket, full_at_us } => {
            key.store(bucket);
            let expire_at_ms = key.expire_within(ExpiryWindow::new(full_at_us, key.call().now_us()));
            Written::Stored { bucket, expire_at_ms, holds: None }
        }
        Change::Clear => {
            key.delete();
            Written::Cleared
        }
    };
    key.signal_modified();
    Some(written)
}

/// Stores a bucket whose holds go on.
#[cold]
fn store_with_holds(key: &mut BucketKey, bucket: Bucket, full_at_us: i64) -> Written {
    let dropped = key.ended_holds();
    key.change_holds(dropped, |_| ());
    let len = key.store_with_holds(bucket);
    let expire_at_ms = key.expire_within(ExpiryWindow::new(full_at_us, key.call().now_us()));
    key.signal_modified();
    Written::Stored { bucket, expire_at_ms, holds: Some(HoldCounts { dropped, len }) }
}

/// Counts what left one bucket, and sends its keyspace event, once its key is closed.
#[inline(always)]
pub(super) fn announce(call: &Call, request: &Request<'_, Argument<'_>>, outcome: &Outcome) {
    counters().granted(outcome);
    if outcome.decision.allowed == 0 {
        return announce_denial(call, request.key);
    }
    if let Some(event) = event(request.operation, outcome) {
        call.notify(event, request.key);
        if outcome.change == Change::Clear {
            call.notify_deleted(request.key);
        }
    }
}

/// The keyspace event of what was allowed: nothing for a call that moved no token.
#[inline]
fn event(operation: Operation, outcome: &Outcome) -> Option<&'static CStr> {
    match (operation, outcome.change) {
        (_, Change::Keep) => None,
        (Operation::Give { .. }, _) => Some(c"tb.give"),
        // Counts on from a clock that stepped back.
        _ if outcome.granted_micro == 0 => None,
        _ => Some(c"tb.take"),
    }
}
