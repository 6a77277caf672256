//! Holds: what `TB.HOLD`, `TB.SETTLE`, `TB.MHOLD` and `TB.MSETTLE` want of a bucket.

use super::together::DecideTogether;
use super::tokens::{denied_behind, denied_behind_others, denied_by_another, store};
use super::{update_holds, Decide, Written};
use crate::redis::waiting::Part;
use crate::redis::{max_holds, on_oom, waiting, Argument, BucketKey, Call, OnOom};
use std::ffi::CStr;
use tokenbucket_core::bucket::{Change, Decision, Operation, Outcome, MAX_TIME_US};
use tokenbucket_core::effect::HoldChange;
use tokenbucket_core::error::Error;
use tokenbucket_core::hold::{Hold, HoldPlan, Holds};
use tokenbucket_core::request::{HoldOperation, HoldRequest};

type Request<'call> = HoldRequest<'call, Argument<'call>>;

impl<'call> Decide<'call> for Request<'call> {
    type Plan = HoldPlan;

    fn key(&self) -> &Argument<'call> {
        self.key
    }

    fn decide(&self, key: &mut BucketKey<'call>) -> Result<HoldPlan, Error> {
        let plan = decide(self, key)?;
        if waiting::is_any() && !key.call().is_its_turn() {
            return Ok(beside_others(self, key, plan));
        }
        Ok(plan)
    }

    /// A call that passes without a hold (`on-oom allow`) gets the reply of a take. A bucket that exists goes on being
    /// enforced: the tokens are taken, and come back at its rate. Nothing would bring those of a pool back, so it denies.
    fn admit(&self, key: &BucketKey<'call>, plan: &mut HoldPlan) -> Result<(), Error> {
        let (HoldOperation::Set { amount_micro, .. }, HoldPlan::Change { taken_micro, .. }) =
            (self.operation, *plan)
        else {
            return Ok(());
        };
        let is_new = amount_micro > 0 && taken_micro == amount_micro;
        if !is_new || !key.is_out_of_memory() {
            return Ok(());
        }
        let is_stored = key.bucket().is_some();
        if on_oom() == OnOom::Deny || (is_stored && self.limit.is_pool()) {
            return Err(if is_stored { Error::HoldOutOfMemory } else { Error::OutOfMemory });
        }
        let none = Holds::default();
        let take = Operation::Take { cost_micro: amount_micro };
        let (holds, now_us) = (key.holds().unwrap_or(&none), key.call().now_us());
        let outcome = self.limit.decide_with(key.bucket(), holds, take, now_us)?;
        let change = if is_stored { outcome.change } else { Change::Keep };
        *plan = HoldPlan::Keep(Outcome { change, ..outcome });
        Ok(())
    }

    fn store(&self, key: &mut BucketKey<'call>, plan: &HoldPlan) -> (Outcome, Option<Written>) {
        let (bucket, taken_micro) = match *plan {
            HoldPlan::Keep(outcome) => return (outcome, store(key, &outcome)),
            HoldPlan::Change { bucket, taken_micro } => (bucket, taken_micro),
        };
        let (hold, now_us) = (hold(self, key.call()), key.call().now_us());
        let (written, outcome) = update_holds(key, |holds| {
            match hold {
                Some(hold) => holds.set(hold),
                None => drop(holds.remove(self.id.as_ref())),
            }
            let outcome = self.limit.outcome_of_hold(bucket, holds, taken_micro, now_us);
            (outcome.change, outcome)
        });
        let retry_after_ms = match self.operation {
            HoldOperation::Set { .. } => 0,
            HoldOperation::Settle { .. } => outcome.decision.retry_after_ms,
        };
        (Outcome { decision: Decision { retry_after_ms, ..outcome.decision }, ..outcome }, Some(written))
    }

    fn hold_changes(&self, call: &Call, plan: &HoldPlan) -> Vec<HoldChange> {
        match plan {
            HoldPlan::Keep(_) => Vec::new(),
            HoldPlan::Change { .. } => vec![match hold(self, call) {
                Some(hold) => HoldChange::Set(hold),
                None => HoldChange::Removed(self.id.as_ref().into()),
            }],
        }
    }

    fn event(&self, plan: &HoldPlan, outcome: &Outcome) -> Option<&'static CStr> {
        match (plan, self.operation) {
            (HoldPlan::Change { .. }, HoldOperation::Set { .. }) => Some(c"tb.hold"),
            (HoldPlan::Change { .. }, HoldOperation::Settle { .. }) => Some(c"tb.settle"),
            // Taken without a hold.
            (HoldPlan::Keep(_), _) if outcome.change != Change::Keep => Some(c"tb.take"),
            (HoldPlan::Keep(_), _) => None,
        }
    }

    fn is_late(&self, outcome: &Outcome) -> bool {
        matches!(self.operation, HoldOperation::Settle { .. }) && outcome.decision.allowed == 0
    }
}

