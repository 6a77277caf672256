//! One bucket of a call: planned, then stored.

use super::written::{self, Written};
use super::Request;
use crate::redis::waiting::{self, Part};
use crate::redis::{announce_denial, counters, max_holds, on_oom, Access, Argument, BucketKey, Call, OnOom};
use std::ffi::CStr;
use tokenbucket_core::bucket::{Change, Operation, Outcome, NEVER_MS};
use tokenbucket_core::effect::Effect;
use tokenbucket_core::error::Error;
use tokenbucket_core::hold::Plan;
use tokenbucket_core::request::Wanted;

/// An open bucket, and what the call will do to it.
pub(in crate::command) struct Planned<'request, 'call> {
    pub(in crate::command) request: &'request Request<'call>,
    pub(in crate::command) key: BucketKey<'call>,
    pub(in crate::command) plan: Plan,
}

impl<'request, 'call> Planned<'request, 'call> {
    #[inline]
    pub(super) fn open(
        call: Call<'call>,
        request: &'request Request<'call>,
        access: Access,
    ) -> Result<Self, Error> {
        Self::new(request, BucketKey::open(call, *request.key, access)?)
    }

    /// Plans what the call will do, and leaves the bucket as it is.
    #[inline(always)] // Saves a copy of what is returned.
    pub(in crate::command) fn new(
        request: &'request Request<'call>,
        mut key: BucketKey<'call>,
    ) -> Result<Self, Error> {
        let (stored, call) = (key.bucket(), *key.call());
        let plan = request.plan(stored, key.holds_mut(), max_holds(), call.now_us())?;
        let mut planned = Self { request, key, plan };
        if comes_later(&call) {
            planned.deny_behind_others();
        }
        Ok(planned)
    }

    /// Denies a call that wants what a waiting call lacks.
    #[cold]
    fn deny_behind_others(&mut self) {
        let is_for_good = self.request.is_denied(&self.plan) && self.plan.retry_after_ms() == NEVER_MS;
        if !is_for_good && self.lacking_micro() > 0 {
            let ahead_micro = waiting::wanted_before(&self.key);
            let denied = ahead_micro.map(|ahead_micro| Plan::Outcome(self.denied_behind(ahead_micro)));
            self.plan = denied.unwrap_or(self.plan);
        }
    }

    fn lacking_micro(&self) -> i64 {
        self.request.lacking_micro(self.key.holds(), self.key.call().now_us())
    }

    /// Returns the denial of a call before which others want `ahead_micro`.
    pub(super) fn denied_behind(&self, ahead_micro: i64) -> Outcome {
        let (stored, holds, now_us) = (self.key.bucket(), self.key.holds(), self.key.call().now_us());
        let lacking_micro = self.lacking_micro();
        self.request.limit.denied_behind(stored, holds, lacking_micro, ahead_micro, now_us)
    }

    pub(super) fn is_denied(&self) -> bool {
        self.request.is_denied(&self.plan)
    }

    /// Plans for a bucket whose call another bucket denies.
    pub(super) fn deny_by_another(&mut self) {
        if !self.is_denied() {
            let (stored, holds, now_us) = (self.key.bucket(), self.key.holds(), self.key.call().now_us());
            self.plan = Plan::Outcome(self.request.limit.denied_by_another(stored, holds, now_us));
        }
    }

    /// Returns what is replied if no hold is changed: what was planned, or a denial.
    pub(in crate::command) fn outcome(&self) -> Outcome {
        match self.plan {
            Plan::Outcome(outcome) => outcome,
            Plan::Hold { .. } => self.denied_behind(0),
        }
    }

    /// Returns until when waiting can help, in Unix microseconds.
    pub(super) fn possible_until_us(&self) -> i64 {
        self.request.possible_until_us(self.key.holds(), self.key.call().now_us())
    }

    /// Returns what the call wants of the bucket while it waits.
    pub(super) fn part(&self) -> Part {
        let Request { key, limit, wanted } = self.request;
        let id = self.request.id().map(Argument::retain);
        Part { key: key.retain(), limit: *limit, wanted_micro: wanted.micro(), id }
    }

