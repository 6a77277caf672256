//! What a key holds, as far as one can know it who hears every reply.
//!
//! A level is a range: the exact one above, and below it what the contract allows the module to have lost. At a whole
//! number of tokens per second the two are the same, for ever.

use super::call::{ended, ends, Call, Holds, Wanted};
use super::limit::{milliseconds, Limit};
use super::{whole, Bucket, Exact, Flow, Operation};
use num_traits::{Signed, ToPrimitive, Zero};
use tokenbucket_core::bucket::Decision;
use tokenbucket_core::expiry::MAX_EXPIRE_AT_MS;
use tokenbucket_core::number::MAX_MICRO;

/// Waits of up to 100,000 years are told as they are; of a longer one at least that much is told.
pub const LONGEST_TOLD_MS: i64 = 3_155_760_000_000_000;

/// The least and the most that may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub low: Exact,
    pub high: Exact,
}

impl Range {
    pub(super) fn of(level: Exact) -> Self {
        Self { low: level.clone(), high: level }
    }

    pub(super) fn map(&self, change: impl Fn(&Exact) -> Exact) -> Self {
        Self { low: change(&self.low), high: change(&self.high) }
    }

    pub(super) fn lower_by(mut self, lost: &Exact) -> Self {
        self.low -= lost;
        self
    }

    pub fn contains(&self, level: &Exact) -> bool {
        self.low <= *level && *level <= self.high
    }
}

/// A bucket. The default is a full one, which has no key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    stored: Option<Stored>,
    limit_override: Option<Overridden>,
}

/// A limit in place of those of calls.
#[derive(Clone, Debug, PartialEq)]
struct Overridden {
    limit: Limit,
    began_at_us: i64,
    ends_at_us: i64,
    fills: bool,
    /// What is above its capacity, which comes back at its end. Only a call brings the limit by which that can be known: the
    /// first that writes.
    withheld: Option<Range>,
}

impl Overridden {
    fn is_suspension(&self) -> bool {
        self.limit.capacity.is_zero()
    }

    fn is_unwritten(&self) -> bool {
        !self.is_suspension() && self.withheld.is_none()
    }

    /// The bucket when it begins, whose calls bring `own`, and what is withheld of it.
    fn begin(&self, own: &Limit, stored: &Stored, now_us: i64) -> (Stored, Range) {
        if let Some(withheld) = &self.withheld {
            return (stored.clone(), withheld.clone());
        }
        let seen_us = self.began_at_us.min(self.ends_at_us).min(now_us);
        let cut = stored.cut(own, self.began_at_us, seen_us);
        let withheld = cut.level.map(|level| (level - &self.limit.capacity).max(Exact::zero()));
        // With no key it would be full too.
        let is_full = |level: &Exact| self.fills || *level == own.capacity;
        let at_most = |level: &Exact, is_full| match is_full {
            true => self.limit.capacity.clone(),
            false => level.clone().min(self.limit.capacity.clone()),
        };
        let level = Range {
            low: at_most(&cut.level.low, is_full(&cut.level.low)),
            high: at_most(&cut.level.high, is_full(&cut.level.high)),
        };
        (Stored { level, ..cut }, withheld)
    }

    /// The bucket at a moment from which it no longer counts.
    fn end(&self, begun: &Stored, withheld: &Range, at_us: i64) -> Stored {
        let cut = begun.cut(&self.limit, at_us, at_us);
        let level = Range { low: &cut.level.low + &withheld.low, high: &cut.level.high + &withheld.high };
        Stored { level, ..cut }
    }
}

/// The level of a bucket that is full by every limit.
fn full() -> Exact {
    whole(MAX_MICRO)
}

#[derive(Clone, Debug, PartialEq)]
struct Stored {
    level: Range,
    written_at_us: i64,
    /// The flow of the last write; unknown, and nothing left over, of a bucket that was found.
    flow: Option<Flow>,
    /// When its key may go at the earliest and has to go at the latest, in Unix milliseconds.
    expires_ms: (i64, i64),
    /// Those that had not ended at the last write.
    holds: Holds,
}

