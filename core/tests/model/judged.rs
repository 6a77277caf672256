//! The module's arithmetic without a server, every call of it judged by the model.

use super::call::{self, Wanted};
use super::operation::moved;
use super::{whole, Bucket, End, Exact, HoldOperation, Limit, Model, Operation, Trace};
use num_traits::Zero;
use tokenbucket_core::bucket::{self, Change, DebtTooDeep, Decision, Outcome};
use tokenbucket_core::expiry::ExpiryWindow;
use tokenbucket_core::hold::{Extension, ExtensionChange, Hold, NO_EXTENSION};
use tokenbucket_core::plan::Plan;
use tokenbucket_core::request::{self, Request};

/// A bucket as the module keeps it, and the model of it.
#[derive(Clone, Default)]
pub struct Judged {
    pub stored: Option<Bucket>,
    pub extension: Extension,
    pub model: Model,
    /// When its key expires, in Unix milliseconds, if it was written.
    pub expires_at_ms: Option<i64>,
    /// Whether that is as late as the module may choose.
    pub expires_late: bool,
}

impl Judged {
    pub fn found(stored: Option<Bucket>) -> Self {
        Self { stored, model: Model::found(stored), ..Self::default() }
    }

    /// Decides, makes it so, and judges the decision, what is stored, and when the key expires.
    #[track_caller]
    pub fn call<'a>(
        &mut self,
        limit: &Limit,
        wanted: impl Into<Wanted<'a>>,
        now_us: i64,
    ) -> Result<Outcome, DebtTooDeep> {
        let wanted = wanted.into();
        self.expire(limit, now_us);
        let (before, was_held) = (self.stored, !self.extension.is_empty());
        let is_override = matches!(wanted, Wanted::Override { .. });
        let decided = self.decide(limit, wanted, now_us);
        let Ok(outcome) = decided else {
            let least = self.model.allowed(limit, wanted, now_us)[0];
            assert_eq!(least, None, "refused {wanted:?} of {limit:?} at {now_us}: {:?}", self.model);
            return decided;
        };
        let trace = self.model.follow(limit, wanted, now_us, outcome.decision);
        if let Wanted::Operation(operation) = wanted {
            let granted = moved(operation, outcome.decision.allowed).max(Exact::zero());
            assert_eq!(whole(outcome.granted_micro), granted, "what is counted as granted");
        }
        self.make_so(limit, outcome.change, now_us);
        if let (Change::Store { bucket, .. }, Trace::Written | Trace::Full) = (outcome.change, trace) {
            let is_full = bucket.level_micro >= limit.capacity_micro() && self.extension.is_empty();
            assert!(!is_full, "a full bucket is stored, where its key could go");
        }
        // Where there are holds, or of an override, a write may leave level and time as they were.
        let after = self.stored;
        if trace == Trace::Written
            && after == before
            && (was_held || !self.extension.is_empty() || is_override)
        {
            self.model.see(limit, now_us, after);
        } else {
            self.model.see_trace(limit, now_us, trace, [before, after]);
        }
        if self.expires_at_ms.is_some() {
            self.model.see_expiry(self.expires_at_ms);
        }
        assert_eq!(
            outstanding(self.extension.holds.iter(), now_us),
            self.model.holds(now_us),
            "is held at {now_us}"
        );
        decided
    }

    fn decide(&mut self, limit: &Limit, wanted: Wanted, now_us: i64) -> Result<Outcome, DebtTooDeep> {
        let (capacity, rate) = limit.words.split_once(' ').unwrap();
        let (capacity, rate) = (&capacity.to_owned(), &rate.to_owned());
        let module = limit.module();
        let wanted = match wanted {
            Wanted::Operation(operation) if self.extension.is_empty() && limit.is_pool() => {
                return module.decide_with(self.stored, &NO_EXTENSION, operation, now_us)
            }
            Wanted::Operation(operation) if self.extension.is_empty() => {
                return module.decide(self.stored, operation, now_us)
            }
            Wanted::Operation(operation) => request::Wanted::Tokens(operation),
            Wanted::Override { ttl_ms, fills } => request::Wanted::Override { capacity, rate, ttl_ms, fills },
            Wanted::Hold(HoldOperation::Set { id, amount_micro, ttl_ms }) => {
                request::Wanted::Hold { id, amount_micro: *amount_micro, ttl_ms: *ttl_ms }
            }
            Wanted::Hold(HoldOperation::Renew { id, ttl_ms }) => {
                request::Wanted::Renew { id, ttl_ms: *ttl_ms }
            }
            Wanted::Hold(HoldOperation::Settle { id, used_micro }) => {
                request::Wanted::Settle { id, used_micro: *used_micro }
            }
        };
        let request = Request { key: &String::new(), limit: module, wanted };
        if let request::Wanted::Override { .. } = wanted {
            self.change_override(request.change(0, now_us), now_us);
        }
        let plan = request.plan(self.stored, Some(&mut self.extension), usize::MAX, now_us);
        let plan = plan.map_err(|_| DebtTooDeep)?;
        let said = (request.is_denied(&plan), plan.retry_after_ms());
        match plan {
            Plan::Outcome(outcome) => {
                let Decision { allowed, retry_after_ms, .. } = outcome.decision;
                let is_settlement = matches!(wanted, request::Wanted::Settle { .. });
                assert_eq!(said, (allowed == 0 && !is_settlement, retry_after_ms), "what a plan says");
                // An override has been stored, and only its reply is left.
                let is_override = matches!(wanted, request::Wanted::Override { .. });
                Ok(if is_override { Outcome { change: Change::Keep, ..outcome } } else { outcome })
            }
            Plan::Hold { bucket, taken_micro, amount_micro } => {
                assert_eq!(said, (false, 0), "what a plan says of a hold");
                self.begin_write(&module, now_us);
                Ok(request.change_hold(&mut self.extension, bucket, taken_micro, amount_micro, now_us))
            }
        }
    }

    /// Decides, changes nothing, and judges the decision.
    #[track_caller]
    pub fn peek(&mut self, limit: &Limit, operation: Operation, now_us: i64) -> Decision {
        self.expire(limit, now_us);
        let outcome = self.decide(limit, operation.into(), now_us).unwrap();
        self.model.judge(limit, operation, now_us, outcome.decision);
        outcome.decision
    }

    /// As `TB.OVERRIDE` does.
    fn change_override(&mut self, change: Option<ExtensionChange>, now_us: i64) {
        match change {
            Some(ExtensionChange::Override(Some(begins))) => {
                let replaced = self.extension.replaced(self.stored, now_us);
                let bucket = self.stored.unwrap_or(replaced.bucket);
                let expires_at_ms = self.expires_at_ms.unwrap_or(0);
                self.expires_at_ms =
                    Some(self.extension.overridden_until_ms(&begins, bucket, expires_at_ms, now_us));
                self.extension.holds.drop_first(replaced.dropped);
                self.stored = Some(self.extension.begin_override(begins, replaced.bucket, now_us));
            }
            _ if self.extension.override_at(now_us).is_some() => {
                self.extension.end_override(now_us);
                if self.stored.is_none_or(|bucket| self.extension.is_full_after_override(bucket, now_us)) {
                    self.clear();
                }
            }
            _ => {}
        }
    }

    /// What each write to a bucket that has holds begins with.
    fn begin_write(&mut self, own: &bucket::Limit, now_us: i64) {
        let withheld_micro = self.extension.withholds_micro(own, self.stored, now_us);
        self.extension.holds.drop_ended(now_us);
        self.extension.limit_override.take_if(|stored| stored.ends_at_us <= now_us);
        withheld_micro.into_iter().for_each(|micro| self.extension.withhold(micro));
    }

    fn expire(&mut self, limit: &Limit, now_us: i64) {
        if self.expires_at_ms.is_some_and(|at_ms| now_us / 1000 >= at_ms) {
            self.clear();
            self.model.see(limit, now_us, None);
        }
    }

    fn clear(&mut self) {
        (self.stored, self.expires_at_ms, self.extension) = (None, None, Extension::default());
    }

    fn make_so(&mut self, own: &Limit, change: Change, now_us: i64) {
        match change {
            Change::Keep => {}
            Change::Clear => self.clear(),
            Change::Store { bucket, full_at_us } => {
                self.begin_write(&own.module(), now_us);
                let then_us = self.extension.full_after_override_us(&own.module(), bucket, now_us);
                let full_at_us = full_at_us.max(then_us);
                let storable = Bucket::checked(bucket.level_micro, bucket.refilled_at_us);
                assert_eq!(storable, Some(bucket), "no server could store this");
                self.stored = Some(bucket);
                let window = ExpiryWindow::new(full_at_us, now_us);
                let wanted_ms = if self.expires_late { window.latest_ms } else { window.earliest_ms };
                let kept_ms = self.expires_at_ms.filter(|at_ms| window.accepts(*at_ms));
                self.expires_at_ms = Some(kept_ms.unwrap_or(wanted_ms));
            }
        }
    }
}

/// Those that have not ended, as the model has them.
pub fn outstanding<'a>(holds: impl Iterator<Item = &'a Hold>, now_us: i64) -> call::Holds {
    let outstanding = holds.filter(|hold| hold.ends_at_us > now_us).map(|hold| {
        let end = End { at_us: hold.ends_at_us, micro: whole(hold.amount_micro) };
        (String::from_utf8(hold.id.to_vec()).unwrap(), end)
    });
    outstanding.collect()
}
