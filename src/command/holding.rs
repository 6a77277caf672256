//! What every command that changes holds does: first decide on all its buckets, then change all of them, or none.

use super::execute::{denied_by_another, store, HoldCounts, Written};
use super::multi_take::{binding, reply};
use crate::redis::{
    announce_denial, counters, max_holds, on_oom, replicate, Access, Argument, BucketKey, Call, OnOom,
    Replication,
};
use std::ffi::CStr;
use tokenbucket_core::bucket::{Bucket, Change, Decision, Operation, Outcome, MAX_TIME_US};
use tokenbucket_core::effect::HoldChange;
use tokenbucket_core::error::{Error, Refusal};
use tokenbucket_core::expiry::ExpiryWindow;
use tokenbucket_core::hold::{Hold, HoldPlan, Holds};
use tokenbucket_core::request::{HoldOperation, HoldRequest};

type Request<'call> = HoldRequest<'call, Argument<'call>>;

/// Decides on one bucket, changes it, and returns what to reply.
///
/// # Errors
/// Without having changed anything.
pub(super) fn execute<'call>(call: Call<'call>, request: &Request<'call>) -> Result<Decision, Error> {
    let mut key = BucketKey::open(call, *request.key, Access::Write)?;
    let mut holding = decide(&mut key, request)?;
    admit(&key, request, &mut holding)?;
    let (outcome, written) = apply(&mut key, request, holding);
    if let Some(written) = written {
        replicate(&call, Replication::CallOrEffect, || {
            [(*request.key, written.effect(changes(&call, request, &holding)))]
        });
    }
    drop(key);
    announce(&call, request, &holding, &outcome);
    if !is_late(request, &outcome) {
        counters().decision(outcome.decision.allowed != 0);
    }
    Ok(outcome.decision)
}

/// The same on several buckets, with the reply. Holds are set in all of them or in none, and settled where they are.
///
/// # Errors
/// Without having changed anything.
pub(super) fn execute_together<'call>(call: Call<'call>, requests: &[Request<'call>]) -> Result<(), Refusal> {
    let mut keys = Vec::with_capacity(requests.len());
    let mut holdings = Vec::with_capacity(requests.len());
    for (place, request) in requests.iter().enumerate() {
        let mut key = BucketKey::open(call, *request.key, Access::Write).map_err(|error| error.at(place))?;
        holdings.push(decide(&mut key, request).map_err(|error| error.at(place))?);
        keys.push(key);
    }
    let mut never = false;
    if requests.iter().zip(&holdings).any(|(request, holding)| is_denied(request, holding)) {
        never = comes_too_late(&call, requests, &keys, &holdings);
        for ((request, key), holding) in requests.iter().zip(&keys).zip(&mut holdings) {
            if !is_denied(request, holding) {
                *holding = HoldPlan::Keep(denied_by_another(key, &request.limit));
            }
        }
    } else {
        for (place, ((request, key), holding)) in requests.iter().zip(&keys).zip(&mut holdings).enumerate() {
            admit(key, request, holding).map_err(|error| error.at(place))?;
        }
    }
    let mut outcomes = Vec::with_capacity(requests.len());
    let mut written = Vec::with_capacity(requests.len());
    for ((request, key), holding) in requests.iter().zip(&mut keys).zip(&holdings) {
        let (outcome, one) = apply(key, request, *holding);
        outcomes.push(outcome);
        written.extend(one.map(|one| (request, *holding, one)));
    }
    if !written.is_empty() {
        replicate(&call, Replication::CallOrEffect, || {
            let effect = |(request, holding, written): (&Request<'call>, HoldPlan, Written)| {
                (*request.key, written.effect(changes(&call, request, &holding)))
            };
            written.into_iter().map(effect).collect::<Vec<_>>()
        });
    }
    drop(keys);
    for ((request, holding), outcome) in requests.iter().zip(&holdings).zip(&outcomes) {
        announce(&call, request, holding, outcome);
    }
    let mut binding = binding(&outcomes);
    if never {
        binding.retry_after_ms = -1;
    }
    if requests.iter().zip(&outcomes).all(|(request, outcome)| !is_late(request, outcome)) {
        counters().decision(binding.allowed != 0);
    }
    reply(&call, &binding, &outcomes);
    Ok(())
}

