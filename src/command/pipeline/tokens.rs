//! Taking and giving: what `TB.TAKE`, `TB.TAKEUPTO`, `TB.RESERVE`, `TB.CHARGE`, `TB.GIVE` and `TB.MTAKE` want of a bucket.

use super::together::DecideTogether;
use super::{run, update_holds, Decide, Written};
use crate::redis::waiting::Part;
use crate::redis::{on_oom, waiting, Access, Argument, BucketKey, Call, OnOom, Replication};
use std::ffi::CStr;
use tokenbucket_core::bucket::{Bucket, Change, Decision, Limit, NoHolds, Operation, Outcome, NEVER_MS};
use tokenbucket_core::error::Error;
use tokenbucket_core::hold::Holds;
use tokenbucket_core::number::MICRO_PER_TOKEN;
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
    if key.has_holds() || waiting::is_any() {
        return execute_with_others(*request, key.into_cold());
    }
    Ok(run(key, &Alone(request), Replication::CallOrEffect)?.1.decision)
}

/// The same on a bucket that has holds, or while calls wait, out of the way of all others.
#[cold]
#[inline(never)]
fn execute_with_others<'call>(
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
    let key = BucketKey::open(call, *request.key, Access::Read)?;
    if waiting::is_any() {
        return peek_behind_others(*request, key.into_cold());
    }
    Ok(decide(request, &key)?.decision)
}

#[cold]
#[inline(never)]
fn peek_behind_others<'call>(
    request: Request<'call, Argument<'call>>,
    key: BucketKey<'call>,
) -> Result<Decision, Error> {
    let outcome = decide(&request, &key)?;
    Ok(deny_behind_others(&request, &key, &outcome).unwrap_or(outcome).decision)
}

impl<'call> Decide<'call> for Request<'call, Argument<'call>> {
    type Plan = Outcome;

    #[inline(always)]
    fn key(&self) -> &Argument<'call> {
        self.key
    }

    #[inline(always)]
    fn decide(&self, key: &mut BucketKey<'call>) -> Result<Outcome, Error> {
        let outcome = decide(self, key)?;
        if waiting::is_any() && !key.call().is_its_turn() {
            return Ok(beside_others(self, key, outcome));
        }
        Ok(outcome)
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

/// Decides as if nobody waited for the bucket.
#[inline(always)]
fn decide<'call>(
    request: &Request<'call, Argument<'call>>,
    key: &BucketKey<'call>,
) -> Result<Outcome, Error> {
    let (Request { limit, operation, .. }, now_us) = (request, key.call().now_us());
    match key.holds() {
        None => Ok(limit.decide(key.bucket(), *operation, now_us)?),
        Some(holds) => decide_with_holds(*limit, key.bucket(), holds, *operation, now_us),
    }
}

/// The outcome while others wait, who may come first.
#[cold]
#[inline(never)]
fn beside_others<'call>(
    request: &Request<'call, Argument<'call>>,
    key: &BucketKey<'call>,
    outcome: Outcome,
) -> Outcome {
    let denied = deny_behind_others(request, key, &outcome);
    if denied.is_none() {
        waiting::mark(key);
    }
    denied.unwrap_or(outcome)
}

/// The denial of a call that wants what somebody lacks who waits for it; `None` if it wants nothing like that.
fn deny_behind_others<'call>(
    request: &Request<'call, Argument<'call>>,
    key: &BucketKey<'call>,
    outcome: &Outcome,
) -> Option<Outcome> {
    denied_behind_others(&request.limit, key, wanted_micro(request.operation), Some(outcome))
}

/// The outcome for a bucket of which a call wants so much that somebody lacks who waits for it; `None` if nobody does, or
/// if the call was denied for good.
pub(super) fn denied_behind_others(
    limit: &Limit,
    key: &BucketKey,
    wanted_micro: i64,
    planned: Option<&Outcome>,
) -> Option<Outcome> {
    let is_for_good = |decision: Decision| decision.allowed == 0 && decision.retry_after_ms == NEVER_MS;
    if wanted_micro <= 0 || planned.is_some_and(|planned| is_for_good(planned.decision)) {
        return None;
    }
    let ahead_micro = waiting::wanted_before(key)?;
    Some(denied_behind(limit, key, wanted_micro, ahead_micro))
}

/// Micro-tokens without which a call is denied.
fn wanted_micro(operation: Operation) -> i64 {
    match operation {
        Operation::Take { cost_micro } | Operation::Reserve { cost_micro, .. } => cost_micro,
        Operation::TakeUpTo { .. } => MICRO_PER_TOKEN,
        Operation::Charge { .. } | Operation::Give { .. } => 0,
    }
}

/// The outcome for a bucket of which others want `ahead_micro` first.
pub(super) fn denied_behind(limit: &Limit, key: &BucketKey, cost_micro: i64, ahead_micro: i64) -> Outcome {
    let now_us = key.call().now_us();
    match key.holds() {
        None => limit.denied_behind(key.bucket(), NoHolds, cost_micro, ahead_micro, now_us),
        Some(holds) => limit.denied_behind(key.bucket(), holds, cost_micro, ahead_micro, now_us),
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

    fn part(&self) -> Part {
        let wanted_micro = wanted_micro(self.operation);
        Part { key: self.key.retain(), limit: self.limit, wanted_micro, id: None }
    }

    fn denial(&self, key: &BucketKey<'call>, outcome: &Outcome, is_denied: bool) -> Outcome {
        if is_denied {
            return *outcome;
        }
        denied_behind(&self.limit, key, wanted_micro(self.operation), 0)
    }
}

/// A request on a bucket that is known to have no holds, while nobody waits.
struct Alone<'request, 'call>(&'request Request<'call, Argument<'call>>);

impl<'call> Decide<'call> for Alone<'_, 'call> {
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
