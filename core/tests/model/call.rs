//! One call, of an operation or on a hold: what it takes, and what may be told of it.

use super::bucket::{Range, LONGEST_TOLD_MS};
use super::limit::{is_too_deep, milliseconds, tokens, End};
use super::operation::most_moved;
use super::{whole, Exact, Limit, Model, Operation, MILLION};
use num_bigint::BigInt;
use num_traits::{Signed, ToPrimitive, Zero};
use std::collections::BTreeMap;
use tokenbucket_core::bucket::Decision;

/// What is held of a bucket under each id: taken, and coming back at a moment unless it is settled before.
pub type Holds = BTreeMap<String, End>;

/// What has come back of holds by a moment, in micro-tokens.
pub fn ended(holds: &Holds, now_us: i64) -> Exact {
    holds.values().filter(|end| end.at_us <= now_us).map(|end| &end.micro).sum()
}

/// The next to end first.
pub fn ends(holds: &Holds) -> Vec<End> {
    let mut ends: Vec<End> = holds.values().cloned().collect();
    ends.sort_by_key(|end| end.at_us);
    ends
}

/// What is wanted of a hold.
#[derive(Clone, Debug)]
pub enum HoldOperation {
    Set { id: String, amount_micro: i64, ttl_ms: i64 },
    Renew { id: String, ttl_ms: i64 },
    Settle { id: String, used_micro: i64 },
}

impl HoldOperation {
    pub fn id(&self) -> &str {
        let (Self::Set { id, .. } | Self::Renew { id, .. } | Self::Settle { id, .. }) = self;
        id
    }

    /// Returns how long the hold lasts from now; `None` if the call ends it.
    pub fn ttl_ms(&self) -> Option<i64> {
        match self {
            Self::Set { ttl_ms, .. } | Self::Renew { ttl_ms, .. } => Some(*ttl_ms),
            Self::Settle { .. } => None,
        }
    }

    /// Replaces how long the hold lasts, unless the call ends it.
    pub fn lasting(mut self, new_ttl_ms: i64) -> Self {
        if let Self::Set { ttl_ms, .. } | Self::Renew { ttl_ms, .. } = &mut self {
            *ttl_ms = new_ttl_ms;
        }
        self
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    Operation(Operation),
    Hold(&'a HoldOperation),
    /// The limit of the call counts for all calls, for so long.
    Override {
        ttl_ms: i64,
        /// It begins with a full bucket.
        fills: bool,
    },
}
use Wanted::{Hold as Held, Operation as Plain, Override};

impl Wanted<'_> {
    /// The whole call.
    pub fn words(&self, key: &str, limit: &Limit) -> String {
        let Limit { words: limit_words, .. } = limit;
        match self {
            Plain(operation) => super::operation::words(*operation, key, limit),
            Override { ttl_ms, fills } => {
                format!("TB.OVERRIDE {key} {limit_words} {ttl_ms}{}", if *fills { " FULL" } else { "" })
            }
            Held(HoldOperation::Set { id, amount_micro, ttl_ms }) => {
                format!("TB.HOLD {key} {limit_words} {amount_micro}e-6 {ttl_ms} {id}")
            }
            Held(HoldOperation::Renew { id, ttl_ms }) => {
                format!("TB.RENEW {key} {limit_words} {ttl_ms} {id}")
            }
            Held(HoldOperation::Settle { id, used_micro }) => {
                format!("TB.SETTLE {key} {limit_words} {id} {used_micro}e-6")
            }
        }
    }
}

impl From<Operation> for Wanted<'_> {
    fn from(operation: Operation) -> Self {
        Plain(operation)
    }
}

impl<'a> From<&'a HoldOperation> for Wanted<'a> {
    fn from(hold_operation: &'a HoldOperation) -> Self {
        Held(hold_operation)
    }
}

