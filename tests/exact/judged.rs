//! The module's arithmetic without a server, every call of it judged by the model.

use super::operation::moved;
use super::{whole, Bucket, Exact, Holding, Limit, Model, Operation, Trace};
use num_traits::{ToPrimitive, Zero};
use std::collections::BTreeMap;
use tokenbucket::bucket::{self, Change, DebtTooDeep, Decision, Outcome};
use tokenbucket::effect::ExpiryWindow;
use tokenbucket::holds::{Hold, Holds};

/// A bucket as the module keeps it, and the model of it.
#[derive(Clone, Default)]
pub struct Judged {
    pub stored: Option<Bucket>,
    pub holds: Holds,
    pub model: Model,
    /// When its key expires, in Unix milliseconds, if it was written.
    pub expires_at_ms: Option<i64>,
    /// Whether that is as late as the module may choose.
    pub expires_late: bool,
}

impl Judged {
    /// A bucket that somebody comes to.
    pub fn found(stored: Option<Bucket>) -> Self {
        Self { stored, model: Model::found(stored), ..Self::default() }
    }

    /// Decides, makes it so, and judges the decision, what is stored, and when the key expires.
    #[track_caller]
    pub fn call(&mut self, limit: &Limit, operation: Operation, now_us: i64) -> Result<Outcome, DebtTooDeep> {
        self.expire(limit, now_us);
        let (before, module) = (self.state(), limit.module());
        let decided = match self.holds.is_empty() {
            true => module.decide(self.stored, operation, now_us),
            false => module.decide_with(self.stored, &self.holds, operation, now_us),
        };
        let Ok(outcome) = decided else {
            self.model.judge_refusal(limit, operation, now_us);
            return Err(DebtTooDeep);
        };
        let trace = self.model.follow(limit, operation, now_us, outcome.decision);
        let granted = moved(operation, outcome.decision.allowed).max(Exact::zero());
        assert_eq!(whole(outcome.granted_micro), granted, "what is counted as granted");
        self.make_so(outcome.change, now_us);
        self.see(limit, trace, before, now_us);
        Ok(outcome)
    }

    /// The same of a call on a hold.
    #[track_caller]
    pub fn hold(&mut self, limit: &Limit, holding: &Holding, now_us: i64) -> Result<Outcome, DebtTooDeep> {
        self.expire(limit, now_us);
        let (before, module) = (self.state(), limit.module());
        let (Holding::Set { id, .. } | Holding::Settle { id, .. }) = holding;
        let (decided, hold) = match *holding {
            Holding::Set { amount_micro, ttl_ms, .. } => (
                Ok(module.hold(self.stored, &mut self.holds, id.as_bytes(), amount_micro, now_us)),
                Hold::checked(id.as_bytes(), amount_micro, now_us + ttl_ms * 1000),
            ),
            Holding::Settle { used_micro, .. } => {
                (module.settle(self.stored, &self.holds, id.as_bytes(), used_micro, now_us), None)
            }
        };
        let Ok(decided) = decided else {
            assert!(self.model.refuses(limit, holding, now_us), "{holding:?} at {now_us}: {:?}", self.model);
            return Err(DebtTooDeep);
        };
        let mut outcome = match decided {
            bucket::Holding::Kept(outcome) => outcome,
            bucket::Holding::Moved { bucket, taken_micro } => {
                self.holds.drop_ended(now_us);
                self.holds.remove(id.as_bytes());
                hold.into_iter().for_each(|hold| self.holds.set(hold));
                module.moved(bucket, &self.holds, taken_micro, now_us)
            }
        };
        if matches!(holding, Holding::Set { .. }) && outcome.decision.allowed == 1 {
            outcome.decision.retry_after_ms = 0;
        }
        let trace = self.model.follow_holding(limit, holding, now_us, outcome.decision);
        self.make_so(outcome.change, now_us);
        self.see(limit, trace, before, now_us);
        Ok(outcome)
    }

    /// Whether tokens are held, and the level is not known exactly.
    pub fn is_held_and_rounded(&self, limit: &Limit, now_us: i64) -> bool {
        let level = self.model.level(limit, now_us);
        level.low != level.high && !self.holds.is_empty()
    }

    /// What is stored: the bucket, and all holds.
    fn state(&self) -> (Option<Bucket>, Vec<Hold>) {
        (self.stored, self.holds.iter().cloned().collect())
    }

    /// Judges what is stored behind a call, and before it.
    #[track_caller]
    fn see(&mut self, limit: &Limit, trace: Trace, before: (Option<Bucket>, Vec<Hold>), now_us: i64) {
        let after = self.state();
        // Where there are holds, a write may leave level and time as they were.
        let are_held = !before.1.is_empty() || !after.1.is_empty();
        if trace == Trace::Written && after.0 == before.0 && are_held {
            self.model.see(limit, now_us, self.stored);
        } else {
            self.model.see_trace(limit, now_us, trace, [before.0, after.0]);
        }
        if self.expires_at_ms.is_some() {
            self.model.see_expiry(self.expires_at_ms);
        }
        let outstanding = after.1.into_iter().filter(|hold| hold.ends_at_us > now_us);
        let by_id: BTreeMap<_, _> = outstanding.map(|hold| (hold.id.to_vec(), hold)).collect();
        let meant = self.model.holds(now_us).into_iter().map(|(id, end)| {
            let amount_micro = end.micro.to_i64().unwrap();
            (
                id.clone().into_bytes(),
                Hold { id: id.into_bytes().into(), amount_micro, ends_at_us: end.at_us },
            )
        });
        assert_eq!(by_id, meant.collect(), "is held at {now_us}");
    }

    fn expire(&mut self, limit: &Limit, now_us: i64) {
        if self.expires_at_ms.is_some_and(|at_ms| now_us / 1000 >= at_ms) {
            self.clear();
            self.model.see(limit, now_us, None);
        }
    }

    fn clear(&mut self) {
        (self.stored, self.expires_at_ms, self.holds) = (None, None, Holds::default());
    }

    fn make_so(&mut self, change: Change, now_us: i64) {
        match change {
            Change::Keep => {}
            Change::Clear => self.clear(),
            Change::Store { bucket, full_at_us } => {
                self.holds.drop_ended(now_us);
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
