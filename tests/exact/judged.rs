//! The module's arithmetic without a server, every call of it judged by the model.

use super::operation::moved;
use super::{whole, Bucket, Exact, Limit, Model, Operation};
use num_traits::Zero;
use tokenbucket::bucket::{Change, DebtTooDeep, Outcome};
use tokenbucket::effect::ExpiryWindow;

/// A bucket as the module keeps it, and the model of it.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    pub stored: Option<Bucket>,
    pub model: Model,
    /// When its key expires, in Unix milliseconds, if it was written.
    expires_at_ms: Option<i64>,
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
        let before = self.stored;
        let Ok(outcome) = limit.module().decide(before, operation, now_us) else {
            self.model.judge_refusal(limit, operation, now_us);
            return Err(DebtTooDeep);
        };
        let trace = self.model.follow(limit, operation, now_us, outcome.decision);
        self.make_so(outcome.change, now_us);
        self.model.see_trace(limit, now_us, trace, [before, self.stored]);
        let granted = moved(operation, outcome.decision.allowed).max(Exact::zero());
        assert_eq!(whole(outcome.granted_micro), granted, "what is counted as granted");
        if self.expires_at_ms.is_some() {
            self.model.see_expiry(self.expires_at_ms);
        }
        Ok(outcome)
    }

    fn expire(&mut self, limit: &Limit, now_us: i64) {
        if self.expires_at_ms.is_some_and(|at_ms| now_us / 1000 >= at_ms) {
            (self.stored, self.expires_at_ms) = (None, None);
            self.model.see(limit, now_us, None);
        }
    }

    fn make_so(&mut self, change: Change, now_us: i64) {
        match change {
            Change::Keep => {}
            Change::Clear => (self.stored, self.expires_at_ms) = (None, None),
            Change::Store { bucket, full_at_us } => {
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
