//! Several buckets in one call: decide on all of them, then change all of them, or none.

use super::{announce, Decide, Written};
use crate::redis::{counters, replicate, Access, BucketKey, Call, Replication};
use tokenbucket_core::bucket::{Decision, Outcome};
use tokenbucket_core::error::Refusal;

/// What a call over several buckets wants of one of them.
pub(in crate::command) trait DecideTogether<'call>: Decide<'call> {
    /// Whether the plan keeps the other buckets of the call from being changed.
    fn is_denied(&self, plan: &Self::Plan) -> bool;

    /// The plan for a bucket that would have allowed its part of a call that another bucket denies.
    fn denied_by_another(&self, key: &BucketKey<'call>) -> Self::Plan;

    /// How long to wait by this plan alone; -1 is without end.
    fn retry_after_ms(&self, plan: &Self::Plan) -> i64;

    /// From when on, in Unix microseconds, waiting no longer helps.
    fn possible_until_us(&self, _key: &BucketKey<'call>) -> i64 {
        i64::MAX
    }
}

/// Decides on all buckets, changes all of them or none, and replies.
///
/// # Errors
/// Without having changed anything.
pub(in crate::command) fn run_together<'call, D: DecideTogether<'call>>(
    call: Call<'call>,
    requests: &[D],
) -> Result<(), Refusal> {
    let (keys, plans, is_possible) = plan(call, requests)?;
    let outcomes = store(&call, requests, keys, &plans);
    for ((request, plan), outcome) in requests.iter().zip(&plans).zip(&outcomes) {
        announce(&call, request, plan, outcome);
    }
    let mut binding = Decision::binding(outcomes.iter().map(|outcome| outcome.decision));
    if !is_possible {
        binding.retry_after_ms = -1;
    }
    if requests.iter().zip(&outcomes).all(|(request, outcome)| !request.is_late(outcome)) {
        counters().decision(binding.allowed != 0);
    }
    reply(&call, &binding, &outcomes);
    Ok(())
}

type Plans<'call, Plan> = (Vec<BucketKey<'call>>, Vec<Plan>, bool);

/// Opens all keys, decides on their buckets, and lets all of them pass or none; whether the call can ever pass.
fn plan<'call, D: DecideTogether<'call>>(
    call: Call<'call>,
    requests: &[D],
) -> Result<Plans<'call, D::Plan>, Refusal> {
    let mut keys = Vec::with_capacity(requests.len());
    let mut plans = Vec::with_capacity(requests.len());
    for (place, request) in requests.iter().enumerate() {
        let opened = BucketKey::open(call, *request.key(), Access::Write);
        let mut key = opened.map_err(|error| error.at(place))?;
        plans.push(request.decide(&mut key).map_err(|error| error.at(place))?);
        keys.push(key);
    }
    let is_denied = requests.iter().zip(&plans).any(|(request, plan)| request.is_denied(plan));
    let is_possible = !is_denied || is_possible(&call, requests, &keys, &plans);
    for (place, ((request, key), plan)) in requests.iter().zip(&keys).zip(&mut plans).enumerate() {
        if !is_denied {
            request.admit(key, plan).map_err(|error| error.at(place))?;
        } else if !request.is_denied(plan) {
            *plan = request.denied_by_another(key);
        }
    }
    Ok((keys, plans, is_possible))
}

/// Whether all parts of a denied call can still be had after the longest wait of one of them.
fn is_possible<'call, D: DecideTogether<'call>>(
    call: &Call<'call>,
    requests: &[D],
    keys: &[BucketKey<'call>],
    plans: &[D::Plan],
) -> bool {
    let waits_ms = requests.iter().zip(plans).map(|(request, plan)| request.retry_after_ms(plan));
    let then_us = waits_ms.max().unwrap_or(0).saturating_mul(1000).saturating_add(call.now_us());
    requests.iter().zip(keys).all(|(request, key)| then_us < request.possible_until_us(key))
}

/// Changes all buckets as planned, as one unit for replicas, and closes their keys.
fn store<'call, D: DecideTogether<'call>>(
    call: &Call<'call>,
    requests: &[D],
    mut keys: Vec<BucketKey<'call>>,
    plans: &[D::Plan],
) -> Vec<Outcome> {
    let mut outcomes = Vec::with_capacity(requests.len());
    let mut all_written = Vec::with_capacity(requests.len());
    for ((request, key), plan) in requests.iter().zip(&mut keys).zip(plans) {
        let (outcome, written) = request.store(key, plan);
        outcomes.push(outcome);
        all_written.extend(written.map(|written| (request, plan, written)));
    }
    if !all_written.is_empty() {
        replicate(call, Replication::CallOrEffect, || {
            let effect = |(request, plan, written): (&D, &D::Plan, Written)| {
                (*request.key(), written.effect(request.hold_changes(call, plan)))
            };
            all_written.into_iter().map(effect).collect::<Vec<_>>()
        });
    }
    outcomes
}

/// Replies the binding decision, and that of each bucket.
fn reply(call: &Call, binding: &Decision, outcomes: &[Outcome]) {
    call.reply_array(5);
    call.reply_decision_fields(binding);
    call.reply_array(outcomes.len());
    for outcome in outcomes {
        call.reply_decision(&outcome.decision);
    }
}