impl Stored {
    /// The level at a moment, by a limit. A clock that is behind the last write adds nothing.
    fn level(&self, limit: &Limit, at_us: i64) -> Range {
        self.level_with(limit, at_us, at_us)
    }

    fn level_with(&self, limit: &Limit, at_us: i64, returned_by_us: i64) -> Range {
        let mut level = self.level.clone();
        if let Some(written) = &self.flow {
            let (less, more) = written.rest_under(&limit.flow);
            level.low -= if at_us < self.written_at_us { written.rest().max(less) } else { less };
            level.high += more;
        }
        let returned = ended(&self.holds, returned_by_us);
        level.map(|level| limit.level_at(&(level + &returned), self.written_at_us, at_us))
    }

    /// The bucket at a moment at which another limit begins to count: what is left over of a micro-token is lost. The holds
    /// that ended by `returned_by_us` are in its level.
    fn cut(&self, limit: &Limit, at_us: i64, returned_by_us: i64) -> Self {
        let level = self.level_with(limit, at_us, returned_by_us);
        let lost = if level.low < limit.capacity { limit.flow.loss_at_end() } else { Exact::zero() };
        let holds = self.holds.clone().into_iter().filter(|(_, end)| end.at_us > returned_by_us).collect();
        Self { level: level.lower_by(&lost), written_at_us: at_us, flow: None, holds, ..self.clone() }
    }
}

/// What a call does to what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    None,
    Written,
    /// It counts on from a clock that stepped back.
    Anchored,
    /// The bucket is full, and its key gone.
    Gone,
    /// The bucket is full, and may have been before: then its key stays.
    Full,
}

impl Model {
    /// A bucket that somebody comes to: nothing is known of what was lost before.
    pub fn found(bucket: Option<Bucket>) -> Self {
        let stored = bucket.map(|bucket| Stored {
            level: Range::of(whole(bucket.level_micro)),
            written_at_us: bucket.refilled_at_us,
            flow: None,
            expires_ms: (0, MAX_EXPIRE_AT_MS),
            holds: Holds::new(),
        });
        Self { stored, limit_override: None }
    }

    /// The override that counts now, and when it ends.
    pub fn override_at(&self, now_us: i64) -> Option<(&Limit, i64)> {
        self.overridden_at(now_us).map(|overridden| (&overridden.limit, overridden.ends_at_us))
    }

    fn overridden_at(&self, now_us: i64) -> Option<&Overridden> {
        self.limit_override.as_ref().filter(|overridden| overridden.ends_at_us > now_us)
    }

    /// Returns whether an override denies every positive cost.
    pub fn is_suspended(&self, now_us: i64) -> bool {
        self.overridden_at(now_us).is_some_and(Overridden::is_suspension)
    }

    /// When it ends.
    pub fn override_ends_at_us(&self, now_us: i64) -> Option<i64> {
        self.override_at(now_us).map(|(_, ends_at_us)| ends_at_us)
    }

    /// The limit that counts for a call with this one. While an override suspends, that of the calls counts on.
    pub fn limit_at(&self, own: &Limit, now_us: i64) -> Limit {
        match self.overridden_at(now_us) {
            None => own.clone(),
            Some(overridden) if own.is_pool() => overridden.limit.as_pool(),
            Some(overridden) if overridden.is_suspension() => own.clone(),
            Some(overridden) => overridden.limit.clone(),
        }
    }

    /// The bucket under the limit that counts now for calls with this one.
    fn counted(&self, own: &Limit, now_us: i64) -> Option<Stored> {
        let stored = self.stored.as_ref()?;
        let overriding = self.limit_override.as_ref().filter(|overridden| !overridden.is_suspension());
        let Some(overridden) = overriding else { return Some(stored.clone()) };
        let (begun, withheld) = overridden.begin(own, stored, now_us);
        match overridden.ends_at_us > now_us {
            true => Some(begun),
            false => Some(overridden.end(&begun, &withheld, overridden.ends_at_us)),
        }
    }

