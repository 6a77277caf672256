//! Holds: amounts that are taken under a name, and come back at a moment unless they are settled before.

use super::bucket::{ensure, judge_wait, Judgement, Range};
use super::limit::{is_too_deep, milliseconds, tokens, End, Limit};
use super::{whole, Exact, Model, Trace};
use num_traits::{Signed, Zero};
use std::collections::BTreeMap;
use tokenbucket::bucket::Decision;

/// What is held of a bucket, by its id.
pub type Holds = BTreeMap<String, End>;

/// What has come back of holds by a moment, in micro-tokens.
pub fn ended(holds: &Holds, now_us: i64) -> Exact {
    holds.values().filter(|end| end.at_us <= now_us).map(|end| &end.micro).sum()
}

/// When holds end, the next to end first.
pub fn ends(holds: &Holds) -> Vec<End> {
    let mut ends: Vec<End> = holds.values().cloned().collect();
    ends.sort_by_key(|end| end.at_us);
    ends
}

/// What is wanted of a hold.
#[derive(Clone, Debug)]
pub enum Holding {
    Set { id: String, amount_micro: i64, ttl_ms: i64 },
    Settle { id: String, used_micro: i64 },
}

impl Holding {
    /// The whole call.
    pub fn words(&self, key: &str, limit: &Limit) -> String {
        match self {
            Self::Set { id, amount_micro, ttl_ms } => {
                format!("TB.HOLD {key} {} {amount_micro}e-6 {ttl_ms} {id}", limit.words)
            }
            Self::Settle { id, used_micro } => {
                format!("TB.SETTLE {key} {} {id} {used_micro}e-6", limit.words)
            }
        }
    }
}

/// What a call on a hold comes to.
struct Meant {
    /// A hold is set, which may be denied; settling is not.
    is_set: bool,
    held: Option<End>,
    others: Holds,
    /// A larger amount takes the difference, a smaller one gives it back; so does what was used.
    taken: Exact,
    /// The holds behind it: nothing held ends a hold, as settling does.
    holds: Holds,
}

impl Meant {
    fn allowed(&self, level: &Exact) -> i64 {
        i64::from(!self.is_set || !self.taken.is_positive() || self.taken <= *level)
    }

    /// The level behind it, and what a write of that may lose.
    fn after(&self, limit: &Limit, before: &Range) -> (Range, Exact) {
        let after = before.map(|level| (level - &self.taken).min(limit.capacity.clone()));
        let lost = if after.low < limit.capacity { limit.flow.loss() } else { Exact::zero() };
        (after, lost)
    }
}

impl Model {
    /// `None` if there is nothing to do.
    fn meant(&self, holding: &Holding, now_us: i64) -> Option<Meant> {
        let mut others = self.holds(now_us);
        let (Holding::Set { id, .. } | Holding::Settle { id, .. }) = holding;
        let held = others.remove(id);
        let mut holds = others.clone();
        let (is_set, amount) = match holding {
            Holding::Settle { used_micro, .. } => (false, whole(*used_micro)),
            Holding::Set { amount_micro, ttl_ms, .. } => {
                let end = End { at_us: now_us + ttl_ms * 1000, micro: whole(*amount_micro) };
                holds.extend((*amount_micro > 0).then(|| (id.clone(), end)));
                (true, whole(*amount_micro))
            }
        };
        if held.is_none() && (!is_set || amount.is_zero()) {
            return None;
        }
        let taken = amount - held.as_ref().map_or_else(Exact::zero, |held| held.micro.clone());
        Some(Meant { is_set, held, others, taken, holds })
    }

    /// Whether it may be refused, as much more was used than was held.
    pub fn refuses(&self, limit: &Limit, holding: &Holding, now_us: i64) -> bool {
        let least = self.level(limit, now_us).low;
        self.meant(holding, now_us).is_some_and(|meant| !meant.is_set && is_too_deep(&(least - meant.taken)))
    }

    /// Judges the reply to a call on a hold, and does what it says.
    #[track_caller]
    pub fn follow_holding(&mut self, limit: &Limit, holding: &Holding, now_us: i64, told: Decision) -> Trace {
        self.judge_holding(limit, holding, now_us, told).unwrap_or_else(|objection| {
            panic!("{objection}: {holding:?} of {limit:?} at {now_us}: {told:?}, {self:?}")
        })
    }

