//! What the buckets of one client must hold, by the exact model, and what they may hold while a call's fate is
//! unknown: judges what is replied and what is stored, and follows it.

use super::step::{Act, Step, Want};
use super::world::{Memory, Now};
use crate::common::model::bucket::assert_binding;
use crate::common::model::call::Wanted;
use crate::common::model::{operation, throttle, Bucket as State, HoldOperation, Limit, Model, Operation};
use crate::common::stored::Stored;
use crate::common::walk::{holds_to_show, shown_holds, stored, told};
use crate::common::{decision, integer, integers, is_before, multi_decision, reply};
use num_traits::Signed;
use redis::Value;

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
            done = done.iter().flat_map(|page| outcomes(page, step, now)).collect();
        }
        self.possible.extend(done);
    }

    /// Ends all doubt by what is stored, which must be one of the possibilities as a whole. Says what became of what
    /// was cut off, if anything was.
    pub fn settle(
        &mut self,
        now: &Now,
        found: impl FnMut(&Bucket) -> Option<Stored>,
    ) -> Option<&'static str> {
        let found: Vec<_> = self.possible[0].iter().map(found).collect();
        let misfits = |page: &Page| -> Vec<_> {
            let pairs = page.iter().zip(&found);
            let misfits = pairs.filter(|(bucket, found)| !bucket.may_be(now, found.as_ref()));
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

/// What becomes of a decision that lacks memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lacking {
    Refused,
    /// Nothing is stored.
    Forgotten,
    /// The tokens are taken from a bucket that exists.
    Stored,
}

fn state(found: Option<&Stored>) -> Option<State> {
    stored(found.map(|found| (found.level.clone(), found.refilled_at_us)))
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
        let held = holds_to_show(&self.model, now.us);
        self.model.may_be(&self.limit, now.us, state(found))
            && found.map_or(held.is_empty(), |found| found.holds == held)
            && expires_in_time
    }

    /// Judges what is stored.
    fn see(&mut self, now: &Now, state: Option<State>) {
        self.has_key = state.is_some();
        self.model.see(&self.limit, now.us, state);
    }

    /// The most that the exact model allows; the server's level may be lower by what it may lose.
    fn most_allowed(&self, want: &Want, now: &Now) -> i64 {
        self.model.allowed(&self.limit, want.wanted(), now.us)[1].unwrap_or(0)
    }

    /// What is decided where there is no memory for what a call would store: of a new hold, a take. To be asked after a
    /// look at the bucket.
    fn without_memory(&self, want: &Want, now: &Now) -> Option<(Want, Lacking)> {
        let (instead, needs_memory) = match want.wanted() {
            Wanted::Operation(operation) => {
                let moved = operation::moved(operation, self.most_allowed(want, now));
                (want.clone(), !self.has_key && moved.is_positive())
            }
            Wanted::Hold(HoldOperation::Settle { .. }) => return None,
            Wanted::Hold(HoldOperation::Set { id, amount_micro, .. }) => {
                let is_new = *amount_micro > 0 && !self.model.holds(now.us).contains_key(id);
                (Want::Operation(Operation::Take { cost_micro: *amount_micro }), is_new)
            }
        };
        let lacking = match now.memory {
            Memory::FullAndAllowing if !self.has_key => Lacking::Forgotten,
            // Only of a hold. Nothing would bring the tokens of a pool back.
            Memory::FullAndAllowing if !self.limit.is_pool() => Lacking::Stored,
            _ => Lacking::Refused,
        };
        (needs_memory && now.memory != Memory::Free).then_some((instead, lacking))
    }

    /// Judges a decision, and follows it if there was memory to store it.
    fn hear(&mut self, want: &Want, now: &Now, reply: &Value) {
        match self.without_memory(want, now) {
            None => follow(&mut self.model, &self.limit, want, now, reply),
            Some((instead, Lacking::Stored)) => follow(&mut self.model, &self.limit, &instead, now, reply),
            Some((instead, Lacking::Refused)) if is_error(reply, "OOM") => {
                assert!(self.most_allowed(&instead, now) > 0, "a denial needs no memory");
            }
            Some((instead, lacking)) => {
                follow(&mut self.model.clone(), &self.limit, &instead, now, reply);
                let is_right = lacking == Lacking::Forgotten || decision(reply).allowed == 0;
                assert!(is_right, "{want:?} was done without memory");
            }
        }
    }
}

pub fn is_error(reply: &Value, code: &str) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == code)
}

