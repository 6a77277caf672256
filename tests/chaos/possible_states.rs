//! What the buckets of one client must hold, by the exact model, and what they may hold while a call's fate is
//! unknown: judges what is replied and what is stored, and follows it.

use super::step::{Act, Step, Want};
use super::world::{Memory, Now};
use crate::common::judged_calls::{holds_to_show, override_to_show, shown_holds, stored};
use crate::common::model::bucket::assert_binding;
use crate::common::model::call::Wanted;
use crate::common::model::{operation, Bucket as State, Exact, HoldOperation, Limit, Model, Operation};
use crate::common::stored::Stored;
use crate::common::{array, decision, integer, is_before, multi_decision, reply};
use num_traits::Signed;
use redis::Value;

/// One bucket, of which nobody else takes.
#[derive(Clone, Debug)]
pub struct Bucket {
    pub key: String,
    pub limit: Limit,
    pub model: Model,
    /// Whether it had a key when it was last looked at.
    pub has_key: bool,
}

/// The buckets of one client.
pub type Buckets = Vec<Bucket>;

/// All that the buckets of a client may hold: one state, unless a call was cut off.
pub struct PossibleStates {
    possible: Vec<Buckets>,
}

impl PossibleStates {
    pub fn new(buckets: Buckets) -> Self {
        Self { possible: vec![buckets] }
    }

    pub fn is_settled(&self) -> bool {
        self.possible.len() == 1
    }

    /// What the buckets hold, where only one state is possible.
    pub fn buckets(&mut self) -> &mut Buckets {
        assert!(self.is_settled(), "several states are possible");
        &mut self.possible[0]
    }

    /// The server is empty: every bucket is full.
    pub fn reset(&mut self) {
        self.possible.truncate(1);
        self.buckets().iter_mut().for_each(|bucket| bucket.model = Model::default());
    }

    /// The steps may have been done as one, or none of them.
    pub fn fork(&mut self, steps: &[Step], now: &Now) {
        let mut done = vec![self.buckets().clone()];
        for step in steps {
            done = done.iter().flat_map(|buckets| outcomes(buckets, step, now)).collect();
        }
        self.possible.extend(done);
    }

