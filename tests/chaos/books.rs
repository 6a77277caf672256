//! What the buckets of one client must hold, by the exact model, and what they may hold while a call's fate is
//! unknown.

use super::fate;
use super::foretell::{foretell, takes};
use super::step::Step;
use super::world::{Memory, Now};
use crate::common::model::{exact, whole, Exact, ExactLimit, Level, Model, Wish};
use crate::common::{text, Decision};
use redis::Value;

/// Level and refill time as `TB.STATE` shows them; `None` for a bucket without a key.
pub type State = Option<(String, i64)>;

/// One bucket, of which nobody else takes.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub key: String,
    pub limit: ExactLimit,
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
    pub fn settle(&mut self, now: &Now, state: impl Fn(&str) -> State) -> Option<bool> {
        let states: Vec<State> = self.possible[0].iter().map(|bucket| state(&bucket.key)).collect();
        let fits = |page: &Page| page.iter().zip(&states).all(|(bucket, state)| bucket.may_be(now, state));
        let Some(fitting) = self.possible.iter().position(fits) else {
            panic!("{}", self.describe_misfits(now, &states));
        };
        let was_done = (!self.is_settled()).then_some(fitting > 0);
        self.possible = vec![self.possible.swap_remove(fitting)];
        for (bucket, state) in self.possible[0].iter_mut().zip(&states) {
            bucket.see(now, state);
        }
        was_done
    }

    fn describe_misfits(&self, now: &Now, states: &[State]) -> String {
        let mut lines = vec![format!(
            "what is stored at {} is none of the {} states that it may be in:",
            now.us,
            self.possible.len()
        )];
        for (number, page) in self.possible.iter().enumerate() {
            for (bucket, state) in
                page.iter().zip(states).filter(|(bucket, state)| !bucket.may_be(now, state))
            {
                lines.push(format!("{number}: found {state:?}, expected {bucket:?}"));
            }
        }
        lines.join("\n")
    }
}

impl Bucket {
    /// Whether it may be stored like this.
    fn may_be(&self, now: &Now, state: &State) -> bool {
        let Level { lowest, highest } = self.model.level(&self.limit, now.us);
        match state {
            None => highest == self.limit.capacity,
            Some((level, refilled_at_us)) => {
                let flowed = &self.limit.rate * whole((now.us - refilled_at_us).max(0));
                let shown = (exact(level) + flowed).min(self.limit.capacity.clone());
                lowest <= shown && shown <= highest
            }
        }
    }

    /// Judges what `TB.STATE` shows.
    pub fn see(&mut self, now: &Now, state: &State) {
        self.has_key = state.is_some();
        match state {
            None => self.model.vanish(now.us),
            Some((level, at_us)) => self.model.judge_state(&self.limit, now.us, level, *at_us),
        }
    }

    /// Whether a key that expires then does so when its bucket is full.
    pub fn is_full_at_ms(&self, at_ms: i64) -> bool {
        self.model.level(&self.limit, at_ms.saturating_mul(1000)).highest == self.limit.capacity
    }

    /// The level by the exact model; the server's may be lower by what it may lose.
    pub fn highest(&self, now: &Now) -> Exact {
        self.model.level(&self.limit, now.us).highest
    }

    /// What the exact model would reply.
    pub fn foretell(&self, wish: &Wish, now: &Now) -> Decision {
        foretell(&self.limit, wish, &self.highest(now))
    }

    /// Whether a wish would need a key that there is no memory for. To be asked after a look at the bucket.
    pub fn lacks_memory(&self, wish: &Wish, now: &Now) -> bool {
        now.memory != Memory::Free && !self.has_key && takes(wish, self.foretell(wish, now))
    }
}

/// Reads the reply of `TB.STATE`.
pub fn state(reply: &Value) -> State {
    match reply {
        Value::Nil => None,
        Value::Array(fields) => match fields.as_slice() {
            [level, Value::Int(refilled_at_us)] => Some((text(level), *refilled_at_us)),
            other => panic!("no state: {other:?}"),
        },
        other => panic!("no state: {other:?}"),
    }
}