    /// Lets the plan pass unless it needs memory that the server does not have.
    ///
    /// A hold that passes without one (`on-oom allow`) gets the reply of a take. A bucket that exists goes on being
    /// enforced: the tokens are taken, and come back at its rate. Nothing would bring those of a pool back, so it denies.
    #[inline(always)]
    pub(super) fn admit(&mut self) -> Result<(), Error> {
        let creates = match self.plan {
            Plan::Outcome(Outcome { change, .. }) => {
                self.key.bucket().is_none() && matches!(change, Change::Store { .. })
            }
            Plan::Hold { taken_micro, .. } => taken_micro > 0 && taken_micro == self.request.wanted.micro(),
        };
        if !creates || !self.key.is_out_of_memory() {
            return Ok(());
        }
        let exists = !self.key.is_empty();
        match &mut self.plan {
            // It takes the place of what redis-cell left.
            Plan::Outcome(_) if exists => {}
            Plan::Outcome(_) if on_oom() == OnOom::Deny => return Err(Error::OutOfMemory),
            Plan::Outcome(outcome) => outcome.change = Change::Keep,
            Plan::Hold { taken_micro, .. } => {
                let cost_micro = *taken_micro;
                if on_oom() == OnOom::Deny || (exists && self.request.limit.is_pool()) {
                    return Err(if exists { Error::HoldOutOfMemory } else { Error::OutOfMemory });
                }
                let (stored, holds, take) =
                    (self.key.bucket(), self.key.holds(), Operation::Take { cost_micro });
                let now_us = self.key.call().now_us();
                let outcome = self.request.limit.decide_with(stored, holds, take, now_us)?;
                let change = if exists { outcome.change } else { Change::Keep };
                self.plan = Plan::Outcome(Outcome { change, ..outcome });
            }
        }
        Ok(())
    }

    /// Changes the bucket as planned, and closes its key. `ALONE`: it is known to have no holds, and no calls wait.
    #[inline(always)]
    pub(super) fn store<const ALONE: bool>(self) -> Stored<'request, 'call> {
        let Self { request, mut key, plan } = self;
        let (outcome, written) = match plan {
            Plan::Outcome(outcome) if ALONE => (outcome, written::store(&mut key, outcome.change)),
            Plan::Outcome(outcome) => (outcome, written::store_with_holds(&mut key, outcome.change)),
            Plan::Hold { bucket, taken_micro } => {
                let now_us = key.call().now_us();
                let (outcome, written) = written::update_holds(&mut key, |holds| {
                    let outcome = request.change_hold(holds, bucket, taken_micro, now_us);
                    (outcome.change, outcome)
                });
                (outcome, Some(written))
            }
        };
        let changes_hold = matches!(plan, Plan::Hold { .. });
        if !ALONE && written.is_some() && comes_later(key.call()) {
            waiting::mark(&key, request.id().filter(|_| changes_hold).map(AsRef::as_ref));
        }
        Stored { request, outcome, written, changes_hold }
    }
}

/// Returns whether other calls wait, which came before this one.
fn comes_later(call: &Call) -> bool {
    waiting::is_any() && !call.is_its_turn()
}

/// What came of one bucket. Its key is closed.
pub(super) struct Stored<'request, 'call> {
    pub(super) request: &'request Request<'call>,
    pub(super) outcome: Outcome,
    /// What was written, if anything was.
    pub(super) written: Option<Written>,
    /// Whether a hold was set or ended.
    changes_hold: bool,
}

impl Stored<'_, '_> {
    /// Returns what replicas and files are sent of what was written.
    #[inline(always)]
    pub(super) fn effect(&self, call: &Call, written: Written) -> Effect {
        let change = self.changes_hold.then(|| self.request.hold_change(call.now_us())).flatten();
        written.effect(change.into_iter().collect())
    }

    /// Counts what left the bucket, and sends its keyspace event.
    #[inline(always)]
    pub(super) fn announce(&self, call: &Call) {
        counters().granted(&self.outcome);
        if self.is_late() {
            return counters().settled_late();
        }
        if self.outcome.decision.allowed == 0 {
            return announce_denial(call, self.request.key);
        }
        if let Some(event) = self.event() {
            call.notify(event, self.request.key);
            if self.outcome.change == Change::Clear {
                call.notify_deleted(self.request.key);
            }
        }
    }

    /// Returns the keyspace event of a call that was allowed; `None` if it moved no token.
    #[inline(always)]
    fn event(&self) -> Option<&'static CStr> {
        match (self.request.wanted, self.outcome.change) {
            (Wanted::Hold { .. }, _) if self.changes_hold => Some(c"tb.hold"),
            (Wanted::Settle { .. }, _) => Some(c"tb.settle"),
            (_, Change::Keep) => None,
            (Wanted::Tokens(Operation::Give { .. }), _) => Some(c"tb.give"),
            // Continues from a clock that stepped back.
            _ if self.outcome.granted_micro == 0 => None,
            _ => Some(c"tb.take"),
        }
    }

    /// Returns whether the call settles a hold that has ended: no decision, but counted by itself.
    #[inline(always)]
    pub(super) fn is_late(&self) -> bool {
        matches!(self.request.wanted, Wanted::Settle { .. }) && self.outcome.decision.allowed == 0
    }
}
