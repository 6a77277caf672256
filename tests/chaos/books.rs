//! What the buckets of one client must hold, by the exact model, and what they may hold while a call's fate is
//! unknown.

use super::fate;
use super::step::Step;
use super::world::{Memory, Now};
use crate::common::exact::{operation, Bucket as State, Limit, Model, Operation};
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
#[derive(Debug)]
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

    /// The names of the buckets.
    pub fn keys(&self) -> Vec<String> {
        self.possible[0].iter().map(|bucket| bucket.key.clone()).collect()
    }

    /// The server is empty: every bucket is full.
    pub fn reset(&mut self) {
        self.possible.truncate(1);
        for bucket in self.page() {
            bucket.model = Model::default();
        }
    }

    /// The steps may have been done as one, or none of them.
    pub fn doubt(&mut self, steps: &[Step], now: &Now) {
        let mut done = vec![self.page().clone()];
        for step in steps {
            done = done.iter().flat_map(|page| fate::outcomes(page, step, now)).collect();
        }
        self.possible.extend(done);
    }

    /// Ends all doubt by what is stored, which must be one of the possibilities as a whole. Says whether what was
    /// cut off had been done, if anything was.
    pub fn settle(&mut self, now: &Now, state: impl Fn(&str) -> Option<State>) -> Option<bool> {
        let states: Vec<Option<State>> = self.possible[0].iter().map(|bucket| state(&bucket.key)).collect();
        let fits = |page: &Page| page.iter().zip(&states).all(|(bucket, state)| bucket.may_be(now, *state));
        let Some(fitting) = self.possible.iter().position(fits) else {
            panic!("{}", self.describe_misfits(now, &states));
        };
        let was_done = (!self.is_settled()).then_some(fitting > 0);
        self.possible = vec![self.possible.swap_remove(fitting)];
        for (bucket, state) in self.possible[0].iter_mut().zip(&states) {
            bucket.see(now, *state);
        }
        was_done
    }

    fn describe_misfits(&self, now: &Now, states: &[Option<State>]) -> String {
        let mut lines = vec![format!(
            "what is stored at {} is none of the {} states that it may be in:",
            now.us,
            self.possible.len()
        )];
        for (number, page) in self.possible.iter().enumerate() {
            for (bucket, state) in
                page.iter().zip(states).filter(|(bucket, state)| !bucket.may_be(now, **state))
            {
                lines.push(format!("{number}: found {state:?}, expected {bucket:?}"));
            }
        }
        lines.join("\n")
    }
}

impl Bucket {
    /// Whether it may be stored like this.
    fn may_be(&self, now: &Now, state: Option<State>) -> bool {
        self.model.may_be(&self.limit, now.us, state)
    }

    /// Judges what is stored.
    pub fn see(&mut self, now: &Now, state: Option<State>) {
        self.has_key = state.is_some();
        self.model.see(&self.limit, now.us, state);
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

    /// Follows a reply by the model, or judges it only, where there was no memory to store anything.
    pub fn model_to_follow(&mut self, lacks_memory: bool, follow: impl FnOnce(&mut Model, &Limit)) {
        let before = lacks_memory.then(|| self.model.clone());
        follow(&mut self.model, &self.limit);
        if let Some(before) = before {
            self.model = before;
        }
    }
}
