//! `TB.MTAKE numkeys key capacity rate cost […]`: several buckets, all or nothing.
//!
//! Requests a minute and tokens a minute, a user's limit and the tenant's: taking one before knowing the other
//! would have to be undone, and undoing is a race.

use super::execute::{admit, announce, decide, denied_by_another, store};
use crate::redis::spec::{
    ArgumentSpec, Audience, Command, FromMaster, Keys, Kind, Spec, CAPACITY, COST, KEY, NUMKEYS, RATE,
};
use crate::redis::{counters, replicate, Access, Argument, BucketKey, Call, Replication};
use tokenbucket_core::bucket::{Decision, Outcome};
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request::{self, Request};

pub(crate) struct MultiTake;

impl Command for MultiTake {
    const SPEC: Spec = Spec {
        name: c"TB.MTAKE",
        summary: c"Takes from several buckets, each with its own limit and cost, all or nothing",
        complexity: c"O(N) where N is the number of buckets",
        since: c"0.1.0",
        arity: -6,
        audience: Audience::Writers,
        from_master: FromMaster::Ignored,
        keys: Keys::CountedEveryFourth { first: 2 },
        arguments: &[NUMKEYS, ArgumentSpec::required(c"bucket", Kind::Groups(&[KEY, CAPACITY, RATE, COST]))],
    };

    fn run(call: Call) -> Result<(), Refusal> {
        let requests = request::multi_take(call.arguments())?;
        let outcomes = take_together(call, &requests)?;
        for (request, outcome) in requests.iter().zip(&outcomes) {
            announce(&call, request, outcome);
        }
        let binding = binding(&outcomes);
        counters().decision(binding.allowed != 0);
        reply(&call, &binding, &outcomes);
        Ok(())
    }
}

/// Decides on all buckets and stores what follows from it. All keys are closed again when it returns.
fn take_together<'call>(
    call: Call<'call>,
    requests: &[Request<'call, Argument<'call>>],
) -> Result<Vec<Outcome>, Refusal> {
    let mut keys = Vec::with_capacity(requests.len());
    let mut outcomes = Vec::with_capacity(requests.len());
    for (place, request) in requests.iter().enumerate() {
        let key = BucketKey::open(call, *request.key, Access::Write).map_err(|error| error.at(place))?;
        outcomes.push(decide(&key, request).map_err(|error| error.at(place))?);
        keys.push(key);
    }
    if outcomes.iter().all(is_allowed) {
        for (place, (key, outcome)) in keys.iter().zip(&mut outcomes).enumerate() {
            admit(key, outcome).map_err(|error| error.at(place))?;
        }
    } else {
        for ((request, key), outcome) in requests.iter().zip(&keys).zip(&mut outcomes) {
            if is_allowed(outcome) {
                *outcome = denied_by_another(key, &request.limit);
            }
        }
    }
    commit(&call, &mut keys, &outcomes);
    Ok(outcomes)
}

fn is_allowed(outcome: &Outcome) -> bool {
    outcome.decision.allowed != 0
}

/// Writes all that is to be written, as one unit for replicas.
fn commit(call: &Call, keys: &mut [BucketKey], outcomes: &[Outcome]) {
    let mut written = Vec::with_capacity(keys.len());
    for (key, outcome) in keys.iter_mut().zip(outcomes) {
        if let Some(one) = store(key, outcome) {
            written.push((*key.name(), one));
        }
    }
    if !written.is_empty() {
        replicate(call, Replication::CallOrEffect, || {
            let effects = written.into_iter().map(|(name, one)| (name, one.effect(Vec::new())));
            effects.collect::<Vec<_>>()
        });
    }
}

/// Replies the binding decision, and that of each bucket.
pub(super) fn reply(call: &Call, binding: &Decision, outcomes: &[Outcome]) {
    call.reply_array(5);
    call.reply_decision_fields(binding);
    call.reply_array(outcomes.len());
    for outcome in outcomes {
        call.reply_decision(&outcome.decision);
    }
}

/// The decision that binds the caller: the tightest of each field over all buckets.
pub(super) fn binding(outcomes: &[Outcome]) -> Decision {
    let decisions = outcomes.iter().map(|outcome| outcome.decision);
    decisions.reduce(tighter).unwrap_or(Decision {
        allowed: 1,
        remaining: 0,
        retry_after_ms: 0,
        reset_after_ms: 0,
    })
}

/// The tighter of two decisions, field by field.
fn tighter(one: Decision, other: Decision) -> Decision {
    Decision {
        allowed: one.allowed.min(other.allowed),
        remaining: one.remaining.min(other.remaining),
        retry_after_ms: longer(one.retry_after_ms, other.retry_after_ms),
        reset_after_ms: longer(one.reset_after_ms, other.reset_after_ms),
    }
}

/// The longer of two waits. One of -1 never ends.
fn longer(one_ms: i64, other_ms: i64) -> i64 {
    if one_ms.min(other_ms) < 0 {
        return -1;
    }
    one_ms.max(other_ms)
}