fn follow(model: &mut Model, limit: &Limit, want: &Want, now: &Now, reply: &Value) {
    if let Want::Throttle(quantity) = want {
        let fields = integers(reply).try_into().unwrap_or_else(|_| panic!("{reply:?}"));
        throttle::follow(model, limit, *quantity, now.us, fields);
    } else {
        model.follow(limit, want.wanted(), now.us, told(decision(reply)));
    }
}

/// Judges the reply to one step, and does what it says.
pub fn hear(page: &mut Page, Step { places, act, .. }: &Step, now: &Now, reply: &Value) {
    let bucket = &mut page[places[0]];
    match act {
        Act::Decide(new_limit, want) => {
            bucket.limit = new_limit.as_ref().unwrap_or(&bucket.limit).clone();
            bucket.hear(want, now, reply);
        }
        Act::TakeTogether(takes) => hear_together(page, places, takes, now, reply),
        Act::Peek(take) => bucket.model.judge(&bucket.limit, *take, now.us, told(decision(reply))),
        Act::Look => bucket.see(now, stored(reply::state(reply))),
        Act::LookAtHolds => {
            let held = holds_to_show(&bucket.model, now.us);
            assert_eq!(shown_holds(reply.clone(), now.us), held, "are held of {bucket:?}");
        }
        Act::Reset => {
            let removed = integer(reply);
            // A bucket that is full may still have its key.
            let may_have_none = bucket.model.may_be(&bucket.limit, now.us, None);
            assert!(removed == 1 || (removed == 0 && may_have_none), "removed {removed} keys of {bucket:?}");
            bucket.model = Model::default();
        }
    }
}

fn hear_together(page: &mut Page, places: &[usize], takes: &[Operation], now: &Now, reply: &Value) {
    let takes = || places.iter().copied().zip(takes.iter().copied());
    let lacks_memory =
        |(place, take): (usize, Operation)| page[place].without_memory(&Want::Operation(take), now).is_some();
    let lacking: Vec<bool> = takes().map(lacks_memory).collect();
    let is_impossible = now.memory == Memory::FullAndDenying && lacking.contains(&true);
    if is_impossible && is_error(reply, "OOM") {
        let grants = |(place, take): (usize, _)| page[place].most_allowed(&Want::Operation(take), now) > 0;
        return assert!(takes().all(grants), "a denial needs no memory");
    }
    let (binding, own) = multi_decision(reply);
    let own: Vec<_> = own.into_iter().map(told).collect();
    assert_eq!(own.len(), lacking.len());
    assert_binding(told(binding), &own);
    let all_allow = binding.allowed == 1;
    assert!(!all_allow || !is_impossible, "a bucket was made without memory");
    for (((place, take), told), lacks_memory) in takes().zip(own).zip(lacking) {
        let Bucket { model, limit, .. } = &mut page[place];
        let mut after = model.clone();
        after.follow_together(limit, take, now.us, told, all_allow);
        if !lacks_memory {
            *model = after;
        }
    }
}

/// All that a step may make of a page. What is told does not matter to what is stored, only what is granted does.
fn outcomes(page: &Page, Step { places, act, .. }: &Step, now: &Now) -> Vec<Page> {
    let mut bucket = page[places[0]].clone();
    let models = match act {
        Act::Decide(new_limit, want) => {
            bucket.limit = new_limit.as_ref().unwrap_or(&bucket.limit).clone();
            match bucket.without_memory(want, now) {
                None => bucket.model.outcomes(&bucket.limit, want.wanted(), now.us),
                Some((instead, Lacking::Stored)) => {
                    bucket.model.outcomes(&bucket.limit, instead.wanted(), now.us)
                }
                Some(_) => vec![bucket.model.clone()],
            }
        }
        Act::TakeTogether(takes) => return none_or_all(page, places, takes, now),
        Act::Reset => vec![Model::default()],
        Act::Peek(_) | Act::Look | Act::LookAtHolds => vec![bucket.model.clone()],
    };
    let with = |model| {
        let mut page = page.clone();
        page[places[0]] = Bucket { model, ..bucket.clone() };
        page
    };
    models.into_iter().map(with).collect()
}

/// None of the takes, or all of them for which there is memory.
fn none_or_all(page: &Page, places: &[usize], takes: &[Operation], now: &Now) -> Vec<Page> {
    let mut after = page.clone();
    for (place, take) in places.iter().zip(takes) {
        let (bucket, want) = (&mut after[*place], Want::Operation(*take));
        let lacks_memory = bucket.without_memory(&want, now).is_some();
        if bucket.most_allowed(&want, now) == 0 || (lacks_memory && now.memory == Memory::FullAndDenying) {
            return vec![page.clone()];
        }
        if !lacks_memory {
            bucket.model.apply(&bucket.limit, *take, now.us, 1, false);
        }
    }
    vec![page.clone(), after]
}
