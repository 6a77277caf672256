//! Decides on holds: setting one, and settling it.

use super::list::Holds;
use crate::bucket::decide::{is_too_deep, View, NEVER_MS};
use crate::bucket::{Bucket, Change, DebtTooDeep, Expiring, Limit, Outcome};

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

impl Limit {
    /// Decides on setting the hold `id` to `amount_micro`. Leaves `holds` as they are.
    ///
    /// A hold takes only the difference to its present amount. A denial waits until the difference is available, even if the
    /// hold ends before: then the whole amount is needed, and the ended hold has returned its part. But a hold above the
    /// capacity (which was larger before) can only grow while it lasts.
    #[must_use]
    pub fn hold(
        &self,
        stored: Option<Bucket>,
        holds: &mut Holds,
        id: &[u8],
        amount_micro: i64,
        now_us: i64,
    ) -> Plan {
        let held = holds.outstanding_of(id, now_us).map(|hold| (hold.amount_micro, hold.ends_at_us));
        let (held_micro, ends_at_us) = held.unwrap_or((0, i64::MAX));
        let lacking_micro = amount_micro.wrapping_sub(held_micro);
        let view = View::new(self, stored, &*holds, now_us);
        if amount_micro == 0 && held.is_none() {
            return Plan::Outcome(view.unchanged(1, 0));
        }
        if lacking_micro <= 0 || lacking_micro <= view.available_micro() {
            return changed(&view, lacking_micro, amount_micro);
        }
        if held.is_none() {
            return Plan::Outcome(view.denied(view.wait_for(lacking_micro)));
        }
        let own = holds.remove(id);
        let without_own = View::new(self, stored, &*holds, now_us);
        // What the hold has of a pool is free without it.
        let needed_micro = if self.is_pool() { amount_micro } else { lacking_micro };
        let wait_ms = without_own.wait_for(needed_micro);
        if let Some(own) = own {
            holds.set(own);
        }
        let view = View::new(self, stored, &*holds, now_us);
        let comes_too_late =
            amount_micro > view.limit.capacity_micro() && view.after_ms(wait_ms) >= ends_at_us;
        Plan::Outcome(view.denied(if comes_too_late { NEVER_MS } else { wait_ms }))
    }

    /// Decides on renewing the hold `id`.
    #[must_use]
    pub fn renew(&self, stored: Option<Bucket>, holds: &Holds, id: &[u8], now_us: i64) -> Plan {
        let view = View::new(self, stored, holds, now_us);
        match holds.outstanding_of(id, now_us) {
            Some(hold) => changed(&view, 0, hold.amount_micro),
            None => Plan::Outcome(view.late()),
        }
    }

    /// Decides on settling the hold `id`, of which `used_micro` were used.
    ///
    /// # Errors
    /// [`DebtTooDeep`] if far more was used.
    pub fn settle(
        &self,
        stored: Option<Bucket>,
        holds: &Holds,
        id: &[u8],
        used_micro: i64,
        now_us: i64,
    ) -> Result<Plan, DebtTooDeep> {
        let view = View::new(self, stored, holds, now_us);
        let Some(hold) = holds.outstanding_of(id, now_us) else {
            return Ok(Plan::Outcome(view.late()));
        };
        let lacking_micro = used_micro.wrapping_sub(hold.amount_micro);
        if is_too_deep(view.after(lacking_micro)) {
            return Err(DebtTooDeep);
        }
        Ok(changed(&view, lacking_micro, 0))
    }

    /// Returns the outcome once the holds have been changed: `bucket` is that of [`Plan::Hold`], and no hold in
    /// `holds` has ended. `retry_after_ms` is the time until the bucket is out of debt.
    #[must_use]
    pub fn outcome_of_hold(&self, bucket: Bucket, holds: &Holds, taken_micro: i64, now_us: i64) -> Outcome {
        let view = View::of(holds.limit_at(self, now_us), bucket, holds, now_us);
        let full_at_us = view.full_at_us(bucket, view.now_us);
        let decision = view.decision(1, bucket.level_micro, view.debt_free_in_ms(bucket), full_at_us);
        let is_full = bucket.level_micro == view.limit.capacity_micro();
        let full_at_us = full_at_us.max(holds.last_end_us());
        let change = if is_full { view.filled() } else { Change::Store { bucket, full_at_us } };
        Outcome { decision, change, granted_micro: taken_micro.max(0) }
    }

    /// Returns until when the hold `id` can grow to `amount_micro`: until it ends, if the amount is above the capacity.
    #[must_use]
    pub fn holdable_until_us(&self, holds: &Holds, id: &[u8], amount_micro: i64, now_us: i64) -> i64 {
        let own = holds.outstanding_of(id, now_us).filter(|_| amount_micro > self.capacity_micro());
        own.map_or(i64::MAX, |hold| hold.ends_at_us)
    }
}

/// Plans a hold of `amount_micro` that takes `lacking_micro` more, or returns them if negative.
fn changed(view: &View<'_, &Holds>, lacking_micro: i64, amount_micro: i64) -> Plan {
    Plan::Hold { bucket: view.at_most_full(lacking_micro), taken_micro: lacking_micro, amount_micro }
}
