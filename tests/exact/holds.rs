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

impl Model {
    /// Judges the reply to a call on a hold, and does what it says.
    #[track_caller]
    pub fn follow_holding(&mut self, limit: &Limit, holding: &Holding, now_us: i64, told: Decision) -> Trace {
        let judged = match holding {
            Holding::Set { id, amount_micro, ttl_ms } => {
                self.follow_set(limit, id, &whole(*amount_micro), now_us + ttl_ms * 1000, now_us, told)
            }
            Holding::Settle { id, used_micro } => {
                self.follow_settle(limit, id, &whole(*used_micro), now_us, told)
            }
        };
        judged.unwrap_or_else(|objection| {
            panic!("{objection}: {holding:?} of {limit:?} at {now_us}: {told:?}, {self:?}")
        })
    }

    /// Whether it may be refused, as much more was used than was held.
    pub fn refuses(&self, limit: &Limit, holding: &Holding, now_us: i64) -> bool {
        let Holding::Settle { id, used_micro } = holding else { return false };
        let held = self.holds(now_us).remove(id);
        held.is_some_and(|held| {
            is_too_deep(&(self.level(limit, now_us).low + held.micro - whole(*used_micro)))
        })
    }

    /// A larger amount takes the difference, a smaller one gives it back, none ends the hold.
    fn follow_set(
        &mut self,
        limit: &Limit,
        id: &str,
        amount: &Exact,
        ends_at_us: i64,
        now_us: i64,
        told: Decision,
    ) -> Judgement<Trace> {
        let before = self.level(limit, now_us);
        let mut holds = self.holds(now_us);
        let held = holds.remove(id);
        let difference = amount - held.as_ref().map_or_else(Exact::zero, |held| held.micro.clone());
        let is_allowed = |level: &Exact| i64::from(!difference.is_positive() || difference <= *level);
        let (least, most) = (is_allowed(&before.low), is_allowed(&before.high));
        ensure((least..=most).contains(&told.allowed), || format!("allowed is not {least} to {most}"))?;
        if told.allowed == 0 {
            judge_denial(limit, &before, &holds, held.as_ref(), amount, now_us, told)?;
            let as_it_is = ends(&self.holds(now_us));
            judge_level(limit, &before, &Exact::zero(), &as_it_is, now_us, told)?;
            return Ok(self.untouched(true, now_us));
        }
        ensure(told.retry_after_ms == 0, || "a wait for what was granted".to_owned())?;
        if amount.is_zero() && held.is_none() {
            judge_level(limit, &before, &Exact::zero(), &ends(&holds), now_us, told)?;
            return Ok(Trace::None);
        }
        if amount.is_positive() {
            holds.insert(id.to_owned(), End { at_us: ends_at_us, micro: amount.clone() });
        }
        self.change(limit, before.map(|level| level - &difference), holds, now_us, told)
    }

    /// What was held and not used comes back, what was used beyond it is charged.
    fn follow_settle(
        &mut self,
        limit: &Limit,
        id: &str,
        used: &Exact,
        now_us: i64,
        told: Decision,
    ) -> Judgement<Trace> {
        let before = self.level(limit, now_us);
        let mut holds = self.holds(now_us);
        let Some(held) = holds.remove(id) else {
            ensure(told.allowed == 0 && told.retry_after_ms == -1, || {
                "settled what is not there".to_owned()
            })?;
            judge_level(limit, &before, &Exact::zero(), &ends(&holds), now_us, told)?;
            return Ok(Trace::None);
        };
        ensure(told.allowed == 1, || "did not settle what is there".to_owned())?;
        let after = before.map(|level| (level + &held.micro - used).min(limit.capacity.clone()));
        ensure(!is_too_deep(&after.high), || "a debt that is too deep".to_owned())?;
        let stored = after.clone().lower_by(&limit.flow.loss());
        judge_wait(limit, &stored, &ends(&holds), now_us, &Exact::zero(), told.retry_after_ms)
            .map_err(|objection| format!("retry {objection}"))?;
        self.change(limit, after, holds, now_us, told)
    }

    fn change(
        &mut self,
        limit: &Limit,
        after: Range,
        holds: Holds,
        now_us: i64,
        told: Decision,
    ) -> Judgement<Trace> {
        let after = after.map(|level| level.clone().min(limit.capacity.clone()));
        let lost = if after.low < limit.capacity { limit.flow.loss() } else { Exact::zero() };
        judge_level(limit, &after, &lost, &ends(&holds), now_us, told)?;
        Ok(self.leave(limit, after, &lost, holds, now_us, told.reset_after_ms == 0))
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
        let before = self.level(limit, now_us);
        let mut holds = self.holds(now_us);
        let (Holding::Set { id, .. } | Holding::Settle { id, .. }) = holding;
        let held = holds.remove(id).map(|held| held.micro);
        let (is_set, amount) = match holding {
            Holding::Set { amount_micro, .. } => (true, whole(*amount_micro)),
            Holding::Settle { used_micro, .. } => (false, whole(*used_micro)),
        };
        if held.is_none() && (!is_set || amount.is_zero()) {
            return vec![self.clone()];
        }
        if let Holding::Set { ttl_ms, amount_micro: 1.., .. } = holding {
            holds.insert(id.clone(), End { at_us: now_us + ttl_ms * 1000, micro: amount.clone() });
        }
        let taken = amount - held.unwrap_or_else(Exact::zero);
        let is_denied = |level: &Exact| is_set && taken.is_positive() && taken > *level;
        let mut outcomes = Vec::new();
        if is_denied(&before.low) {
            outcomes.push(self.clone());
        }
        if !is_denied(&before.high) {
            let after = before.map(|level| (level - &taken).min(limit.capacity.clone()));
            let lost = if after.low < limit.capacity { limit.flow.loss() } else { Exact::zero() };
            for is_full in [false, true] {
                let mut model = self.clone();
                model.leave(limit, after.clone(), &lost, holds.clone(), now_us, is_full);
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
    others: &Holds,
    held: Option<&End>,
    amount: &Exact,
    now_us: i64,
    told: Decision,
) -> Judgement<()> {
    let wanted = amount - held.map_or_else(Exact::zero, |held| held.micro.clone());
    let reached_at = |level| {
        let in_us = limit.reaches_with_us(level, now_us, &wanted, &ends(others))?;
        Some(in_us + whole(now_us)).filter(|_| wanted <= limit.capacity)
    };
    // The first millisecond at which it may be asked for.
    let asked_at_us =
        |at_us: &Exact| whole(now_us) + whole(milliseconds(&(at_us - whole(now_us)))) * whole(1000);
    let in_time = |at_us: &Exact| {
        *amount <= limit.capacity || held.is_some_and(|held| asked_at_us(at_us) < whole(held.at_us))
    };
    let hope =
        [&before.low, &before.high].map(|level| reached_at(level).is_some_and(|at_us| in_time(&at_us)));
    if told.retry_after_ms == -1 {
        return ensure(hope != [true, true], || "no hope where there is some".to_owned());
    }
    ensure(hope != [false, false], || "hope where there is none".to_owned())?;
    judge_wait(limit, before, &ends(others), now_us, &wanted, told.retry_after_ms)
        .map_err(|objection| format!("retry {objection}"))
}
