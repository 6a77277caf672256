//! Taking and giving: what `TB.TAKE`, `TB.TAKEUPTO`, `TB.RESERVE`, `TB.CHARGE`, `TB.GIVE` and `TB.MTAKE` want of a bucket.

use super::together::DecideTogether;
use super::{run, update_holds, Decide, Written};
use crate::redis::{on_oom, Access, Argument, BucketKey, Call, OnOom, Replication};
use std::ffi::CStr;
use tokenbucket_core::bucket::{Bucket, Change, Decision, Limit, NoHolds, Operation, Outcome};
use tokenbucket_core::error::Error;
use tokenbucket_core::hold::Holds;
use tokenbucket_core::request::Request;

/// Decides on one bucket, changes it, and returns the decision.
///
/// # Errors
/// Without having changed anything.
#[inline(always)] // Once per command, with the operation that is its own.
pub(in crate::command) fn execute<'call>(
    call: Call<'call>,
    request: &Request<'call, Argument<'call>>,
) -> Result<Decision, Error> {
    let key = BucketKey::open(call, *request.key, Access::Write)?;
    if key.has_holds() {
        return execute_with_holds(*request, key.into_cold());
    }
    Ok(run(key, &WithoutHolds(request), Replication::CallOrEffect)?.1.decision)
}

/// The same on a bucket that has holds, out of the way of all others.
#[cold]
#[inline(never)]
fn execute_with_holds<'call>(
    request: Request<'call, Argument<'call>>,
    key: BucketKey<'call>,
) -> Result<Decision, Error> {
    Ok(run(key, &request, Replication::CallOrEffect)?.1.decision)
}

/// Decides on one bucket and leaves it as it is.
///
/// # Errors
/// [`Error::WrongType`].
#[inline]
pub(in crate::command) fn peek<'call>(
    call: Call<'call>,
    request: &Request<'call, Argument<'call>>,
) -> Result<Decision, Error> {
    let mut key = BucketKey::open(call, *request.key, Access::Read)?;
    Ok(request.decide(&mut key)?.decision)
}

impl<'call> Decide<'call> for Request<'call, Argument<'call>> {
    type Plan = Outcome;

    #[inline(always)]
    fn key(&self) -> &Argument<'call> {
        self.key
    }

    #[inline(always)]
    fn decide(&self, key: &mut BucketKey<'call>) -> Result<Outcome, Error> {
        match key.holds() {
            None => WithoutHolds(self).decide(key),
            Some(holds) => {
                decide_with_holds(self.limit, key.bucket(), holds, self.operation, key.call().now_us())
            }
        }
    }

    #[inline(always)]
    fn admit(&self, key: &BucketKey<'call>, outcome: &mut Outcome) -> Result<(), Error> {
        let creates = key.bucket().is_none() && matches!(outcome.change, Change::Store { .. });
        if creates && key.is_out_of_memory() {
            match on_oom() {
                OnOom::Deny => return Err(Error::OutOfMemory),
                OnOom::Allow => outcome.change = Change::Keep,
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn store(&self, key: &mut BucketKey<'call>, outcome: &Outcome) -> (Outcome, Option<Written>) {
        (*outcome, store(key, outcome))
    }

    /// Nothing for a call that moved no token.
    #[inline(always)]
    fn event(&self, _plan: &Outcome, outcome: &Outcome) -> Option<&'static CStr> {
        match (self.operation, outcome.change) {
            (_, Change::Keep) => None,
            (Operation::Give { .. }, _) => Some(c"tb.give"),
            // Continues from a clock that stepped back.
            _ if outcome.granted_micro == 0 => None,
            _ => Some(c"tb.take"),
        }
    }
}

impl<'call> DecideTogether<'call> for Request<'call, Argument<'call>> {
    fn is_denied(&self, outcome: &Outcome) -> bool {
        outcome.decision.allowed == 0
    }

    fn denied_by_another(&self, key: &BucketKey<'call>) -> Outcome {
        denied_by_another(&self.limit, key)
    }

    fn retry_after_ms(&self, outcome: &Outcome) -> i64 {
        outcome.decision.retry_after_ms
    }
}

/// A request on a bucket that is known to have no holds.
struct WithoutHolds<'request, 'call>(&'request Request<'call, Argument<'call>>);

impl<'call> Decide<'call> for WithoutHolds<'_, 'call> {
    type Plan = Outcome;

    #[inline(always)]
    fn key(&self) -> &Argument<'call> {
        self.0.key
    }

    #[inline(always)]
    fn decide(&self, key: &mut BucketKey<'call>) -> Result<Outcome, Error> {
        let Request { limit, operation, .. } = self.0;
        Ok(limit.decide(key.bucket(), *operation, key.call().now_us())?)
    }

    #[inline(always)]
    fn admit(&self, key: &BucketKey<'call>, outcome: &mut Outcome) -> Result<(), Error> {
        self.0.admit(key, outcome)
    }

    #[inline(always)]
    fn store(&self, key: &mut BucketKey<'call>, outcome: &Outcome) -> (Outcome, Option<Written>) {
        (*outcome, store_without_holds(key, outcome))
    }

    #[inline(always)]
    fn event(&self, plan: &Outcome, outcome: &Outcome) -> Option<&'static CStr> {
        self.0.event(plan, outcome)
    }
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

/// The outcome for a bucket that would have allowed its part of a call that another bucket denies.
pub(super) fn denied_by_another(limit: &Limit, key: &BucketKey) -> Outcome {
    let now_us = key.call().now_us();
    match key.holds() {
        None => limit.denied_by_another(key.bucket(), NoHolds, now_us),
        Some(holds) => limit.denied_by_another(key.bucket(), holds, now_us),
    }
}

/// Stores an outcome that changes no hold. `None` if nothing was written.
#[inline]
pub(super) fn store(key: &mut BucketKey, outcome: &Outcome) -> Option<Written> {
    match outcome.change {
        // The holds go on, except those that have ended.
        Change::Store { .. } if key.has_holds() => Some(update_holds(key, |_| (outcome.change, ())).0),
        _ => store_without_holds(key, outcome),
    }
}

/// The same on a bucket without holds.
#[inline(always)]
fn store_without_holds(key: &mut BucketKey, outcome: &Outcome) -> Option<Written> {
    let written = match outcome.change {
        Change::Keep => return None,
        Change::Store { bucket, full_at_us } => {
            key.store(bucket);
            Written::stored(key, bucket, full_at_us, None)
        }
        Change::Clear => {
            key.delete();
            Written::Cleared
        }
    };
    key.signal_modified();
    Some(written)
}