/// Decides as if nobody waited for the bucket.
fn decide<'call>(request: &Request<'call>, key: &mut BucketKey<'call>) -> Result<HoldPlan, Error> {
    let (stored, now_us) = (key.bucket(), key.call().now_us());
    let (limit, id) = (&request.limit, request.id.as_ref());
    let mut none = Holds::default();
    let holds = key.holds_mut().unwrap_or(&mut none);
    match request.operation {
        HoldOperation::Settle { used_micro } => Ok(limit.settle(stored, holds, id, used_micro, now_us)?),
        HoldOperation::Set { amount_micro, .. } => {
            let is_new = amount_micro > 0 && holds.outstanding_of(id, now_us).is_none();
            if is_new && holds.len() >= max_holds() && holds.outstanding(now_us) >= max_holds() {
                return Err(Error::TooManyHolds);
            }
            Ok(limit.hold(stored, holds, id, amount_micro, now_us))
        }
    }
}

/// The plan while others wait, who may come first.
#[cold]
#[inline(never)]
fn beside_others<'call>(request: &Request<'call>, key: &BucketKey<'call>, plan: HoldPlan) -> HoldPlan {
    let denied = deny_behind_others(request, key, &plan);
    if denied.is_none() {
        waiting::mark_hold(key, request.id.as_ref());
    }
    denied.unwrap_or(plan)
}

/// The denial of a hold that wants what somebody lacks who waits for it; `None` if it wants nothing like that.
fn deny_behind_others<'call>(
    request: &Request<'call>,
    key: &BucketKey<'call>,
    plan: &HoldPlan,
) -> Option<HoldPlan> {
    let planned = match plan {
        HoldPlan::Keep(outcome) => Some(outcome),
        HoldPlan::Change { .. } => None,
    };
    denied_behind_others(&request.limit, key, lacking_micro(request, key), planned).map(HoldPlan::Keep)
}

/// Micro-tokens that a hold wants in addition to what it has.
fn lacking_micro<'call>(request: &Request<'call>, key: &BucketKey<'call>) -> i64 {
    let HoldOperation::Set { amount_micro, .. } = request.operation else {
        return 0;
    };
    let held = key.holds().and_then(|holds| holds.outstanding_of(request.id.as_ref(), key.call().now_us()));
    amount_micro.saturating_sub(held.map_or(0, |held| held.amount_micro))
}

impl<'call> DecideTogether<'call> for Request<'call> {
    /// A hold that is not there to be settled denies nothing to the other buckets.
    fn is_denied(&self, plan: &HoldPlan) -> bool {
        let is_set = matches!(self.operation, HoldOperation::Set { .. });
        is_set && matches!(plan, HoldPlan::Keep(outcome) if outcome.decision.allowed == 0)
    }

    fn denied_by_another(&self, key: &BucketKey<'call>) -> HoldPlan {
        HoldPlan::Keep(denied_by_another(&self.limit, key))
    }

    fn retry_after_ms(&self, plan: &HoldPlan) -> i64 {
        match plan {
            HoldPlan::Keep(outcome) => outcome.decision.retry_after_ms,
            HoldPlan::Change { .. } => 0,
        }
    }

    fn part(&self) -> Part {
        let wanted_micro = match self.operation {
            HoldOperation::Set { amount_micro, .. } => amount_micro,
            HoldOperation::Settle { .. } => 0,
        };
        let (key, id) = (self.key.retain(), Some(self.id.retain()));
        Part { key, limit: self.limit, wanted_micro, id }
    }

    fn denial(&self, key: &BucketKey<'call>, plan: &HoldPlan, is_denied: bool) -> Outcome {
        match plan {
            HoldPlan::Keep(outcome) if is_denied => *outcome,
            _ => denied_behind(&self.limit, key, lacking_micro(self, key), 0),
        }
    }

    fn possible_until_us(&self, key: &BucketKey<'call>) -> i64 {
        match (self.operation, key.holds()) {
            (HoldOperation::Set { amount_micro, .. }, Some(holds)) => {
                let now_us = key.call().now_us();
                self.limit.holdable_until_us(holds, self.id.as_ref(), amount_micro, now_us)
            }
            _ => i64::MAX,
        }
    }
}

/// The hold that there is to be; `None` if it ends.
fn hold(request: &Request, call: &Call) -> Option<Hold> {
    let HoldOperation::Set { amount_micro, ttl_ms } = request.operation else {
        return None;
    };
    let ends_at_us = call.now_us().saturating_add(ttl_ms.saturating_mul(1000)).min(MAX_TIME_US);
    Hold::checked(request.id.as_ref(), amount_micro, ends_at_us)
}
