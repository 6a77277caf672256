//! What the buckets of one client must hold, by the exact model, and what they may hold while a call's fate is
//! unknown.

use super::judge;
use super::step::Step;
use super::world::{Memory, Now};
use crate::common::exact::{operation, Bucket as State, Holding, Limit, Model, Operation, Trace};
use crate::common::is_before;
use crate::common::stored::Stored;
use crate::common::walk::{self, ShownHolds};
use num_traits::Signed;

/// One bucket, of which nobody else takes.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub key: String,
    pub limit: Limit,
    /// The limit in the words of redis-cell, if it has any.
    pub throttle: Option<String>,
    pub model: Model,
    /// Whether it had a key when it was last looked at.
    pub has_key: bool,
}

/// The buckets of one client.
pub type Page = Vec<Bucket>;

/// All that the buckets of a client may hold: one page, unless a call was cut off.
pub struct Books {
    possible: Vec<Page>,
}

impl Books {
    pub fn new(page: Page) -> Self {
        Self { possible: vec![page] }
    }

    pub fn is_settled(&self) -> bool {
        self.possible.len() == 1
    }

    /// What the buckets hold, when there is no doubt.
    pub fn page(&mut self) -> &mut Page {
        assert!(self.is_settled(), "unsettled books");
        &mut self.possible[0]
    }

    /// The server is empty: every bucket is full.
    pub fn reset(&mut self) {
        self.possible.truncate(1);
        self.page().iter_mut().for_each(|bucket| bucket.model = Model::default());
    }

    /// The steps may have been done as one, or none of them.
    pub fn doubt(&mut self, steps: &[Step], now: &Now) {
        let mut done = vec![self.page().clone()];
        for step in steps {
            done = done.iter().flat_map(|page| judge::outcomes(page, step, now)).collect();
        }
        self.possible.extend(done);
    }

    /// Ends all doubt by what is stored, which must be one of the possibilities as a whole. Says what became of what
    /// was cut off, if anything was.
    pub fn settle(&mut self, now: &Now, found: impl Fn(&str) -> Option<Stored>) -> Option<&'static str> {
        let found: Vec<_> = self.possible[0].iter().map(|bucket| found(&bucket.key)).collect();
        let misfits = |page: &Page| -> Vec<_> {
            let misfits =
                page.iter().zip(&found).filter(|(bucket, found)| !bucket.may_be(now, found.as_ref()));
            misfits.map(|(bucket, found)| format!("found {found:?}, expected {bucket:?}")).collect()
        };
        let Some(fitting) = self.possible.iter().position(|page| misfits(page).is_empty()) else {
            let all: Vec<_> = self.possible.iter().map(misfits).collect();
            panic!("what is stored at {} is none of the {} that may be: {all:#?}", now.us, all.len());
        };
        let fate = if fitting > 0 { "cut off and done" } else { "cut off and not done" };
        let fate = (!self.is_settled()).then_some(fate);
        self.possible = vec![self.possible.swap_remove(fitting)];
        for (bucket, found) in self.possible[0].iter_mut().zip(&found) {
            bucket.see(now, state(found.as_ref()));
        }
        fate
    }
}

fn state(found: Option<&Stored>) -> Option<State> {
    walk::stored(found.map(|found| (found.level.clone(), found.refilled_at_us)))
}

impl Bucket {
    /// Whether it may be stored like this. No key goes before its bucket is full, nor much later: a hold that was made
    /// and has ended may leave no other mark.
    fn may_be(&self, now: &Now, found: Option<&Stored>) -> bool {
        let expires_in_time = match (self.model.expires_ms(), found.and_then(|found| found.expires_at_ms)) {
            // Before 6.2 a key that is read from a file after its time stays for a millisecond.
            (Some((earliest_ms, _)), Some(at_ms)) if is_before(6, 2) && at_ms == now.us / 1000 + 1 => {
                earliest_ms <= at_ms
            }
            (Some((earliest_ms, latest_ms)), Some(at_ms)) => (earliest_ms..=latest_ms).contains(&at_ms),
            (_, at_ms) => at_ms.is_none() && found.is_none(),
        };
        let held = walk::holds_to_show(&self.model, now.us);
        self.model.may_be(&self.limit, now.us, state(found))
            && found.map_or(held.is_empty(), |found| found.holds == held)
            && expires_in_time
    }

    /// Judges what is stored.
    pub fn see(&mut self, now: &Now, state: Option<State>) {
        self.has_key = state.is_some();
        self.model.see(&self.limit, now.us, state);
    }

    /// Judges which holds are listed.
    pub fn see_holds(&self, now: &Now, holds: &ShownHolds) {
        assert_eq!(*holds, walk::holds_to_show(&self.model, now.us), "are held of {self:?}");
    }

    /// Whether the exact model allows it; the server's level may be lower by what it may lose.
    pub fn may_allow(&self, operation: Operation, now: &Now) -> bool {
        self.most_allowed(operation, now) > 0
    }

    fn most_allowed(&self, operation: Operation, now: &Now) -> i64 {
        self.model.allowed(&self.limit, operation, now.us)[1].unwrap_or(0)
    }

    /// Whether a call would need a key that there is no memory for. To be asked after a look at the bucket.
    pub fn lacks_memory(&self, operation: Operation, now: &Now) -> bool {
        now.memory != Memory::Free
            && !self.has_key
            && operation::moved(operation, self.most_allowed(operation, now)).is_positive()
    }

    /// What is decided instead of a new hold that there is no memory for.
    pub fn take_instead(&self, holding: &Holding, now: &Now) -> Option<Operation> {
        let Holding::Set { id, amount_micro, .. } = holding else { return None };
        let is_new = *amount_micro > 0 && !self.model.holds(now.us).contains_key(id);
        (is_new && now.memory != Memory::Free).then_some(Operation::Take { cost_micro: *amount_micro })
    }

    /// Follows a reply by the model, or judges it only, where there was no memory to store anything.
    pub fn follow(&mut self, lacks_memory: bool, follow: impl FnOnce(&mut Model, &Limit) -> Trace) {
        let before = lacks_memory.then(|| self.model.clone());
        follow(&mut self.model, &self.limit);
        if let Some(before) = before {
            self.model = before;
        }
    }
}
