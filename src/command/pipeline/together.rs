//! Several buckets in one call: decide on all of them, then change all of them, or none.

use super::{announce, Decide, Written};
use crate::redis::waiting::Part;
use crate::redis::{announce_denial, counters, replicate, Access, BucketKey, Call, Decisions, Replication};
use tokenbucket_core::bucket::{Decision, Outcome, NEVER_MS};
use tokenbucket_core::error::Refusal;

/// What a call over several buckets wants of one of them.
pub(in crate::command) trait DecideTogether<'call>: Decide<'call> {
    /// Whether the plan keeps the other buckets of the call from being changed.
    fn is_denied(&self, plan: &Self::Plan) -> bool;

    /// The plan for a bucket that would have allowed its part of a call that another bucket denies.
    fn denied_by_another(&self, key: &BucketKey<'call>) -> Self::Plan;

    /// How long to wait by this plan alone; -1 is without end.
    fn retry_after_ms(&self, plan: &Self::Plan) -> i64;

    /// What the call wants of the bucket while it waits.
    fn part(&self) -> Part;

    /// The outcome if the call is denied although nobody changes the bucket. `is_denied` if it was planned so; otherwise it
    /// is not the call's turn.
    fn denial(&self, key: &BucketKey<'call>, plan: &Self::Plan, is_denied: bool) -> Outcome;

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
    let planned = Planned::new(call, requests, Access::Write)?;
    call.reply_decisions(&planned.commit(Replication::CallOrEffect));
    Ok(())
}

/// A call over several buckets that has been decided, and has changed nothing yet.
pub(super) struct Planned<'requests, 'call, D: Decide<'call>> {
    call: Call<'call>,
    requests: &'requests [D],
    keys: Vec<BucketKey<'call>>,
    plans: Vec<D::Plan>,
    is_denied: bool,
    /// Whether waiting can help.
    is_possible: bool,
}

impl<'requests, 'call, D: DecideTogether<'call>> Planned<'requests, 'call, D> {
    /// Opens all keys, decides on their buckets, and lets all of them pass or none.
    pub(super) fn new(call: Call<'call>, requests: &'requests [D], access: Access) -> Result<Self, Refusal> {
        let mut keys = Vec::with_capacity(requests.len());
        let mut plans = Vec::with_capacity(requests.len());
        for (place, request) in requests.iter().enumerate() {
            let opened = BucketKey::open(call, *request.key(), access);
            keys.push(opened.map_err(|error| error.at(place))?);
            if let Some(key) = keys.last_mut() {
                plans.push(request.decide(key).map_err(|error| error.at(place))?);
            }
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
        Ok(Self { call, requests, keys, plans, is_denied, is_possible })
    }

    pub(super) fn is_denied(&self) -> bool {
        self.is_denied
    }

    /// Whether a call that is denied may be granted later.
    pub(super) fn is_worth_waiting(&self) -> bool {
        let waits_ms =
            self.requests.iter().zip(&self.plans).map(|(request, plan)| request.retry_after_ms(plan));
        self.is_possible && waits_ms.min() != Some(NEVER_MS)
    }

    /// Changes all buckets as planned, announces it, and returns the decisions.
    pub(super) fn commit(mut self, replication: Replication) -> Decisions {
        let outcomes = self.store(replication);
        let Self { call, requests, plans, is_possible, .. } = self;
        for ((request, plan), outcome) in requests.iter().zip(&plans).zip(&outcomes) {
            announce(&call, request, plan, outcome);
        }
        let is_counted = requests.iter().zip(&outcomes).all(|(request, outcome)| !request.is_late(outcome));
        let decisions = decisions(outcomes, is_possible);
        if is_counted {
            counters().decision(decisions.binding.allowed != 0);
        }
        decisions
    }

    /// Changes all buckets as planned, as one unit for replicas, and closes their keys.
    pub(super) fn store(&mut self, replication: Replication) -> Vec<Outcome> {
        let Self { call, requests, keys, plans, .. } = self;
        let mut outcomes = Vec::with_capacity(requests.len());
        let mut all_written = Vec::with_capacity(requests.len());
        for ((request, key), plan) in requests.iter().zip(&mut *keys).zip(&*plans) {
            let (outcome, written) = request.store(key, plan);
            outcomes.push(outcome);
            all_written.extend(written.map(|written| (request, plan, written)));
        }
        if !all_written.is_empty() {
            replicate(call, replication, || {
                let effect = |(request, plan, written): (&D, &D::Plan, Written)| {
                    (*request.key(), written.effect(request.hold_changes(call, plan)))
                };
                all_written.into_iter().map(effect).collect::<Vec<_>>()
            });
        }
        keys.clear();
        outcomes
    }

    /// Denies the call whatever its buckets hold, writes nothing, and returns the decisions.
    pub(super) fn deny(self) -> Decisions {
        let Self { call, requests, keys, plans, is_denied, is_possible } = self;
        let parts = requests.iter().zip(&keys).zip(&plans);
        let outcomes: Vec<Outcome> =
            parts.map(|((request, key), plan)| request.denial(key, plan, is_denied)).collect();
        drop(keys);
        for (request, _) in
            requests.iter().zip(&outcomes).filter(|(_, outcome)| outcome.decision.allowed == 0)
        {
            announce_denial(&call, request.key());
        }
        counters().decision(false);
        decisions(outcomes, is_possible)
    }
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

fn decisions(each: Vec<Outcome>, is_possible: bool) -> Decisions {
    let mut binding = Decision::binding(each.iter().map(|outcome| outcome.decision));
    if !is_possible {
        binding.retry_after_ms = NEVER_MS;
    }
    Decisions { binding, each }
}