    /// Keeps the state that is stored, the nearest if it may be several, and panics if it is none of them. Returns what
    /// became of a call that was cut off.
    pub fn settle(
        &mut self,
        now: &Now,
        found: impl FnMut(&Bucket) -> Option<Stored>,
    ) -> Option<&'static str> {
        let found: Vec<_> = self.possible[0].iter().map(found).collect();
        let misfits = |buckets: &Buckets| -> Vec<_> {
            let pairs = buckets.iter().zip(&found);
            let misfits = pairs.filter(|(bucket, found)| !bucket.may_be(now, found.as_ref()));
            misfits.map(|(bucket, found)| format!("found {found:?}, expected {bucket:?}")).collect()
        };
        let distance_micro = |buckets: &Buckets| -> Exact {
            let pairs = buckets.iter().zip(&found);
            pairs.map(|(bucket, found)| bucket.model.distance_micro(state(found.as_ref()))).sum()
        };
        let numbered = self.possible.iter().enumerate();
        let fitting = numbered.filter(|(_, buckets)| misfits(buckets).is_empty());
        let nearest = fitting.min_by_key(|(_, buckets)| distance_micro(buckets));
        let Some((number, nearest)) = nearest else {
            let all: Vec<_> = self.possible.iter().map(misfits).collect();
            panic!("what is stored at {} is none of the {} that may be: {all:#?}", now.us, all.len());
        };
        let fate = if number > 0 { "cut off and done" } else { "cut off and not done" };
        let fate = (!self.is_settled()).then_some(fate);
        let mut buckets = nearest.clone();
        for (bucket, found) in buckets.iter_mut().zip(&found) {
            bucket.see(now, state(found.as_ref()));
        }
        self.possible = vec![buckets];
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
    /// Returns whether it may be stored like this. No key goes before its bucket is full, nor much later: a hold that was
    /// made and has ended may leave no other mark.
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
            && found.is_none_or(|found| found.limit_override == override_to_show(&self.model, now.us))
            && expires_in_time
    }

    /// Judges what is stored.
    fn see(&mut self, now: &Now, state: Option<State>) {
        self.has_key = state.is_some();
        self.model.see(&self.limit, now.us, state);
    }

    /// The most that the exact model allows; the server's level may be lower by what it may lose.
    fn most_allowed(&self, want: &Want, now: &Now) -> i64 {
        self.model.allowed(want.limit(&self.limit), want.wanted(), now.us)[1].unwrap_or(0)
    }

    /// What is decided where there is no memory for what a call would store: of a new hold, a take. To be asked after a
    /// look at the bucket.
    fn without_memory(&self, want: &Want, now: &Now) -> Option<(Want, Lacking)> {
        let (instead, needs_memory) = match want.wanted() {
            Wanted::Operation(operation) => {
                let moved = operation::moved(operation, self.most_allowed(want, now));
                (want.clone(), !self.has_key && moved.is_positive())
            }
            Wanted::Override { .. } => return None,
            Wanted::Hold(HoldOperation::Renew { .. } | HoldOperation::Settle { .. }) => return None,
            Wanted::Hold(HoldOperation::Set { id, amount_micro, .. }) => {
                let is_new = *amount_micro > 0 && !self.model.holds(now.us).contains_key(id);
                (Want::Operation(Operation::Take { cost_micro: *amount_micro }), is_new)
            }
        };
        let lacking = match now.memory {
            Memory::FullAndAllowing if !self.has_key => Lacking::Forgotten,
            // Only of a hold. Nothing would bring the tokens of a pool back.
            Memory::FullAndAllowing if !self.model.limit_at(&self.limit, now.us).is_pool() => Lacking::Stored,
            _ => Lacking::Refused,
        };
        (needs_memory && now.memory != Memory::Free).then_some((instead, lacking))
    }

    fn follow(&mut self, want: &Want, now: &Now, reply: &Value) {
        self.model.follow(want.limit(&self.limit), want.wanted(), now.us, decision(reply));
    }

    /// Judges a decision, and follows it if there was memory to store it.
    fn judge_reply(&mut self, want: &Want, now: &Now, reply: &Value) {
        match self.without_memory(want, now) {
            None => self.follow(want, now, reply),
            Some((instead, Lacking::Stored)) => self.follow(&instead, now, reply),
            Some((instead, Lacking::Refused)) if is_error(reply, "OOM") => {
                assert!(self.most_allowed(&instead, now) > 0, "a denial needs no memory");
            }
            Some((instead, lacking)) => {
                self.clone().follow(&instead, now, reply);
                let is_right = lacking == Lacking::Forgotten || decision(reply).allowed == 0;
                assert!(is_right, "{want:?} was done without memory");
            }
        }
    }
}

pub fn is_error(reply: &Value, code: &str) -> bool {
    matches!(reply, Value::ServerError(error) if error.code() == code)
}

