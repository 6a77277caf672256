//! What the buckets of one client must hold, by the exact model, and what they may hold while a call's fate is
//! unknown.

use super::step::{foretell, takes, Step};
use super::world::{Memory, Now};
use crate::common::model::{exact, whole, Exact, ExactLimit, Level, Model, Wish};
use crate::common::{decision, integers, multi_decision, text, Decision};
use redis::Value;

/// Level and refill time as `TB.STATE` shows them; `None` for a bucket without a key.
pub type State = Option<(String, i64)>;

/// One bucket, of which nobody else takes.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub key: String,
    pub limit: ExactLimit,
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
        let undone = self.page().clone();
        let mut done = vec![undone.clone()];
        for step in steps {
            done = done.iter().flat_map(|page| outcomes(page, step, now)).collect();
        }
        self.possible.extend(done);
    }

    /// Ends all doubt by what is stored, which must be one of the possibilities as a whole.
    pub fn settle(&mut self, now: &Now, state: impl Fn(&str) -> State) {
        let states: Vec<State> = self.possible[0].iter().map(|bucket| state(&bucket.key)).collect();
        let fits = |page: &Page| page.iter().zip(&states).all(|(bucket, state)| bucket.may_be(now, state));
        let Some(fitting) = self.possible.iter().position(fits) else {
            panic!("{}", self.describe_misfits(now, &states));
        };
        self.possible = vec![self.possible.swap_remove(fitting)];
        for (bucket, state) in self.possible[0].iter_mut().zip(&states) {
            bucket.see(now, state);
        }
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

    fn highest(&self, now: &Now) -> Exact {
        self.model.level(&self.limit, now.us).highest
    }

    /// Whether a wish would need a key that there is no memory for.
    fn lacks_memory(&self, wish: &Wish, now: &Now) -> bool {
        now.memory != Memory::Free
            && !self.has_key
            && takes(wish, foretell(&self.limit, wish, &self.highest(now)))
    }

    fn hear(&mut self, wish: &Wish, now: &Now, reply: &Value) {
        if !self.lacks_memory(wish, now) {
            return self.model.follow(&self.limit, wish, now.us, decision(reply));
        }
        match now.memory {
            Memory::FullAndAllowing => self.model.judge(&self.limit, wish, now.us, decision(reply)),
            _ => assert_out_of_memory(reply),
        }
    }

    /// All that may come of a wish. What is told of it does not matter to what is stored, only whether it is
    /// granted does.
    fn outcomes(&self, wish: &Wish, now: &Now) -> Vec<Self> {
        if self.lacks_memory(wish, now) {
            return vec![self.clone()];
        }
        let Level { lowest, highest } = self.model.level(&self.limit, now.us);
        let mut decisions = [lowest, highest].map(|level| foretell(&self.limit, wish, &level)).to_vec();
        decisions.dedup_by_key(|decision| decision.allowed);
        let follow = |decision: Decision| {
            let mut after = self.clone();
            after.model.follow(&self.limit, wish, now.us, decision);
            after
        };
        decisions.into_iter().map(follow).collect()
    }
}

fn assert_out_of_memory(reply: &Value) {
    let refused = matches!(reply, Value::ServerError(error) if error.code() == "OOM");
    assert!(refused, "no memory for a new bucket, and the reply is {reply:?}");
}

/// Judges the reply to one step, and does what it says.
pub fn hear(page: &mut Page, step: &Step, now: &Now, reply: &Value) {
    match step {
        Step::Call { bucket, wish } => page[*bucket].hear(wish, now, reply),
        Step::NewLimit { bucket, limit, amount } => {
            let before = page[*bucket].limit.clone();
            page[*bucket].limit = limit.clone();
            let wish = Wish::Charge(amount.clone());
            if page[*bucket].lacks_memory(&wish, now) {
                page[*bucket].hear(&wish, now, reply);
                page[*bucket].limit = before;
            } else {
                page[*bucket].hear(&wish, now, reply);
            }
        }
        Step::Peek { bucket, cost } => {
            let Bucket { model, limit, .. } = &page[*bucket];
            model.judge(limit, &Wish::Take(cost.clone()), now.us, decision(reply));
        }
        Step::MultiTake(takes) => hear_multi_take(page, takes, now, reply),
        Step::Look { bucket } => page[*bucket].see(now, &state(reply)),
        Step::Reset { bucket, .. } => {
            let bucket = &mut page[*bucket];
            let must_have_key = bucket.highest(now) < bucket.limit.capacity;
            let removed = integers(&Value::Array(vec![reply.clone()]))[0];
            assert!(removed == 1 || (removed == 0 && !must_have_key), "removed {removed} keys");
            bucket.model = Model::default();
        }
        Step::Nonsense { code, .. } => {
            let refused = matches!(reply, Value::ServerError(error) if error.code() == *code);
            assert!(refused, "nonsense is answered with {reply:?}");
        }
    }
}