/// What is wanted, of a bucket that held so much.
pub(super) struct Call<'a> {
    /// The limit that comes with it.
    pub own: &'a Limit,
    /// The limit that counts.
    pub limit: &'a Limit,
    pub now_us: i64,
    pub wanted: Wanted<'a>,
    pub before: Range,
    pub holds: Holds,
    /// How long an override still lasts: no wait that is told is longer.
    left_ms: Option<i64>,
    /// An override denies every positive cost.
    is_suspended: bool,
    /// The hold that it is about, if it is there, and all others.
    held: Option<End>,
    others: Holds,
    /// The holds behind it, if it is allowed: nothing held ends a hold, as settling does.
    pub holds_behind: Holds,
    /// Micro-tokens that all of it takes; what comes back is negative. Of a hold it is the difference to what is held.
    pub taken: Exact,
}

type Judgement = Result<(), String>;

fn ensure(condition: bool, objection: impl FnOnce() -> String) -> Judgement {
    condition.then_some(()).ok_or_else(objection)
}

impl<'a> Call<'a> {
    pub fn new(model: &Model, (own, limit): (&'a Limit, &'a Limit), wanted: Wanted<'a>, now_us: i64) -> Self {
        let (before, holds) = (model.level(own, now_us), model.holds(now_us));
        let (mut others, mut held) = (holds.clone(), None);
        if let Held(hold_operation) = wanted {
            held = others.remove(hold_operation.id());
        }
        let mut holds_behind = others.clone();
        let amount = match wanted {
            Plain(operation) => most_moved(operation),
            Override { .. } => Exact::zero(),
            Held(HoldOperation::Settle { used_micro, .. }) => whole(*used_micro),
            Held(HoldOperation::Renew { id, ttl_ms }) => {
                let micro = held.as_ref().map_or_else(Exact::zero, |held| held.micro.clone());
                let end = End { at_us: now_us + ttl_ms * 1000, micro: micro.clone() };
                holds_behind.extend(held.is_some().then(|| (id.clone(), end)));
                micro
            }
            Held(HoldOperation::Set { id, amount_micro, ttl_ms }) => {
                let end = End { at_us: now_us + ttl_ms * 1000, micro: whole(*amount_micro) };
                holds_behind.extend((*amount_micro > 0).then(|| (id.clone(), end)));
                whole(*amount_micro)
            }
        };
        let taken = amount - held.as_ref().map_or_else(Exact::zero, |held| held.micro.clone());
        let left_ms = model.override_ends_at_us(now_us).map(|at_us| milliseconds(&whole(at_us - now_us)));
        let left_ms = left_ms.map(|left_ms| left_ms.to_i64().unwrap());
        let is_suspended = model.is_suspended(now_us);
        Self {
            own,
            limit,
            now_us,
            wanted,
            before,
            holds,
            left_ms,
            is_suspended,
            held,
            others,
            holds_behind,
            taken,
        }
    }

    /// Returns whether there is no such hold, and none is to be made.
    pub fn is_void(&self) -> bool {
        let needs_one = matches!(
            self.wanted,
            Held(
                HoldOperation::Renew { .. }
                    | HoldOperation::Settle { .. }
                    | HoldOperation::Set { amount_micro: 0, .. }
            )
        );
        needs_one && self.held.is_none()
    }

    /// What is told as allowed, at the least and at the most; `None` is a refusal, because the debt would be too deep.
    pub fn allowed(&self) -> [Option<i64>; 2] {
        [&self.before.low, &self.before.high].map(|level| self.allowed_at(level))
    }

    /// Returns whether an override denies it, whatever the level.
    fn is_barred(&self) -> bool {
        let is_charged = matches!(
            self.wanted,
            Plain(Operation::Charge { .. })
                | Held(HoldOperation::Settle { .. } | HoldOperation::Renew { .. })
        );
        self.is_suspended && self.taken.is_positive() && !is_charged
    }