/// Judges the reply to one step, and does what it says.
pub fn judge_reply(buckets: &mut Buckets, Step { places, act, .. }: &Step, now: &Now, reply: &Value) {
    let bucket = &mut buckets[places[0]];
    match act {
        Act::Decide(want) => bucket.judge_reply(want, now, reply),
        Act::TakeTogether(takes) => judge_joint_reply(buckets, places, takes, now, reply),
        Act::TakeOneOf(takes) => judge_reply_of_one(buckets, places, takes, now, reply),
        Act::Peek(take) => bucket.model.judge(&bucket.limit, *take, now.us, decision(reply)),
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

fn judge_joint_reply(buckets: &mut Buckets, places: &[usize], takes: &[Operation], now: &Now, reply: &Value) {
    let takes = || places.iter().copied().zip(takes.iter().copied());
    let lacks_memory = |(place, take): (usize, Operation)| {
        buckets[place].without_memory(&Want::Operation(take), now).is_some()
    };
    let lacking: Vec<bool> = takes().map(lacks_memory).collect();
    let is_impossible = now.memory == Memory::FullAndDenying && lacking.contains(&true);
    if is_impossible && is_error(reply, "OOM") {
        let grants = |(place, take): (usize, _)| buckets[place].most_allowed(&Want::Operation(take), now) > 0;
        return assert!(takes().all(grants), "a denial needs no memory");
    }
    let (binding, own) = multi_decision(reply);
    assert_eq!(own.len(), lacking.len());
    assert_binding(binding, &own);
    let all_allow = binding.allowed == 1;
    assert!(!all_allow || !is_impossible, "a bucket was made without memory");
    for (((place, take), told), lacks_memory) in takes().zip(own).zip(lacking) {
        let Bucket { model, limit, .. } = &mut buckets[place];
        let mut after = model.clone();
        after.follow_together(limit, take, now.us, told, all_allow);
        if !lacks_memory {
            *model = after;
        }
    }
}

/// No alternative before the one that is taken may have allowed it.
fn judge_reply_of_one(
    buckets: &mut Buckets,
    places: &[usize],
    takes: &[Operation],
    now: &Now,
    reply: &Value,
) {
    let wants = || places.iter().copied().zip(takes.iter().map(|take| Want::Operation(*take)));
    if now.memory == Memory::FullAndDenying && is_error(reply, "OOM") {
        let may_lack_memory = |(place, want): (usize, Want)| {
            let bucket = &buckets[place];
            bucket.without_memory(&want, now).is_some() && bucket.most_allowed(&want, now) > 0
        };
        return assert!(wants().any(may_lack_memory), "a denial needs no memory");
    }
    let number = multi_decision(reply).0.allowed as usize;
    for (place, want) in wants().take(number.checked_sub(1).unwrap_or(places.len())) {
        let bucket = &buckets[place];
        let least = bucket.model.allowed(want.limit(&bucket.limit), want.wanted(), now.us)[0];
        assert_eq!(least, Some(0), "{want:?} of {bucket:?} was passed over: {reply:?}");
    }
    if let Some((place, want)) = number.checked_sub(1).and_then(|before| wants().nth(before)) {
        let own = array(array(reply.clone()).swap_remove(4)).swap_remove(0);
        assert_eq!(decision(&own).allowed, 1);
        buckets[place].judge_reply(&want, now, &own);
    }
}

/// Every state that a step may lead to. Only what it grants matters to what is stored, not what it replies.
fn outcomes(buckets: &Buckets, Step { places, act, .. }: &Step, now: &Now) -> Vec<Buckets> {
    let bucket = &buckets[places[0]];
    let models = match act {
        Act::Decide(want) => {
            let done = match bucket.without_memory(want, now) {
                None => Some(want.clone()),
                Some((instead, lacking)) => (lacking == Lacking::Stored).then_some(instead),
            };
            let outcomes =
                |want: Want| bucket.model.outcomes(want.limit(&bucket.limit), want.wanted(), now.us);
            done.map_or_else(|| vec![bucket.model.clone()], outcomes)
        }
        Act::TakeTogether(takes) => return none_or_all(buckets, places, takes, now),
        Act::TakeOneOf(takes) => {
            let alternatives = places.chunks(1).zip(takes.chunks(1));
            return alternatives.flat_map(|(place, take)| none_or_all(buckets, place, take, now)).collect();
        }
        Act::Reset => vec![Model::default()],
        Act::Peek(_) | Act::Look | Act::LookAtHolds => vec![bucket.model.clone()],
    };
    let with = |model| {
        let mut buckets = buckets.clone();
        buckets[places[0]].model = model;
        buckets
    };
    models.into_iter().map(with).collect()
}

/// None of the takes, or all of them for which there is memory.
fn none_or_all(buckets: &Buckets, places: &[usize], takes: &[Operation], now: &Now) -> Vec<Buckets> {
    let mut after = buckets.clone();
    for (place, take) in places.iter().zip(takes) {
        let (bucket, want) = (&mut after[*place], Want::Operation(*take));
        let lacks_memory = bucket.without_memory(&want, now).is_some();
        if bucket.most_allowed(&want, now) == 0 || (lacks_memory && now.memory == Memory::FullAndDenying) {
            return vec![buckets.clone()];
        }
        if !lacks_memory {
            bucket.model.apply(&bucket.limit, *take, now.us, 1, false);
        }
    }
    vec![buckets.clone(), after]
}