    /// The level at a moment, for calls with this limit. Of a pool nothing counts but what is held.
    pub fn level(&self, own: &Limit, now_us: i64) -> Range {
        let limit = self.limit_at(own, now_us);
        if own.is_pool() {
            let held: Exact = self.holds(now_us).values().map(|end| &end.micro).sum();
            return Range::of((limit.capacity - held).max(-full()));
        }
        let counted = self.counted(own, now_us);
        counted.map_or_else(|| Range::of(limit.capacity.clone()), |counted| counted.level(&limit, now_us))
    }

    /// The holds that have not ended.
    pub fn holds(&self, now_us: i64) -> Holds {
        let holds = self.stored.as_ref().map(|stored| stored.holds.clone()).unwrap_or_default();
        holds.into_iter().filter(|(_, end)| end.at_us > now_us).collect()
    }

    /// What is told as allowed, at the least and at the most; `None` is a refusal.
    pub fn allowed<'a>(&self, limit: &Limit, wanted: impl Into<Wanted<'a>>, now_us: i64) -> [Option<i64>; 2] {
        let (wanted, mut before) = (wanted.into(), self.clone());
        let (own, (limit, _)) = (limit, before.counting(limit, wanted, now_us));
        Call::new(&before, (own, &limit), wanted, now_us).allowed()
    }

    /// Judges a decision, and does what it says.
    #[track_caller]
    pub fn follow<'a>(
        &mut self,
        limit: &Limit,
        wanted: impl Into<Wanted<'a>>,
        now_us: i64,
        told: Decision,
    ) -> Trace {
        let wanted = wanted.into();
        let (own, (limit, trace)) = (limit, self.counting(limit, wanted, now_us));
        let call = Call::new(self, (own, &limit), wanted, now_us);
        if let Err(objection) = call.judge(told) {
            panic!("{objection}: {:?} of {limit:?} at {now_us}: {told:?}, {self:?}", call.wanted);
        }
        if let Some(trace) = trace {
            return trace;
        }
        self.make_so(&call, told.allowed, told.reset_after_ms == 0)
    }

    /// The limit that counts for a call, which may begin or end an override by its own; and what that does to what is stored.
    fn counting(&mut self, own: &Limit, wanted: Wanted, now_us: i64) -> (Limit, Option<Trace>) {
        let trace = match wanted {
            Wanted::Override { ttl_ms: 0, .. } => Some(self.end_override(now_us)),
            Wanted::Override { ttl_ms, fills } => {
                let (limit, ends_at_us) = (own.clone(), now_us + ttl_ms * 1000);
                let withheld = None;
                self.begin_override(Overridden { limit, began_at_us: now_us, ends_at_us, fills, withheld });
                Some(Trace::Written)
            }
            _ => None,
        };
        (self.limit_at(own, now_us), trace)
    }

    /// One under which nothing was written counts as though it had not been.
    fn begin_override(&mut self, mut new: Overridden) {
        let now_us = new.began_at_us;
        let expires_ms = self.overridden_expires_ms(&new);
        let mut stored = self.stored.clone().unwrap_or_else(|| Stored {
            level: Range::of(full()),
            written_at_us: now_us,
            flow: None,
            expires_ms,
            holds: Holds::new(),
        });
        if let Some((old, withheld)) =
            self.limit_override.as_ref().and_then(|old| Some((old, old.withheld.as_ref()?)))
        {
            stored = old.end(&stored, withheld, old.ends_at_us.min(now_us));
            let highest = stored.level.map(|level| level.clone().min(full()));
            stored.level = highest;
            if old.ends_at_us > now_us && !new.is_suspension() {
                let capacity = &new.limit.capacity;
                new.withheld = Some(stored.level.map(|level| (level - capacity).max(Exact::zero())));
                let fills = new.fills;
                stored.level = stored.level.map(|level| match fills {
                    true => capacity.clone(),
                    false => level.clone().min(capacity.clone()),
                });
            }
        }
        self.stored = Some(Stored { expires_ms, ..stored });
        self.limit_override = Some(new);
    }

    fn end_override(&mut self, now_us: i64) -> Trace {
        if self.overridden_at(now_us).is_none() {
            return Trace::None;
        }
        if self.is_full_whatever_counts(now_us) {
            *self = Self::default();
            return Trace::Gone;
        }
        self.limit_override.iter_mut().for_each(|overridden| overridden.ends_at_us = now_us);
        Trace::None
    }

    /// Returns whether an override leaves a full bucket, whatever limit calls bring.
    fn is_full_whatever_counts(&self, now_us: i64) -> bool {
        let is_full = self.stored.as_ref().is_none_or(|stored| stored.level.low == full());
        let leaves_full = |overridden: &Overridden| !overridden.fills && overridden.withheld.is_none();
        is_full && self.holds(now_us).is_empty() && self.limit_override.as_ref().is_none_or(leaves_full)
    }

    /// When the key may go that is overridden: not before the override ends, nor before it has lived on as long as it had left
    /// to live, and a month; a year is what any calendar needs.
    fn overridden_expires_ms(&self, new: &Overridden) -> (i64, i64) {
        const DAY_MS: i64 = 86_400_000;
        let now_us = new.began_at_us;
        let ends_at_ms = milliseconds(&whole(new.ends_at_us)).to_i64().unwrap();
        let (earliest_ms, latest_ms) = self.stored.as_ref().map_or((0, 0), |stored| stored.expires_ms);
        let old = self.overridden_at(now_us).filter(|old| !old.is_suspension());
        let lives_on = |from_us: i64, [least_ms, most_ms]: [i64; 2]| {
            let from_ms = from_us / 1000;
            let (earliest_ms, latest_ms) = (earliest_ms - from_ms + least_ms, latest_ms - from_ms + most_ms);
            (ends_at_ms + earliest_ms.max(0), ends_at_ms + latest_ms.max(0))
        };
        let (least_ms, most_ms) = match old {
            _ if new.is_suspension() || self.is_full_whatever_counts(now_us) => (ends_at_ms, ends_at_ms),
            Some(old) => lives_on(old.ends_at_us, [0, 2]),
            None => lives_on(now_us, [31 * DAY_MS, 400 * DAY_MS]),
        };
        let in_time = |at_ms: i64| at_ms.min(MAX_EXPIRE_AT_MS);
        (in_time(least_ms.max(earliest_ms)), in_time(most_ms.max(latest_ms)))
    }

    /// Judges a decision that changes nothing.
    #[track_caller]
    pub fn judge(&self, limit: &Limit, operation: Operation, now_us: i64, told: Decision) {
        self.clone().follow(limit, operation, now_us, told);
    }

    /// One of several buckets that are decided on together: it follows if all allow, and is only told otherwise.
    #[track_caller]
    pub fn follow_together(
        &mut self,
        limit: &Limit,
        operation: Operation,
        now_us: i64,
        told: Decision,
        all_allow: bool,
    ) -> Trace {
        if all_allow {
            return self.follow(limit, operation, now_us, told);
        }
        if told.allowed == 0 {
            self.judge(limit, operation, now_us, told);
        } else {
            // Alone it would have allowed; told is the bucket as it is.
            let most = self.allowed(limit, operation, now_us)[1];
            assert_eq!(Some(told.allowed), most, "{operation:?} of {limit:?} at {now_us}: {self:?}");
            self.judge(limit, Operation::Take { cost_micro: 0 }, now_us, told);
        }
        self.unchanged(limit, true, now_us)
    }

    /// Does what a decision says: how much was allowed, and whether a gift filled the bucket where it may have.
    pub fn apply<'a>(
        &mut self,
        limit: &Limit,
        wanted: impl Into<Wanted<'a>>,
        now_us: i64,
        allowed: i64,
        is_full: bool,
    ) -> Trace {
        let wanted = wanted.into();
        let (own, (limit, trace)) = (limit, self.counting(limit, wanted, now_us));
        if let Some(trace) = trace {
            return trace;
        }
        let call = Call::new(self, (own, &limit), wanted, now_us);
        self.make_so(&call, allowed, is_full)
    }

    fn make_so(&mut self, call: &Call, allowed: i64, is_full: bool) -> Trace {
        let Call { limit, now_us, .. } = *call;
        if !call.writes(allowed) {
            return self.unchanged(call.own, allowed == 0 && !call.is_void(), now_us);
        }
        let (after, stored) = call.after(allowed);
        let is_full = after.low == limit.capacity || (is_full && after.high == limit.capacity);
        let is_kept = !call.holds_behind.is_empty() || self.override_ends_at_us(now_us).is_some();
        if !is_full || is_kept {
            self.write(
                (call.own, limit),
                now_us,
                stored,
                Some(limit.flow.clone()),
                call.holds_behind.clone(),
            );
            return Trace::Written;
        }
        match &mut self.stored {
            Some(stored) if call.holds.is_empty() && call.before.high == limit.capacity => {
                stored.expires_ms.0 = now_us / 1000;
                Trace::Full
            }
            _ => {
                self.stored = None;
                Trace::Gone
            }
        }
    }

    /// What a call may leave, whatever is told of it.
    pub fn outcomes<'a>(&self, limit: &Limit, wanted: impl Into<Wanted<'a>>, now_us: i64) -> Vec<Self> {
        let (wanted, mut before) = (wanted.into(), self.clone());
        let (own, (limit, trace)) = (limit, before.counting(limit, wanted, now_us));
        if trace.is_some() {
            return vec![before];
        }
        let call = Call::new(&before, (own, &limit), wanted, now_us);
        let mut all_allowed = call.allowed().to_vec();
        all_allowed.dedup();
        let outcome = |(allowed, is_full)| {
            let mut model = before.clone();
            model.make_so(&call, allowed, is_full);
            model
        };
        let each = all_allowed.into_iter().map(|allowed| allowed.unwrap_or(0));
        each.flat_map(|allowed| [(allowed, false), (allowed, true)]).map(outcome).collect()
    }

    /// What a call leaves that takes nothing: a denial counts on from a clock that stepped back.
    fn unchanged(&self, own: &Limit, is_denied: bool, now_us: i64) -> Trace {
        match self.counted(own, now_us) {
            Some(counted) if is_denied && now_us < counted.written_at_us && !own.is_pool() => Trace::Anchored,
            _ => Trace::None,
        }
    }

    fn anchor(&mut self, limits: (&Limit, &Limit), now_us: i64) {
        let counted = self.counted(limits.0, now_us).expect("anchored without a key");
        let (level, flow, holds) = (counted.level, counted.flow, counted.holds);
        let lost = flow.as_ref().map_or_else(Exact::zero, Flow::rest);
        self.write(limits, now_us, level.lower_by(&lost), flow, holds);
    }

    /// A write only ever lengthens an expiry: it is there until full under the limit of every write, and at most a
    /// quarter of that time and a second longer.
    fn write(
        &mut self,
        (own, limit): (&Limit, &Limit),
        now_us: i64,
        level: Range,
        flow: Option<Flow>,
        holds: Holds,
    ) {
        let ends = ends(&holds);
        let ends_at_us = ends.iter().map(|end| end.at_us).chain(self.override_ends_at_us(now_us));
        let last_in_us = whole((ends_at_us.max().unwrap_or(now_us) - now_us).max(0));
        let never_us = whole(MAX_EXPIRE_AT_MS) * whole(1000);
        let overriding = self.overridden_at(now_us).filter(|old| !old.is_suspension() && !own.is_pool());
        let withheld = overriding.map(|overridden| match self.stored.as_ref() {
            Some(stored) => overridden.begin(own, stored, now_us).1,
            None => Range::of(Exact::zero()),
        });
        let full_in_us = |level: &Exact, is_low: bool| {
            let full_in_us = limit.reaches_with_us(level, now_us, &limit.capacity, &ends);
            let full_in_us = full_in_us.unwrap_or_else(|| never_us.clone()).max(last_in_us.clone());
            let (Some(overridden), Some(withheld)) = (overriding, &withheld) else { return full_in_us };
            let end_us = overridden.ends_at_us;
            // Then the limit of the call counts again: until then nothing need flow in, because another override may replace
            // this one, and what is left over of a micro-token is lost.
            let (level, then_us) = match is_low {
                true => (level - limit.flow.loss_at_end(), end_us - now_us + own.flow.longest_period_us()),
                false => {
                    let by_end = ends.iter().filter(|end| end.at_us <= end_us).map(|end| &end.micro);
                    let returned: Exact = by_end.sum();
                    let at_end = limit.level_at(&(level + returned), now_us, end_us) + &withheld.high;
                    (at_end + limit.flow.rest_under(&own.flow).1, end_us - now_us)
                }
            };
            let later: Vec<_> = ends.iter().filter(|end| end.at_us > end_us && !is_low).cloned().collect();
            let lasts_us = own.reaches_with_us(&level, end_us, &own.capacity, &later);
            let then_us = lasts_us.map_or_else(|| never_us.clone(), |us| us + whole(then_us));
            full_in_us.max(then_us)
        };
        let soonest_us = full_in_us(&level.high, false).min(whole(LONGEST_TOLD_MS * 1000)) + whole(now_us);
        let latest_us = full_in_us(&level.low, true) + whole(now_us);
        let slack_us = (&latest_us - whole(now_us)) / whole(4) + whole(1_000_000);
        let in_time_ms =
            |at_us: &Exact| milliseconds(at_us).to_i64().unwrap_or(i64::MAX).min(MAX_EXPIRE_AT_MS);
        // The slack is counted from the millisecond at which it is full.
        let latest_ms = in_time_ms(&(whole(milliseconds(&latest_us)) * whole(1000) + slack_us));
        // Of a key with an override is only promised that it does not go too early: its waits are rounded up twice.
        let rounding_ms = (latest_ms - now_us / 1000) / 1000 + 3;
        let latest_ms = latest_ms + rounding_ms * i64::from(self.limit_override.is_some());
        let (at_least_ms, at_most_ms) = self.stored.as_ref().map_or((0, 0), |stored| stored.expires_ms);
        let expires_ms = (in_time_ms(&soonest_us).max(at_least_ms), latest_ms.max(at_most_ms));
        let withheld = withheld.or_else(|| own.is_pool().then(|| Range::of(Exact::zero())));
        self.stored = Some(Stored { level, written_at_us: now_us, flow, expires_ms, holds });
        self.limit_override.take_if(|overridden| overridden.ends_at_us <= now_us);
        if let Some(overridden) =
            self.limit_override.as_mut().filter(|overridden| !overridden.is_suspension())
        {
            overridden.withheld = withheld;
        }
    }

    /// Takes over what is stored now, if it may be that.
    #[track_caller]
    pub fn see(&mut self, limit: &Limit, now_us: i64, state: Option<Bucket>) {
        assert!(
            self.may_be(limit, now_us, state),
            "at {now_us} {limit:?}: {state:?} is stored, not {self:?}"
        );
        match (state, &mut self.stored) {
            (None, _) => *self = Self::default(),
            // So much is there: whether it is full decides what an override makes of it.
            (Some(state), Some(stored)) => {
                let least = whole(state.level_micro).min(stored.level.high.clone());
                stored.level.low = least.max(stored.level.low.clone());
            }
            (Some(_), None) => {}
        }
    }

    /// Returns whether it may be stored like this. A key is gone only when its bucket is full by every limit under which
    /// it was written.
    pub fn may_be(&self, own: &Limit, now_us: i64, state: Option<Bucket>) -> bool {
        match (state, &self.stored) {
            (None, None) => true,
            (None, Some(stored)) => now_us / 1000 >= stored.expires_ms.0,
            (Some(Bucket { level_micro, refilled_at_us }), stored) => {
                // What had ended before the bucket was written is in its level.
                let mut holds = stored.as_ref().map(|stored| stored.holds.clone()).unwrap_or_default();
                holds.retain(|_, end| end.at_us > refilled_at_us);
                let level = Range::of(whole(level_micro));
                let expires_ms = (0, MAX_EXPIRE_AT_MS);
                let shown = Stored { level, written_at_us: refilled_at_us, flow: None, expires_ms, holds };
                // One under which nothing was written is not in what is stored, and may hide it: it may begin full.
                let unwritten = self.limit_override.as_ref().filter(|_| !own.is_pool());
                let unwritten = unwritten.filter(|overridden| overridden.is_unwritten());
                let at_us = unwritten.map_or(now_us, |overridden| overridden.began_at_us);
                let limit_override = self.limit_override.clone().filter(|_| unwritten.is_none());
                let level =
                    |stored| Self { stored, limit_override: limit_override.clone() }.level(own, at_us);
                let (shown, level) = (level(Some(shown)), level(stored.clone()));
                shown.low <= level.high && level.low <= shown.high
            }
        }
    }

    /// How far the level that is stored is from that of the last write, in micro-tokens. Two buckets that are both above the
    /// capacity of the calls differ in this alone.
    pub fn distance_micro(&self, state: Option<Bucket>) -> Exact {
        match (state, &self.stored) {
            (Some(state), Some(stored)) => (&stored.level.high - whole(state.level_micro)).abs(),
            _ => Exact::zero(),
        }
    }

    /// Judges what is stored before and behind a call that left this trace, and takes it over.
    #[track_caller]
    pub fn see_trace(
        &mut self,
        limit: &Limit,
        now_us: i64,
        trace: Trace,
        [before, after]: [Option<Bucket>; 2],
    ) {
        let (own, limit) = (limit, &self.limit_at(limit, now_us));
        let counts_on = after.is_some_and(|after| after.refilled_at_us <= now_us);
        // A gift to a bucket that its holds keep may find it full already, within what is known here, and writes nothing.
        let is_still_full =
            after == before && after.is_some_and(|after| whole(after.level_micro) == limit.capacity);
        let right = match trace {
            // A key whose time has come may go between two looks.
            Trace::None => after == before || (after.is_none() && self.may_be(limit, now_us, None)),
            Trace::Written => is_still_full || (counts_on && after != before),
            // What was left over of a micro-token may be dated back to before the step.
            Trace::Anchored => {
                counts_on
                    && before.is_some_and(|before| after != Some(before) || before.refilled_at_us <= now_us)
            }
            Trace::Gone => after.is_none(),
            Trace::Full => after.is_none() || after == before,
        };
        assert!(right, "{trace:?} at {now_us} of {limit:?}, but stored is {after:?} after {before:?}");
        // The first write under an override may leave level and time as they were, and records what is withheld.
        let begins = self.overridden_at(now_us).is_some_and(Overridden::is_unwritten);
        if trace == Trace::Anchored && (after != before || begins) {
            self.anchor((own, limit), now_us);
        }
        if let (Trace::Written, true, Some(stored), Some(after)) =
            (trace, is_still_full, &mut self.stored, after)
        {
            stored.written_at_us = after.refilled_at_us;
        }
        self.see(own, now_us, after);
    }

    /// When the key may go at the earliest and has to go at the latest, in Unix milliseconds; `None` if there is none.
    pub fn expires_ms(&self) -> Option<(i64, i64)> {
        self.stored.as_ref().map(|stored| stored.expires_ms)
    }

    #[track_caller]
    pub fn see_expiry(&self, expires_at_ms: Option<i64>) {
        let Some((earliest_ms, latest_ms)) = self.expires_ms() else {
            return assert_eq!(expires_at_ms, None, "of a bucket without a key");
        };
        let in_time = expires_at_ms.is_some_and(|at_ms| (earliest_ms..=latest_ms).contains(&at_ms));
        assert!(in_time, "expires at {expires_at_ms:?}, not from {earliest_ms} to {latest_ms}: {self:?}");
    }
}

/// The tightest of each field binds the caller of several buckets.
#[track_caller]
pub fn assert_binding(binding: Decision, own: &[Decision]) {
    let least = |field: fn(&Decision) -> i64| own.iter().map(field).min().unwrap();
    let most = |field: fn(&Decision) -> i64| own.iter().map(field).max().unwrap();
    let longest = |field: fn(&Decision) -> i64| if least(field) < 0 { -1 } else { most(field) };
    let expected = Decision {
        allowed: least(|own| own.allowed),
        remaining: least(|own| own.remaining),
        retry_after_ms: longest(|own| own.retry_after_ms),
        reset_after_ms: longest(|own| own.reset_after_ms),
    };
    assert_eq!(binding, expected, "of {own:?}");
}