/// Whether a hold may not be set. One that is not there to be settled is none of these.
fn is_denied(request: &Request, holding: &HoldPlan) -> bool {
    let is_set = matches!(request.operation, HoldOperation::Set { .. });
    is_set && matches!(holding, HoldPlan::Keep(outcome) if outcome.decision.allowed == 0)
}

/// Whether a hold was to be settled that is not there.
fn is_late(request: &Request, outcome: &Outcome) -> bool {
    matches!(request.operation, HoldOperation::Settle { .. }) && outcome.decision.allowed == 0
}

/// What the request comes to on the bucket behind an open key, which stays as it is.
fn decide(key: &mut BucketKey, request: &Request) -> Result<HoldPlan, Error> {
    let (stored, now_us) = (key.bucket(), key.call().now_us());
    let (limit, id) = (&request.limit, request.id.as_ref());
    match request.operation {
        HoldOperation::Settle { used_micro } => {
            let none = Holds::default();
            let holds = key.holds().unwrap_or(&none);
            Ok(limit.settle(stored, holds, id, used_micro, now_us)?)
        }
        HoldOperation::Set { amount_micro, .. } => {
            let mut none = Holds::default();
            let holds = key.holds_mut().unwrap_or(&mut none);
            let is_new = amount_micro > 0 && holds.outstanding_of(id, now_us).is_none();
            if is_new && holds.len() >= max_holds() && holds.outstanding(now_us) >= max_holds() {
                return Err(Error::TooManyHolds);
            }
            Ok(limit.hold(stored, holds, id, amount_micro, now_us))
        }
    }
}

/// Lets a decision pass unless it would create a hold for which there is no memory.
///
/// A call that passes without a hold (`on-oom allow`) gets the reply of a take. A bucket that exists goes on being
/// enforced: the tokens are taken, and come back at its rate. Nothing would bring those of a pool back, so it denies.
fn admit(key: &BucketKey, request: &Request, holding: &mut HoldPlan) -> Result<(), Error> {
    let (HoldOperation::Set { amount_micro, .. }, HoldPlan::Change { taken_micro, .. }) =
        (request.operation, *holding)
    else {
        return Ok(());
    };
    let is_new = amount_micro > 0 && taken_micro == amount_micro;
    if !is_new || !key.is_out_of_memory() {
        return Ok(());
    }
    let is_stored = key.bucket().is_some();
    if on_oom() == OnOom::Deny || (is_stored && request.limit.is_pool()) {
        return Err(if is_stored { Error::HoldOutOfMemory } else { Error::OutOfMemory });
    }
    let none = Holds::default();
    let take = Operation::Take { cost_micro: amount_micro };
    let (holds, now_us) = (key.holds().unwrap_or(&none), key.call().now_us());
    let outcome = request.limit.decide_with(key.bucket(), holds, take, now_us)?;
    let change = if is_stored { outcome.change } else { Change::Keep };
    *holding = HoldPlan::Keep(Outcome { change, ..outcome });
    Ok(())
}

/// Changes one bucket as was decided. Nothing is returned to be replicated if nothing was written.
fn apply(key: &mut BucketKey, request: &Request, holding: HoldPlan) -> (Outcome, Option<Written>) {
    let (bucket, taken_micro) = match holding {
        HoldPlan::Keep(outcome) => return (outcome, store(key, &outcome)),
        HoldPlan::Change { bucket, taken_micro } => (bucket, taken_micro),
    };
    let now_us = key.call().now_us();
    let hold = hold(key.call(), request);
    let dropped = key.ended_holds();
    key.change_holds(dropped, |holds| match hold {
        Some(hold) => holds.set(hold),
        None => drop(holds.remove(request.id.as_ref())),
    });
    let outcome = match key.holds() {
        Some(holds) => request.limit.outcome_of_hold(bucket, holds, taken_micro, now_us),
        None => request.limit.outcome_of_hold(bucket, &Holds::default(), taken_micro, now_us),
    };
    let written = write(key, bucket, &outcome, dropped);
    let retry_after_ms = match request.operation {
        HoldOperation::Set { .. } => 0,
        HoldOperation::Settle { .. } => outcome.decision.retry_after_ms,
    };
    (Outcome { decision: Decision { retry_after_ms, ..outcome.decision }, ..outcome }, Some(written))
}

