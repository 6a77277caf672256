//! Plans what a call will do to one of its buckets.
//!
//! [`Request::plan`] decides and changes nothing. The caller carries the plan out, or drops it if another bucket of the
//! call denies, or other calls come first.

use crate::bucket::{Bucket, Operation, Outcome, MAX_TIME_US};
use crate::effect::HoldChange;
use crate::error::Error;
use crate::hold::{Hold, Holds, Override, Plan};
use crate::request::{Argument, Request, Wanted};

impl<A: Argument> Request<A> {
    /// Decides at `now_us` Unix microseconds on the content of the key, `stored` and `holds`, which stay as they are.
    ///
    /// # Errors
    /// [`Error::DebtTooDeep`], or [`Error::TooManyHolds`] if a new hold would be one more than `max_holds`.
    #[inline]
    pub fn plan(
        &self,
        stored: Option<Bucket>,
        holds: Option<&mut Holds>,
        max_holds: usize,
        now_us: i64,
    ) -> Result<Plan, Error> {
        let limit = &self.limit;
        let mut none = Holds::default();
        match self.wanted {
            Wanted::Tokens(operation) => self.decide(stored, holds.as_deref(), operation, now_us),
            // As `TB.PEEK` with cost 0.
            Wanted::Override { .. } => {
                self.decide(stored, holds.as_deref(), Operation::Take { cost_micro: 0 }, now_us)
            }
            Wanted::Renew { id, .. } => {
                Ok(limit.renew(stored, holds.unwrap_or(&mut none), id.as_ref(), now_us))
            }
            Wanted::Settle { id, used_micro } => {
                Ok(limit.settle(stored, holds.unwrap_or(&mut none), id.as_ref(), used_micro, now_us)?)
            }
            Wanted::Hold { id, amount_micro, .. } => {
                let (id, holds) = (id.as_ref(), holds.unwrap_or(&mut none));
                let is_full = holds.len() >= max_holds && holds.outstanding(now_us) >= max_holds;
                if is_full && amount_micro > 0 && holds.outstanding_of(id, now_us).is_none() {
                    return Err(Error::TooManyHolds);
                }
                Ok(limit.hold(stored, holds, id, amount_micro, now_us))
            }
        }
    }

    /// Decides on tokens. Two copies of the code: one that looks for holds at each step costs 16 to 45 instructions more.
    #[inline(always)]
    fn decide(
        &self,
        stored: Option<Bucket>,
        holds: Option<&Holds>,
        operation: Operation,
        now_us: i64,
    ) -> Result<Plan, Error> {
        let outcome = match holds {
            Some(holds) => self.limit.decide_with(stored, holds, operation, now_us),
            None => self.limit.decide(self.limit.without_holds(stored), operation, now_us),
        };
        Ok(Plan::Outcome(outcome?))
    }

    /// Returns whether the plan denies the whole call. Settling a hold that has ended does not.
    #[must_use]
    pub fn is_denied(&self, plan: &Plan) -> bool {
        let is_settlement = matches!(self.wanted, Wanted::Settle { .. });
        !is_settlement && matches!(plan, Plan::Outcome(outcome) if outcome.decision.allowed == 0)
    }

    /// Returns the micro-tokens that the call needs in addition to its hold.
    #[must_use]
    pub fn lacking_micro(&self, holds: Option<&Holds>, now_us: i64) -> i64 {
        let held = self.id().and_then(|id| holds?.outstanding_of(id.as_ref(), now_us));
        self.wanted.micro().saturating_sub(held.map_or(0, |held| held.amount_micro))
    }

    /// Returns until when waiting can help, in Unix microseconds.
    #[must_use]
    pub fn possible_until_us(&self, holds: Option<&Holds>, now_us: i64) -> i64 {
        match (&self.wanted, holds) {
            (Wanted::Hold { id, amount_micro, .. }, Some(holds)) if holds.override_at(now_us).is_none() => {
                self.limit.holdable_until_us(holds, id.as_ref(), *amount_micro, now_us)
            }
            _ => i64::MAX,
        }
    }

    /// Returns the change of the call's hold at `now_us` to `amount_micro`, of which 0 ends it, or of the override; `None` for
    /// a call without either.
    #[must_use]
    pub fn hold_change(&self, amount_micro: i64, now_us: i64) -> Option<HoldChange> {
        let after_us = |ttl_ms: i64| now_us.saturating_add(ttl_ms.saturating_mul(1000)).min(MAX_TIME_US);
        let (id, ttl_ms) = match &self.wanted {
            Wanted::Tokens(_) => return None,
            Wanted::Hold { id, ttl_ms, .. } | Wanted::Renew { id, ttl_ms } => (id.as_ref(), *ttl_ms),
            Wanted::Settle { id, .. } => (id.as_ref(), 0),
            Wanted::Override { capacity, rate, ttl_ms, fills } => {
                let times_us = (now_us.clamp(0, MAX_TIME_US), after_us(*ttl_ms));
                let parsed = || Override::parse(capacity.as_ref(), rate.as_ref(), *fills, times_us);
                return Some(HoldChange::Override((*ttl_ms > 0).then(parsed).flatten().map(Box::new)));
            }
        };
        let ends_at_us = after_us(ttl_ms);
        let set = Hold::checked(id, amount_micro, ends_at_us);
        Some(set.map_or_else(|| HoldChange::Removed(id.into()), HoldChange::Set))
    }

    /// Carries out a [`Plan::Hold`], and returns the outcome. No hold in `holds` has ended.
    pub fn change_hold(
        &self,
        holds: &mut Holds,
        bucket: Bucket,
        taken_micro: i64,
        amount_micro: i64,
        now_us: i64,
    ) -> Outcome {
        self.hold_change(amount_micro, now_us).into_iter().for_each(|change| change.apply(holds));
        let mut outcome = self.limit.outcome_of_hold(bucket, holds, taken_micro, now_us);
        match self.wanted {
            Wanted::Settle { .. } => {}
            _ => outcome.decision.retry_after_ms = 0,
        }
        outcome
    }
}
