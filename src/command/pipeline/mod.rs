//! The steps of every command that decides: open the keys, plan, admit, store, expire, replicate, announce, reply.
//!
//! A call of several buckets takes them over its [parts](Part), all or nothing; most calls of one bucket have no part, because
//! [`decide_alone`] takes the same steps in registers.

mod one_of;
mod part;
mod wait;

pub(super) use one_of::run_one_of;
pub(super) use part::Part;
use part::{Request, Stored};
pub(super) use wait::run_or_wait;

use crate::redis::{replicate, waiting, Access, BucketKey, Call, Decisions, Replication, COUNTERS};
use tokenbucket_core::bucket::{Decision, Operation, Outcome, NEVER_MS};
use tokenbucket_core::effect::Effect;
use tokenbucket_core::error::{Error, Refusal};
use tokenbucket_core::request::{self, Wanted};

/// Decides on one bucket, changes it, and replies.
///
/// # Errors
/// Without having changed anything.
#[inline(always)] // Once per command, whose operation is constant.
pub(super) fn run_one<'call>(call: Call<'call>, request: Request<'call>) -> Result<(), Refusal> {
    let key = BucketKey::open(call, request.key, Access::Write)?;
    let decision = match request.wanted {
        Wanted::Tokens(operation) if is_alone(&key) => decide_alone(request, operation, key)?,
        _ => decide_with_others(request, key.into_cold())?,
    };
    call.reply_decision(&decision);
    Ok(())
}

/// Returns whether the bucket has no holds, and no calls wait.
#[inline(always)]
fn is_alone(key: &BucketKey) -> bool {
    !key.is_extended() && !waiting::is_any()
}

/// Does the steps of [`decide`] on one bucket that is alone. There are two because a slice of one stays in memory, which costs
/// each take 140 instructions more (callgrind, Redis 7.0.15).
#[inline(always)]
fn decide_alone(request: Request, operation: Operation, mut key: BucketKey) -> Result<Decision, Error> {
    let call = *key.call();
    let mut outcome = request.limit.decide(key.bucket(), operation, call.now_us())?;
    part::admit(&key, &mut outcome)?;
    let written = part::store(&mut key, outcome.change);
    drop(key);
    let stored = Stored::alone(&request, outcome, written);
    if let Some(written) = written {
        replicate(&call, Replication::CallOrEffect, || [stored.effect(&call, written)]);
    }
    stored.announce(&call);
    // It owns nothing. To look for an override to free costs each take 30 instructions.
    std::mem::forget(stored);
    COUNTERS.decision(outcome.decision.allowed != 0);
    Ok(outcome.decision)
}

/// Decides on a hold, on a bucket with holds, or while calls wait, off the hot path.
#[inline(never)]
fn decide_with_others<'call>(request: Request<'call>, key: BucketKey<'call>) -> Result<Decision, Refusal> {
    let call = *key.call();
    decide(&call, Part::planned(&request, key)?, Replication::CallOrEffect)
}

/// Decides on one bucket, changes nothing, and replies.
///
/// # Errors
/// Becomes the reply.
#[inline(always)]
pub(super) fn peek(call: Call) -> Result<(), Refusal> {
    let request = request::peek(call.arguments())?;
    let key = BucketKey::open(call, request.key, Access::Read)?;
    let outcome = match request.wanted {
        Wanted::Tokens(operation) if is_alone(&key) && !request.limit.is_pool() => {
            request.limit.decide(key.bucket(), operation, call.now_us()).map_err(Error::from)?
        }
        _ => peek_with_others(request, key.into_cold())?,
    };
    call.reply_decision(&outcome.decision);
    Ok(())
}

/// Overrides the limit of a bucket, and replies as [`peek`] under the limit that counts now.
///
/// # Errors
/// Without having changed anything.
pub(super) fn override_limit<'call>(call: Call<'call>, request: Request<'call>) -> Result<(), Refusal> {
    let mut key = BucketKey::open(call, request.key, Access::Write)?;
    if waiting::is_any() {
        waiting::mark_replaced(&key);
    }
    let written = part::store_override(&mut key, &request);
    let plan = request.plan(key.bucket(), key.extension_mut(), 0, call.now_us())?;
    let part = Part::new(&request, key, plan);
    let decision = part.outcome().decision;
    drop(part);
    let is_removed = written == Some(Effect::Cleared);
    if let Some(effect) = written {
        replicate(&call, Replication::Effect, || [(request.key, effect.clone())]);
    }
    call.notify(c"tb.override", &request.key);
    if is_removed {
        call.notify_deleted(&request.key);
    }
    call.reply_decision(&decision);
    Ok(())
}

#[cold]
#[inline(never)]
fn peek_with_others<'call>(request: Request<'call>, key: BucketKey<'call>) -> Result<Outcome, Error> {
    Ok(Part::planned(&request, key)?.outcome())
}

