//! Several buckets in one call: plan all of them, then change all of them, or none.

use super::planned::{Planned, Stored};
use super::Request;
use crate::redis::waiting::Part;
use crate::redis::{announce_denial, counters, replicate, Access, Call, Decisions, Replication};
use tokenbucket_core::bucket::{Decision, NEVER_MS};
use tokenbucket_core::error::Refusal;

/// A call over several buckets that has been decided, and has changed nothing yet.
pub(super) struct Joint<'request, 'call> {
    call: Call<'call>,
    buckets: Vec<Planned<'request, 'call>>,
    pub(super) is_denied: bool,
    /// Whether waiting can help.
    is_possible: bool,
}

impl<'request, 'call> Joint<'request, 'call> {
    /// Opens all keys, decides on their buckets, and lets all of them pass or none.
    pub(super) fn open(
        call: Call<'call>,
        requests: &'request [Request<'call>],
        access: Access,
    ) -> Result<Self, Refusal> {
        let mut buckets = Vec::with_capacity(requests.len());
        for (place, request) in requests.iter().enumerate() {
            buckets.push(Planned::open(call, request, access).map_err(|error| error.at(place))?);
        }
        let is_denied = buckets.iter().any(Planned::is_denied);
        let is_possible = !is_denied || is_possible(&call, &buckets);
        for (place, bucket) in buckets.iter_mut().enumerate() {
            if is_denied {
                bucket.deny_by_another();
            } else {
                bucket.admit().map_err(|error| error.at(place))?;
            }
        }
        Ok(Self { call, buckets, is_denied, is_possible })
    }

    /// Returns what a denied call wants of its buckets while it waits; nothing if waiting cannot help.
    pub(super) fn parts(&self) -> Vec<Part> {
        if !self.is_worth_waiting() {
            return Vec::new();
        }
        self.buckets.iter().map(Planned::part).collect()
    }

    /// Returns whether the call is denied now, and may be granted later.
    pub(super) fn is_worth_waiting(&self) -> bool {
        let never = |bucket: &Planned| bucket.plan.retry_after_ms() == NEVER_MS;
        self.is_denied && self.is_possible && !self.buckets.iter().any(never)
    }

    /// Changes all buckets as planned, announces it, and returns the decisions.
    pub(super) fn commit(self, replication: Replication) -> Decisions {
        let Self { call, is_possible, .. } = self;
        let stored = self.store(replication);
        stored.iter().for_each(|bucket| bucket.announce(&call));
        let decisions = decisions(stored.iter().map(|bucket| bucket.outcome.decision).collect(), is_possible);
        if !stored.iter().any(Stored::is_late) {
            counters().decision(decisions.binding.allowed != 0);
        }
        decisions
    }

    /// Changes all buckets as planned, as one unit for replicas, and closes their keys.
    pub(super) fn store(self, replication: Replication) -> Vec<Stored<'request, 'call>> {
        let Self { call, buckets, .. } = self;
        let stored: Vec<Stored> = buckets.into_iter().map(Planned::store::<false>).collect();
        if stored.iter().any(|bucket| bucket.written.is_some()) {
            replicate(&call, replication, || {
                let effect = |bucket: &Stored<'_, 'call>| {
                    bucket.written.map(|written| (*bucket.request.key, bucket.effect(&call, written)))
                };
                stored.iter().filter_map(effect).collect::<Vec<_>>()
            });
        }
        stored
    }

    /// Denies the call whatever its buckets hold, writes nothing, and returns the decisions.
    pub(super) fn deny(self) -> Decisions {
        let Self { call, buckets, is_denied, is_possible } = self;
        let denial = |bucket: &Planned| if is_denied { bucket.outcome() } else { bucket.denied_behind(0) };
        let denied: Vec<_> =
            buckets.into_iter().map(|bucket| (bucket.request.key, denial(&bucket).decision)).collect();
        for (key, _) in denied.iter().filter(|(_, decision)| decision.allowed == 0) {
            announce_denial(&call, key);
        }
        counters().decision(false);
        decisions(denied.into_iter().map(|(_, decision)| decision).collect(), is_possible)
    }
}

/// Returns whether all parts of a denied call can still be had after the longest wait of one of them.
fn is_possible(call: &Call, buckets: &[Planned]) -> bool {
    let longest_ms = buckets.iter().map(|bucket| bucket.plan.retry_after_ms()).max();
    let then_us = longest_ms.unwrap_or(0).saturating_mul(1000).saturating_add(call.now_us());
    buckets.iter().all(|bucket| then_us < bucket.possible_until_us())
}

fn decisions(each: Vec<Decision>, is_possible: bool) -> Decisions {
    let mut binding = Decision::binding(each.iter().copied());
    if !is_possible {
        binding.retry_after_ms = NEVER_MS;
    }
    Decisions { binding, each }
}