    fn allowed_at(&self, level: &Exact) -> Option<i64> {
        let after = level - &self.taken;
        if self.is_barred() {
            return Some(0);
        }
        Some(match self.wanted {
            Plain(Operation::Take { .. }) => i64::from(!after.is_negative()),
            Plain(Operation::TakeUpTo { max_tokens }) => {
                tokens(level).min(max_tokens.into()).max(0.into()).to_i64().unwrap()
            }
            Plain(Operation::Reserve { cost_micro, max_wait_ms }) => {
                let wait_us = self.reaches_in_us(&after, &Exact::zero(), &self.holds);
                let in_time = wait_us.is_some_and(|wait_us| milliseconds(&wait_us) <= max_wait_ms.into());
                let is_possible =
                    self.taken <= self.limit.capacity && (cost_micro == 0 || !is_too_deep(&after));
                i64::from(in_time && is_possible)
            }
            Plain(Operation::Give { .. }) => 1,
            Override { .. } => i64::from(!level.is_negative()),
            Held(HoldOperation::Set { .. }) => i64::from(!self.taken.is_positive() || !after.is_negative()),
            Held(HoldOperation::Renew { .. } | HoldOperation::Settle { .. }) if self.is_void() => 0,
            Held(HoldOperation::Renew { .. }) => 1,
            Plain(Operation::Charge { .. }) | Held(HoldOperation::Settle { .. }) => {
                return (!self.taken.is_positive() || !is_too_deep(&after)).then_some(1)
            }
        })
    }

    fn moved(&self, allowed: i64) -> Exact {
        match self.wanted {
            Plain(operation) => super::operation::moved(operation, allowed),
            Override { .. } => Exact::zero(),
            Held(_) if allowed == 0 => Exact::zero(),
            Held(_) => self.taken.clone(),
        }
    }

    /// Returns whether it changes what is stored when so much was allowed.
    pub fn writes(&self, allowed: i64) -> bool {
        match self.wanted {
            Plain(Operation::Give { .. }) if self.before.low == self.limit.capacity => false,
            Plain(_) => !self.moved(allowed).is_zero(),
            Override { .. } => false,
            Held(_) => allowed != 0 && !self.is_void(),
        }
    }

    /// The level behind it, and what is stored of that.
    pub fn after(&self, allowed: i64) -> (Range, Range) {
        let moved = self.moved(allowed);
        let after = self.before.map(|level| (level - &moved).min(self.limit.capacity.clone()));
        let loses = self.writes(allowed) && after.low < self.limit.capacity;
        let lost = if loses { self.limit.flow.loss() } else { Exact::zero() };
        let stored = after.clone().lower_by(&lost);
        (after, stored)
    }

    pub fn judge(&self, told: Decision) -> Judgement {
        let [least, most] = self.allowed().map(|allowed| allowed.unwrap_or(i64::MIN));
        ensure((least..=most).contains(&told.allowed), || format!("allowed is not {least} to {most}"))?;
        let (after, stored) = self.after(told.allowed);
        let shown = |level: &Exact| match self.is_suspended {
            true => tokens(level).min(0.into()),
            false => tokens(level),
        };
        let remaining = shown(&after.low)..=shown(&after.high);
        ensure(remaining.contains(&told.remaining.into()), || format!("remaining is not {remaining:?}"))?;
        let holds = if told.allowed == 0 { &self.holds } else { &self.holds_behind };
        let reset = match self.is_suspended {
            true => self.judge_never(told.reset_after_ms),
            false => self.judge_wait(&stored, holds, &self.limit.capacity, told.reset_after_ms),
        };
        reset.map_err(|objection| format!("reset {objection}"))?;
        self.judge_retry(&stored, told).map_err(|objection| format!("retry {objection}"))
    }

    fn judge_retry(&self, stored: &Range, told: Decision) -> Judgement {
        let told_ms = told.retry_after_ms;
        if self.is_barred() {
            return self.judge_never(told_ms);
        }
        match self.wanted {
            Held(HoldOperation::Renew { .. } | HoldOperation::Settle { .. }) if told.allowed == 0 => {
                ensure(told_ms == -1, || "brings back a hold".to_owned())
            }
            Plain(Operation::Reserve { max_wait_ms, .. }) => {
                self.judge_reserver(told.allowed, max_wait_ms, told_ms)
            }
            Override { .. } | Plain(Operation::Charge { .. }) | Held(HoldOperation::Settle { .. }) => {
                self.judge_wait(stored, &self.holds_behind, &Exact::zero(), told_ms)
            }
            Plain(Operation::TakeUpTo { .. }) if told.allowed == 0 => {
                self.judge_denial(&whole(MILLION), told_ms)
            }
            _ if told.allowed == 0 => self.judge_denial(&self.taken, told_ms),
            _ => ensure(told_ms == 0, || "is a wait for what was granted".to_owned()),
        }
    }