/// Decides on several buckets, changes all of them or none, and replies.
///
/// # Errors
/// Without having changed anything.
pub(super) fn run_together<'call>(call: Call<'call>, requests: &[Request<'call>]) -> Result<(), Refusal> {
    let (parts, verdict) = open(call, requests, Access::Write)?;
    call.reply_decisions(&commit_all(&call, parts, verdict, Replication::CallOrEffect));
    Ok(())
}

/// Opens the keys of a call, plans each part, and admits all parts, or none.
fn open<'request, 'call>(
    call: Call<'call>,
    requests: &'request [Request<'call>],
    access: Access,
) -> Result<(Vec<Part<'request, 'call>>, Verdict), Refusal> {
    let mut parts = Vec::with_capacity(requests.len());
    for (place, request) in requests.iter().enumerate() {
        let part = BucketKey::open(call, request.key, access).and_then(|key| Part::planned(request, key));
        parts.push(part.map_err(|error| error.at(place))?);
    }
    let verdict = admit(&call, &mut parts)?;
    Ok((parts, verdict))
}

/// Changes the only bucket of a call as planned, and returns the decision.
///
/// # Errors
/// Without having changed anything.
#[inline(always)]
pub(super) fn decide(call: &Call, mut part: Part, replication: Replication) -> Result<Decision, Refusal> {
    let verdict = admit(call, std::slice::from_mut(&mut part))?;
    Ok(commit(call, &[part.store()], verdict, replication))
}

/// The decision on a call over all its buckets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Allowed,
    /// Denied now. Waiting may help.
    Denied,
    /// Denied, and waiting never helps.
    Never,
}

/// Admits all parts of a call, or none.
#[inline(always)]
fn admit(call: &Call, parts: &mut [Part]) -> Result<Verdict, Refusal> {
    if !parts.iter().any(Part::is_denied) {
        for (place, part) in parts.iter_mut().enumerate() {
            part.admit().map_err(|error| error.at(place))?;
        }
        return Ok(Verdict::Allowed);
    }
    let is_possible = is_possible(call, parts);
    parts.iter_mut().for_each(Part::deny_by_another);
    Ok(if is_possible { Verdict::Denied } else { Verdict::Never })
}

/// Returns whether all parts of a denied call may be granted after the longest wait of one.
fn is_possible(call: &Call, parts: &[Part]) -> bool {
    let mut waits_ms = parts.iter().map(|part| part.plan.retry_after_ms());
    let longest_ms = waits_ms.clone().max().unwrap_or(0);
    let then_us = longest_ms.saturating_mul(1000).saturating_add(call.now_us());
    let until_us = |part: &Part| part.request().possible_until_us(part.key.extension(), call.now_us());
    waits_ms.all(|wait_ms| wait_ms != NEVER_MS) && parts.iter().all(|part| then_us < until_us(part))
}

/// Changes all buckets as admitted, and returns the decision on the call and on each.
fn commit_all(call: &Call, parts: Vec<Part>, verdict: Verdict, replication: Replication) -> Decisions {
    let stored: Vec<_> = parts.into_iter().map(Part::store).collect();
    let binding = commit(call, &stored, verdict, replication);
    Decisions { binding, each: each(&stored) }
}

/// Replicates, announces and counts what was stored. Returns the decision that binds the call.
#[inline(always)]
fn commit(call: &Call, stored: &[Stored], verdict: Verdict, replication: Replication) -> Decision {
    replicate_all(call, stored, replication);
    for one in stored {
        one.announce(call);
    }
    let binding = binding(stored, verdict);
    if !stored.iter().any(Stored::is_late) {
        COUNTERS.decision(binding.allowed != 0);
    }
    binding
}

/// Stores a denied call: it writes only if the clock stepped back, so that the buckets continue from the new time.
fn store_denied<'request, 'call>(
    call: &Call,
    parts: Vec<Part<'request, 'call>>,
    replication: Replication,
) -> Vec<Stored<'request, 'call>> {
    let stored: Vec<_> = parts.into_iter().map(Part::store).collect();
    replicate_all(call, &stored, replication);
    stored
}

/// Returns the decision that binds a call.
#[inline(always)]
fn binding(stored: &[Stored], verdict: Verdict) -> Decision {
    let mut binding = Decision::binding(stored.iter().map(|one| one.outcome.decision));
    if verdict == Verdict::Never {
        binding.retry_after_ms = NEVER_MS;
    }
    binding
}

/// Returns the decision on each bucket.
fn each(stored: &[Stored]) -> Vec<Decision> {
    stored.iter().map(|one| one.outcome.decision).collect()
}

/// Sends the writes of a call as one unit to replicas.
#[inline(always)]
fn replicate_all(call: &Call, stored: &[Stored], replication: Replication) {
    let written = || stored.iter().filter_map(|one| Some((one, one.written?)));
    if written().next().is_some() {
        replicate(call, replication, || {
            written().map(|(one, written)| one.effect(call, written)).collect::<Vec<_>>()
        });
    }
}