    fn judge_holding(
        &mut self,
        limit: &Limit,
        holding: &Holding,
        now_us: i64,
        told: Decision,
    ) -> Judgement<Trace> {
        let before = self.level(limit, now_us);
        let judge_as_it_is = |model: &Self| {
            judge_level(limit, &before, &Exact::zero(), &ends(&model.holds(now_us)), now_us, told)
        };
        let Some(meant) = self.meant(holding, now_us) else {
            let expected = if matches!(holding, Holding::Set { .. }) { (1, 0) } else { (0, -1) };
            let is_right = (told.allowed, told.retry_after_ms) == expected;
            ensure(is_right, || "something was done about a hold that is not there".to_owned())?;
            return judge_as_it_is(self).map(|()| Trace::None);
        };
        let (least, most) = (meant.allowed(&before.low), meant.allowed(&before.high));
        ensure((least..=most).contains(&told.allowed), || format!("allowed is not {least} to {most}"))?;
        if told.allowed == 0 {
            judge_denial(limit, &before, &meant, now_us, told)?;
            return judge_as_it_is(self).map(|()| self.untouched(true, now_us));
        }
        let (after, lost) = meant.after(limit, &before);
        let ends = ends(&meant.holds);
        if meant.is_set {
            ensure(told.retry_after_ms == 0, || "a wait for what was granted".to_owned())?;
        } else {
            ensure(!is_too_deep(&after.high), || "a debt that is too deep".to_owned())?;
            let stored = after.clone().lower_by(&lost);
            judge_wait(limit, &stored, &ends, now_us, &Exact::zero(), told.retry_after_ms)
                .map_err(|objection| format!("retry {objection}"))?;
        }
        judge_level(limit, &after, &lost, &ends, now_us, told)?;
        Ok(self.leave(limit, after, &lost, meant.holds, now_us, told.reset_after_ms == 0))
    }

    fn leave(
        &mut self,
        limit: &Limit,
        after: Range,
        lost: &Exact,
        holds: Holds,
        now_us: i64,
        is_full: bool,
    ) -> Trace {
        let is_full = after.low == limit.capacity || (is_full && after.high == limit.capacity);
        if is_full && holds.is_empty() {
            self.clear();
            return Trace::Gone;
        }
        self.write(limit, now_us, after.lower_by(lost), Some(limit.flow.clone()), holds);
        Trace::Written
    }

    /// What a call may leave, whatever is told of it.
    pub fn outcomes(&self, limit: &Limit, holding: &Holding, now_us: i64) -> Vec<Self> {
        let Some(meant) = self.meant(holding, now_us) else { return vec![self.clone()] };
        let before = self.level(limit, now_us);
        let mut outcomes = Vec::new();
        if meant.allowed(&before.low) == 0 {
            outcomes.push(self.clone());
        }
        if meant.allowed(&before.high) == 1 {
            let (after, lost) = meant.after(limit, &before);
            for is_full in [false, true] {
                let mut model = self.clone();
                model.leave(limit, after.clone(), &lost, meant.holds.clone(), now_us, is_full);
                outcomes.push(model);
            }
        }
        outcomes
    }
}

/// What a level is told as, and when it is full.
fn judge_level(
    limit: &Limit,
    level: &Range,
    lost: &Exact,
    ends: &[End],
    now_us: i64,
    told: Decision,
) -> Judgement<()> {
    let remaining = tokens(&level.low)..=tokens(&level.high);
    ensure(remaining.contains(&told.remaining.into()), || format!("remaining is not {remaining:?}"))?;
    let stored = level.clone().lower_by(lost);
    judge_wait(limit, &stored, ends, now_us, &limit.capacity, told.reset_after_ms)
        .map_err(|objection| format!("reset {objection}"))
}

/// The wait of a hold that is denied. Its own end changes nothing: what comes back then, the same call wants in addition.
/// But more than the capacity can only be had as long as the hold is there.
fn judge_denial(
    limit: &Limit,
    before: &Range,
    Meant { held, others, taken: wanted, .. }: &Meant,
    now_us: i64,
    told: Decision,
) -> Judgement<()> {
    let ends = ends(others);
    let held_micro = held.as_ref().map_or_else(Exact::zero, |held| held.micro.clone());
    let is_larger = wanted + held_micro > limit.capacity;
    // Whether it may be asked for again in time, which is at a whole millisecond.
    let has_hope = |level| {
        let reached_in_us = limit.reaches_with_us(level, now_us, wanted, &ends);
        let asked_at_us = reached_in_us.map(|us| whole(now_us) + whole(milliseconds(&us)) * whole(1000));
        let ends_at_us = held.as_ref().map_or(i64::MIN, |held| held.at_us);
        *wanted <= limit.capacity && asked_at_us.is_some_and(|at_us| !is_larger || at_us < whole(ends_at_us))
    };
    let hope = [has_hope(&before.low), has_hope(&before.high)];
    if told.retry_after_ms == -1 {
        return ensure(hope != [true, true], || "no hope where there is some".to_owned());
    }
    ensure(hope != [false, false], || "hope where there is none".to_owned())?;
    judge_wait(limit, before, &ends, now_us, wanted, told.retry_after_ms)
        .map_err(|objection| format!("retry {objection}"))
}
