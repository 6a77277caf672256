//! Plans what a call will do to one of its buckets.
//!
//! [`Request::plan`] decides and changes nothing. The caller carries the plan out, or drops it if another bucket of the
//! call denies, or other calls come first.

use crate::bucket::decide::{is_too_deep, View, NEVER_MS};
use crate::bucket::{Bucket, Change, Expiring, Operation, Outcome, MAX_TIME_US};
use crate::error::Error;
use crate::hold::{Extension, ExtensionChange, Hold, Override};
use crate::request::{Argument, Request, Wanted};

/// The plan of a call for one of its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Change no hold.
    Outcome(Outcome),
    /// Change the hold as requested, and store this bucket.
    Hold {
        /// Its level excludes the new amount of the hold, and includes the holds that have ended.
        bucket: Bucket,
        /// Micro-tokens that leave the bucket; negative if they return.
        taken_micro: i64,
        /// The amount of the hold from now on; 0 ends it.
        amount_micro: i64,
    },
}

impl Plan {
    /// Returns how long to wait by this plan alone; -1 if waiting never helps.
    #[must_use]
    pub fn retry_after_ms(&self) -> i64 {
        match self {
            Self::Outcome(outcome) => outcome.decision.retry_after_ms,
            Self::Hold { .. } => 0,
        }
    }
}

/// What a call needs of a bucket in addition to its hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Micro-tokens; negative if the hold is larger than wanted.
    pub micro: i64,
    /// When the hold ends, in Unix microseconds; the largest number without one.
    pub hold_ends_at_us: i64,
}

impl Needs {
    fn has_hold(&self) -> bool {
        self.hold_ends_at_us != i64::MAX
    }
}

impl<A: AsRef<[u8]>> Request<A> {
    /// Returns what the call needs in addition to its hold.
    #[must_use]
    pub fn needs(&self, extension: &Extension, now_us: i64) -> Needs {
        let held = self.id().and_then(|id| extension.holds.outstanding_of(id.as_ref(), now_us));
        let (held_micro, hold_ends_at_us) =
            held.map_or((0, i64::MAX), |held| (held.amount_micro, held.ends_at_us));
        Needs { micro: self.wanted.micro().saturating_sub(held_micro), hold_ends_at_us }
    }
}

impl<A: Argument> Request<A> {
    /// Decides at `now_us` Unix microseconds on the content of the key, `stored` and `extension`, which stay as they are.
    ///
    /// # Errors
    /// [`Error::DebtTooDeep`], or [`Error::TooManyHolds`] if a new hold would be one more than `max_holds`.
    #[inline]
    pub fn plan(
        &self,
        stored: Option<Bucket>,
        extension: Option<&mut Extension>,
        max_holds: usize,
        now_us: i64,
    ) -> Result<Plan, Error> {
        match self.wanted {
            Wanted::Tokens(operation) => self.decide(stored, extension.as_deref(), operation, now_us),
            // As `TB.PEEK` with cost 0.
            Wanted::Override { .. } => {
                self.decide(stored, extension.as_deref(), Operation::Take { cost_micro: 0 }, now_us)
            }
            _ => {
                let mut none = Extension::default();
                self.plan_hold(stored, extension.unwrap_or(&mut none), max_holds, now_us)
            }
        }
    }

    #[inline(never)] // Off the path of tokens, which pays for neither its registers nor an empty extension.
    fn plan_hold(
        &self,
        stored: Option<Bucket>,
        extension: &mut Extension,
        max_holds: usize,
        now_us: i64,
    ) -> Result<Plan, Error> {
        let needs = self.needs(extension, now_us);
        let view = View::new(&self.limit, stored, &*extension, now_us);
        match self.wanted {
            Wanted::Hold { id, amount_micro, .. } => {
                let holds = &extension.holds;
                let is_full = holds.len() >= max_holds && holds.outstanding(now_us) >= max_holds;
                if is_full && amount_micro > 0 && !needs.has_hold() {
                    return Err(Error::TooManyHolds);
                }
                Ok(self.hold(stored, extension, id, needs, now_us))
            }
            _ if !needs.has_hold() => Ok(Plan::Outcome(view.late())),
            Wanted::Settle { used_micro, .. } => {
                let lacking_micro = used_micro.saturating_add(needs.micro);
                if is_too_deep(view.after(lacking_micro)) {
                    return Err(Error::DebtTooDeep);
                }
                Ok(changed(&view, lacking_micro, 0))
            }
            _ => Ok(changed(&view, 0, needs.micro.saturating_neg())),
        }
    }

    /// Decides on tokens. Two copies of the code: one that looks for holds at each step costs 16 to 45 instructions more.
    #[inline(always)]
    fn decide(
        &self,
        stored: Option<Bucket>,
        extension: Option<&Extension>,
        operation: Operation,
        now_us: i64,
    ) -> Result<Plan, Error> {
        let outcome = match extension {
            Some(extension) => self.limit.decide_with(stored, extension, operation, now_us),
            None => self.limit.decide(self.limit.without_holds(stored), operation, now_us),
        };
        Ok(Plan::Outcome(outcome?))
    }