fn write(key: &mut BucketKey, bucket: Bucket, outcome: &Outcome, dropped: usize) -> Written {
    let written = match outcome.change {
        Change::Store { full_at_us, .. } => {
            let len = key.store_with_holds(bucket);
            let expire_at_ms = key.expire_within(ExpiryWindow::new(full_at_us, key.call().now_us()));
            Written::Stored { bucket, expire_at_ms, holds: Some(HoldCounts { dropped, len }) }
        }
        Change::Keep | Change::Clear => {
            key.delete();
            Written::Cleared
        }
    };
    key.signal_modified();
    written
}

/// The hold that there is to be; `None` if it ends.
fn hold(call: &Call, request: &Request) -> Option<Hold> {
    let HoldOperation::Set { amount_micro, ttl_ms } = request.operation else {
        return None;
    };
    let ends_at_us = call.now_us().saturating_add(ttl_ms.saturating_mul(1000)).min(MAX_TIME_US);
    Hold::checked(request.id.as_ref(), amount_micro, ends_at_us)
}

/// What replicas and files are told of the holds.
fn changes(call: &Call, request: &Request, holding: &HoldPlan) -> Vec<HoldChange> {
    match holding {
        HoldPlan::Keep(_) => Vec::new(),
        HoldPlan::Change { .. } => vec![match hold(call, request) {
            Some(hold) => HoldChange::Set(hold),
            None => HoldChange::Removed(request.id.as_ref().into()),
        }],
    }
}

/// Whether one of the holds can no longer be set when all the others can.
fn comes_too_late(call: &Call, requests: &[Request], keys: &[BucketKey], holdings: &[HoldPlan]) -> bool {
    let wait_ms = holdings.iter().map(|holding| match holding {
        HoldPlan::Keep(outcome) => outcome.decision.retry_after_ms,
        HoldPlan::Change { .. } => 0,
    });
    let then_us = wait_ms.max().unwrap_or(0).saturating_mul(1000).saturating_add(call.now_us());
    requests.iter().zip(keys).any(|(request, key)| match (request.operation, key.holds()) {
        (HoldOperation::Set { amount_micro, .. }, Some(holds)) => {
            let id = request.id.as_ref();
            then_us >= request.limit.holdable_until_us(holds, id, amount_micro, call.now_us())
        }
        _ => false,
    })
}

/// Counts what left one bucket, and sends its keyspace event, once its key is closed.
fn announce(call: &Call, request: &Request, holding: &HoldPlan, outcome: &Outcome) {
    counters().granted(outcome);
    if is_late(request, outcome) {
        counters().settled_late();
        return;
    }
    if outcome.decision.allowed == 0 {
        return announce_denial(call, request.key);
    }
    if let Some(event) = event(request, holding, outcome) {
        call.notify(event, request.key);
        if outcome.change == Change::Clear {
            call.notify_deleted(request.key);
        }
    }
}

fn event(request: &Request, holding: &HoldPlan, outcome: &Outcome) -> Option<&'static CStr> {
    match (holding, request.operation) {
        (HoldPlan::Change { .. }, HoldOperation::Set { .. }) => Some(c"tb.hold"),
        (HoldPlan::Change { .. }, HoldOperation::Settle { .. }) => Some(c"tb.settle"),
        // Taken without a hold.
        (HoldPlan::Keep(_), _) if outcome.change != Change::Keep => Some(c"tb.take"),
        (HoldPlan::Keep(_), _) => None,
    }
}