fn hear_multi_take(page: &mut Page, takes: &[(usize, Exact)], now: &Now, reply: &Value) {
    let wishes: Vec<_> = takes.iter().map(|(bucket, cost)| (*bucket, Wish::Take(cost.clone()))).collect();
    let lacking = wishes.iter().any(|(bucket, wish)| page[*bucket].lacks_memory(wish, now));
    let granted_by_all = wishes.iter().all(|(bucket, wish)| {
        let bucket = &page[*bucket];
        foretell(&bucket.limit, wish, &bucket.highest(now)).allowed != 0
    });
    if matches!(reply, Value::ServerError(_)) {
        let expected = lacking && granted_by_all && now.memory == Memory::FullAndDenying;
        assert!(expected, "several buckets are answered with {reply:?}");
        return assert_out_of_memory(reply);
    }
    let (binding, own) = multi_decision(reply);
    assert_eq!(own.len(), wishes.len());
    assert_binding(binding, &own);
    if binding.allowed == 1 {
        assert!(!lacking || now.memory == Memory::FullAndAllowing, "a bucket was made without memory");
        for ((bucket, wish), decision) in wishes.iter().zip(&own) {
            let bucket = &mut page[*bucket];
            if bucket.lacks_memory(wish, now) {
                bucket.model.judge(&bucket.limit, wish, now.us, *decision);
            } else {
                bucket.model.follow(&bucket.limit, wish, now.us, *decision);
            }
        }
        return;
    }
    for ((bucket, wish), decision) in wishes.iter().zip(&own) {
        let Bucket { model, limit, .. } = &page[*bucket];
        if decision.allowed == 0 {
            model.judge(limit, wish, now.us, *decision);
            continue;
        }
        // It would have allowed it alone; what is told is the bucket as it is.
        let alone = foretell(limit, wish, &page[*bucket].highest(now));
        assert_eq!(alone.allowed, 1, "would not have allowed {wish:?}: {decision:?}");
        model.judge(limit, &Wish::Take(whole(0)), now.us, *decision);
    }
}

fn assert_binding(binding: Decision, own: &[Decision]) {
    let least = |field: fn(&Decision) -> i64| own.iter().map(field).min().unwrap();
    let most = |field: fn(&Decision) -> i64| own.iter().map(field).max().unwrap();
    let never = least(|own| own.retry_after_ms) < 0;
    let expected = Decision {
        allowed: least(|own| own.allowed),
        remaining: least(|own| own.remaining),
        retry_after_ms: if never { -1 } else { most(|own| own.retry_after_ms) },
        reset_after_ms: most(|own| own.reset_after_ms),
    };
    assert_eq!(binding, expected, "of {own:?}");
}

/// All that a step may make of a page.
fn outcomes(page: &Page, step: &Step, now: &Now) -> Vec<Page> {
    let with = |place: usize, bucket: Bucket| {
        let mut after = page.clone();
        after[place] = bucket;
        after
    };
    match step {
        Step::Call { bucket, wish } => {
            page[*bucket].outcomes(wish, now).into_iter().map(|after| with(*bucket, after)).collect()
        }
        Step::NewLimit { bucket, limit, amount } => {
            let relimited = Bucket { limit: limit.clone(), ..page[*bucket].clone() };
            let wish = Wish::Charge(amount.clone());
            if relimited.lacks_memory(&wish, now) {
                return vec![page.clone()];
            }
            relimited.outcomes(&wish, now).into_iter().map(|after| with(*bucket, after)).collect()
        }
        Step::MultiTake(takes) => multi_take_outcomes(page, takes, now),
        Step::Reset { bucket, .. } => {
            vec![with(*bucket, Bucket { model: Model::default(), ..page[*bucket].clone() })]
        }
        Step::Peek { .. } | Step::Look { .. } | Step::Nonsense { .. } => vec![page.clone()],
    }
}

fn multi_take_outcomes(page: &Page, takes: &[(usize, Exact)], now: &Now) -> Vec<Page> {
    let mut outcomes = vec![page.clone()];
    let mut after = page.clone();
    for (bucket, cost) in takes {
        let wish = Wish::Take(cost.clone());
        let told = foretell(&page[*bucket].limit, &wish, &page[*bucket].highest(now));
        if told.allowed == 0 {
            return outcomes;
        }
        if page[*bucket].lacks_memory(&wish, now) {
            if now.memory == Memory::FullAndDenying {
                return outcomes;
            }
            continue;
        }
        let limit = after[*bucket].limit.clone();
        after[*bucket].model.follow(&limit, &wish, now.us, told);
    }
    outcomes.push(after);
    outcomes
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