    fn judge_reserver(&self, allowed: i64, max_wait_ms: i64, told_ms: i64) -> Judgement {
        if self.taken > self.limit.capacity {
            return self.judge_never(told_ms);
        }
        let owing = self.before.map(|level| level - &self.taken);
        let agreeing_ms = match allowed {
            // Who would wait as long as that is granted it, unless the debt has reached its bottom.
            _ if self.is_cut(told_ms) => 0..=i64::MAX,
            0 if is_too_deep(&owing.low) => 1..=i64::MAX,
            0 => max_wait_ms + 1..=i64::MAX,
            _ => 0..=max_wait_ms,
        };
        ensure(agreeing_ms.contains(&told_ms), || "is not what was decided by".to_owned())?;
        self.judge_wait(&owing, &self.holds, &Exact::zero(), told_ms)
    }

    /// The end of a hold that is denied changes nothing: what comes back then, the same call wants in addition. But more
    /// than the capacity can only be had as long as the hold is there.
    fn judge_denial(&self, wanted: &Exact, told_ms: i64) -> Judgement {
        let held_micro = self.held.as_ref().map_or_else(Exact::zero, |held| held.micro.clone());
        let is_larger = wanted + held_micro > self.limit.capacity;
        // Whether it may be asked for again in time, which is at a whole millisecond.
        let has_hope = |level| {
            let reached_in_us = self.reaches_in_us(level, wanted, &self.others);
            let asked_at_us =
                reached_in_us.map(|us| whole(self.now_us) + whole(milliseconds(&us)) * whole(1000));
            let ends_at_us = self.held.as_ref().map_or(i64::MIN, |held| held.at_us);
            *wanted <= self.limit.capacity
                && asked_at_us.is_some_and(|at_us| !is_larger || at_us < whole(ends_at_us))
        };
        let hope = [has_hope(&self.before.low), has_hope(&self.before.high)];
        if self.is_cut(told_ms) && hope != [true, true] {
            return Ok(());
        }
        if told_ms == -1 && self.left_ms.is_none() {
            return ensure(hope != [true, true], || "is no hope where there is some".to_owned());
        }
        ensure(hope != [false, false] && told_ms > 0, || "is hope where there is none".to_owned())?;
        self.judge_wait(&self.before, &self.others, wanted, told_ms)
    }

    /// Returns whether `told_ms` is when a level reaches `wanted`, to the millisecond; -1 if that is never.
    fn judge_wait(&self, level: &Range, holds: &Holds, wanted: &Exact, told_ms: i64) -> Judgement {
        let longest = BigInt::from(LONGEST_TOLD_MS);
        let [earliest, latest] = [&level.high, &level.low]
            .map(|level| self.reaches_in_us(level, wanted, holds).as_ref().map(milliseconds));
        let Some(earliest) = earliest else { return self.judge_never(told_ms) };
        let told = BigInt::from(told_ms);
        if self.is_cut(told_ms) {
            return ensure(latest.is_none_or(|latest| latest >= told), || "is reached earlier".to_owned());
        }
        let reaches_in_time = match &latest {
            Some(latest) => told <= *latest || told >= longest,
            // A rate before this pool left a rest, and without that the pool may never be so full.
            None if told_ms == -1 && self.left_ms.is_none() => return Ok(()),
            None => true,
        };
        let is_in_time = self.left_ms.is_none_or(|left_ms| told_ms <= left_ms);
        let right = earliest.clone().min(longest) <= told && reaches_in_time && is_in_time;
        ensure(right, || format!("is not in {earliest} to {latest:?} ms"))
    }

    /// Returns whether a denial's wait is cut at the end of the override.
    fn is_cut(&self, told_ms: i64) -> bool {
        self.left_ms == Some(told_ms)
    }

    fn judge_never(&self, told_ms: i64) -> Judgement {
        ensure(told_ms == self.left_ms.unwrap_or(-1), || "is hope where there is none".to_owned())
    }

    pub fn reaches_in_us(&self, level: &Exact, wanted: &Exact, holds: &Holds) -> Option<Exact> {
        self.limit.reaches_with_us(level, self.now_us, wanted, &ends(holds))
    }
}