    /// Decides on setting the hold `id`. Leaves `extension` as it is.
    ///
    /// A hold takes only the difference to its present amount. A denial waits until the difference is available, even if the
    /// hold ends before: then the whole amount is needed, and the ended hold has returned its part. But a hold above the
    /// capacity (which was larger before) can only grow while it lasts.
    fn hold(
        &self,
        stored: Option<Bucket>,
        extension: &mut Extension,
        id: A,
        needs: Needs,
        now_us: i64,
    ) -> Plan {
        let (limit, amount_micro) = (&self.limit, self.wanted.micro());
        let view = View::new(limit, stored, &*extension, now_us);
        if amount_micro == 0 && !needs.has_hold() {
            return Plan::Outcome(view.unchanged(1, 0));
        }
        if needs.micro <= 0 || needs.micro <= view.available_micro() {
            return changed(&view, needs.micro, amount_micro);
        }
        if !needs.has_hold() {
            return Plan::Outcome(view.denied(view.wait_for(needs.micro)));
        }
        let own = extension.holds.remove(id.as_ref());
        // What the hold has of a pool is free without it.
        let needed_micro = if limit.is_pool() { amount_micro } else { needs.micro };
        let wait_ms = View::new(limit, stored, &*extension, now_us).wait_for(needed_micro);
        own.into_iter().for_each(|own| extension.holds.set(own));
        let view = View::new(limit, stored, &*extension, now_us);
        let comes_too_late =
            amount_micro > view.limit.capacity_micro() && view.after_ms(wait_ms) >= needs.hold_ends_at_us;
        Plan::Outcome(view.denied(if comes_too_late { NEVER_MS } else { wait_ms }))
    }

    /// Returns whether the plan denies the whole call. Settling a hold that has ended does not.
    #[must_use]
    pub fn is_denied(&self, plan: &Plan) -> bool {
        let is_settlement = matches!(self.wanted, Wanted::Settle { .. });
        !is_settlement && matches!(plan, Plan::Outcome(outcome) if outcome.decision.allowed == 0)
    }

    /// Returns until when waiting can help, in Unix microseconds: a hold above the capacity can only grow while it lasts.
    #[must_use]
    pub fn possible_until_us(&self, extension: &Extension, now_us: i64) -> i64 {
        let is_overridden = extension.override_at(now_us).is_some();
        if is_overridden || self.wanted.micro() <= self.limit.capacity_micro() {
            return i64::MAX;
        }
        self.needs(extension, now_us).hold_ends_at_us
    }

    /// Returns the change of the call's hold at `now_us` to `amount_micro`, of which 0 ends it, or of the override; `None` for
    /// a call without either.
    #[must_use]
    pub fn change(&self, amount_micro: i64, now_us: i64) -> Option<ExtensionChange> {
        let after_us = |ttl_ms: i64| now_us.saturating_add(ttl_ms.saturating_mul(1000)).min(MAX_TIME_US);
        let (id, ttl_ms) = match &self.wanted {
            Wanted::Tokens(_) => return None,
            Wanted::Hold { id, ttl_ms, .. } | Wanted::Renew { id, ttl_ms } => (id.as_ref(), *ttl_ms),
            Wanted::Settle { id, .. } => (id.as_ref(), 0),
            Wanted::Override { capacity, rate, ttl_ms, fills } => {
                let times_us = (now_us.clamp(0, MAX_TIME_US), after_us(*ttl_ms));
                let parsed = || Override::parse(capacity.as_ref(), rate.as_ref(), *fills, times_us);
                return Some(ExtensionChange::Override((*ttl_ms > 0).then(parsed).flatten().map(Box::new)));
            }
        };
        let set = Hold::checked(id, amount_micro, after_us(ttl_ms));
        Some(set.map_or_else(|| ExtensionChange::Removed(id.into()), ExtensionChange::Set))
    }

    /// Carries out a [`Plan::Hold`], and returns the outcome. No hold in `extension` has ended.
    pub fn change_hold(
        &self,
        extension: &mut Extension,
        bucket: Bucket,
        taken_micro: i64,
        amount_micro: i64,
        now_us: i64,
    ) -> Outcome {
        self.change(amount_micro, now_us).into_iter().for_each(|change| change.apply(extension));
        self.outcome_of_hold(extension, bucket, taken_micro, now_us)
    }

    /// Returns the outcome once the holds have been changed: `bucket` is that of [`Plan::Hold`], and no hold in `extension` has
    /// ended.
    #[must_use]
    pub fn outcome_of_hold(
        &self,
        extension: &Extension,
        bucket: Bucket,
        taken_micro: i64,
        now_us: i64,
    ) -> Outcome {
        let view = View::of(extension.limit_at(&self.limit, now_us), bucket, extension, now_us);
        let wait_ms = match self.wanted {
            Wanted::Settle { .. } => view.debt_free_in_ms(bucket),
            _ => 0,
        };
        let full_at_us = view.full_at_us(bucket, view.now_us);
        let decision = view.decision(1, bucket.level_micro, wait_ms, full_at_us);
        let is_full = bucket.level_micro == view.limit.capacity_micro();
        let full_at_us = full_at_us.max(extension.last_end_us());
        let change = if is_full { view.filled() } else { Change::Store { bucket, full_at_us } };
        Outcome { decision, change, granted_micro: taken_micro.max(0) }
    }
}

/// Plans a hold of `amount_micro` that takes `lacking_micro` more, or returns them if negative.
fn changed(view: &View<'_, &Extension>, lacking_micro: i64, amount_micro: i64) -> Plan {
    Plan::Hold { bucket: view.at_most_full(lacking_micro), taken_micro: lacking_micro, amount_micro }
}
