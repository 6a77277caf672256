//! What a key holds, as far as one can know it who hears every reply.
//!
//! A level is a range: the exact one above, and below it what the contract allows the module to have lost. At a whole
//! number of tokens per second the two are the same, for ever.

use super::call::{ended, ends, Call, Holds, Wanted};
use super::limit::{milliseconds, Limit};
use super::{whole, Bucket, Exact, Flow, Operation};
use num_traits::{ToPrimitive, Zero};
use tokenbucket_core::bucket::Decision;
use tokenbucket_core::expiry::MAX_EXPIRE_AT_MS;

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
    /// A limit in place of those of calls, and when it ends, in Unix microseconds.
    limit_override: Option<(Limit, i64)>,
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
        let (limit, ends_at_us) = self.limit_override.as_ref()?;
        (*ends_at_us > now_us).then_some((limit, *ends_at_us))
    }

    /// When it ends.
    pub fn override_ends_at_us(&self, now_us: i64) -> Option<i64> {
        self.override_at(now_us).map(|(_, ends_at_us)| ends_at_us)
    }

    /// The limit that counts for a call with this one.
    pub fn limit_at<'a>(&'a self, limit: &'a Limit, now_us: i64) -> &'a Limit {
        self.override_at(now_us).map_or(limit, |(limit_override, _)| limit_override)
    }

    /// The bucket at the end of an override that has ended: until then its limit counted.
    fn settled(&self, now_us: i64) -> Self {
        let Some((limit, ends_at_us)) = self.limit_override.clone().filter(|(_, end)| *end <= now_us) else {
            return self.clone();
        };
        let during = Self { stored: self.stored.clone(), limit_override: None };
        let level = during.level(&limit, ends_at_us);
        // As in a write.
        let lost = if level.low < limit.capacity { limit.flow.loss() } else { Exact::zero() };
        let stored = self.stored.clone().map(|stored| Stored {
            level: level.lower_by(&lost),
            written_at_us: ends_at_us,
            flow: Some(limit.flow.clone()),
            holds: during.holds(ends_at_us),
            ..stored
        });
        Self { stored, limit_override: None }
    }

    /// The level at a moment. A clock that is behind the last write adds nothing.
    pub fn level(&self, limit: &Limit, now_us: i64) -> Range {
        let limit = self.limit_at(limit, now_us);
        let Some(stored) = self.settled(now_us).stored else { return Range::of(limit.capacity.clone()) };
        let mut level = stored.level.clone();
        if let Some(written) = &stored.flow {
            let (less, more) = written.rest_under(&limit.flow);
            level.low -= if now_us < stored.written_at_us { written.rest().max(less) } else { less };
            level.high += more;
        }
        let returned = ended(&stored.holds, now_us);
        level.map(|level| limit.level_at(&(level + &returned), stored.written_at_us, now_us))
    }

    /// The holds that have not ended.
    pub fn holds(&self, now_us: i64) -> Holds {
        let holds = self.stored.as_ref().map(|stored| stored.holds.clone()).unwrap_or_default();
        holds.into_iter().filter(|(_, end)| end.at_us > now_us).collect()
    }

    /// What is told as allowed, at the least and at the most; `None` is a refusal.
    pub fn allowed<'a>(&self, limit: &Limit, wanted: impl Into<Wanted<'a>>, now_us: i64) -> [Option<i64>; 2] {
        let (wanted, mut before) = (wanted.into(), self.clone());
        let (own, limit) = (limit, &before.counting(limit, wanted, now_us));
        Call::new(&before, (own, limit), wanted, now_us).allowed()
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
        let (own, limit) = (limit, &self.counting(limit, wanted, now_us));
        let call = Call::new(self, (own, limit), wanted, now_us);
        if let Err(objection) = call.judge(told) {
            panic!("{objection}: {:?} of {limit:?} at {now_us}: {told:?}, {self:?}", call.wanted);
        }
        self.make_so(&call, told.allowed, told.reset_after_ms == 0)
    }

    /// The limit that counts for a call, which may begin or end an override by its own.
    fn counting(&mut self, limit: &Limit, wanted: Wanted, now_us: i64) -> Limit {
        if let Wanted::Override { ttl_ms } = wanted {
            self.limit_override.iter_mut().for_each(|(_, ends_at_us)| *ends_at_us = now_us.min(*ends_at_us));
            *self = self.settled(now_us);
            self.limit_override = (ttl_ms > 0).then(|| (limit.clone(), now_us + ttl_ms * 1000));
        }
        self.limit_at(limit, now_us).clone()
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
        self.unchanged(true, now_us)
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
        let (own, limit) = (limit, &self.counting(limit, wanted, now_us));
        let call = Call::new(self, (own, limit), wanted, now_us);
        self.make_so(&call, allowed, is_full)
    }

    fn make_so(&mut self, call: &Call, allowed: i64, is_full: bool) -> Trace {
        let Call { limit, now_us, .. } = *call;
        if !call.writes(allowed) {
            return self.unchanged(allowed == 0 && !call.is_void(), now_us);
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
        let (own, limit) = (limit, &before.counting(limit, wanted, now_us));
        let call = Call::new(&before, (own, limit), wanted, now_us);
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
    fn unchanged(&self, is_denied: bool, now_us: i64) -> Trace {
        match &self.settled(now_us).stored {
            Some(stored) if is_denied && now_us < stored.written_at_us => Trace::Anchored,
            _ => Trace::None,
        }
    }

    fn anchor(&mut self, limits: (&Limit, &Limit), now_us: i64) {
        let stored = self.stored.as_ref().expect("anchored without a key");
        let (level, flow, holds) = (stored.level.clone(), stored.flow.clone(), stored.holds.clone());
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
        let full_in_us = |level: &Exact, is_low: bool| {
            let full_in_us = limit.reaches_with_us(level, now_us, &limit.capacity, &ends);
            let full_in_us = full_in_us.unwrap_or_else(|| never_us.clone()).max(last_in_us.clone());
            let Some((_, end_us)) = self.override_at(now_us) else { return full_in_us };
            // Then the limit of the call counts again.
            let returned: Exact = ends.iter().filter(|end| end.at_us <= end_us).map(|end| &end.micro).sum();
            let level = limit.level_at(&(level + returned), now_us, end_us);
            let (less, more) = limit.flow.rest_under(&own.flow);
            let level = if is_low { level - limit.flow.loss() - less } else { level + more };
            let later: Vec<_> = ends.iter().filter(|end| end.at_us > end_us).cloned().collect();
            let then_us = own.reaches_with_us(&level, end_us, &own.capacity, &later);
            let then_us = then_us.map_or_else(|| never_us.clone(), |us| us + whole(end_us - now_us));
            full_in_us.max(then_us)
        };
        let soonest_us = full_in_us(&level.high, false).min(whole(LONGEST_TOLD_MS * 1000)) + whole(now_us);
        let latest_us = full_in_us(&level.low, true) + whole(now_us);
        let slack_us = (&latest_us - whole(now_us)) / whole(4) + whole(1_000_000);
        let in_time_ms =
            |at_us: &Exact| milliseconds(at_us).to_i64().unwrap_or(i64::MAX).min(MAX_EXPIRE_AT_MS);
        // The slack is counted from the millisecond at which it is full.
        let latest_ms = in_time_ms(&(whole(milliseconds(&latest_us)) * whole(1000) + slack_us));
        let (at_least_ms, at_most_ms) = self.stored.as_ref().map_or((0, 0), |stored| stored.expires_ms);
        let expires_ms = (in_time_ms(&soonest_us).max(at_least_ms), latest_ms.max(at_most_ms));
        self.stored = Some(Stored { level, written_at_us: now_us, flow, expires_ms, holds });
        self.limit_override.take_if(|(_, ends_at_us)| *ends_at_us <= now_us);
    }

    /// Takes over what is stored now, if it may be that.
    #[track_caller]
    pub fn see(&mut self, limit: &Limit, now_us: i64, state: Option<Bucket>) {
        assert!(
            self.may_be(limit, now_us, state),
            "at {now_us} {limit:?}: {state:?} is stored, not {self:?}"
        );
        if state.is_none() {
            *self = Self::default();
        }
    }

    /// Whether it may be stored like this. A key is gone only when its bucket is full by every limit under which it was
    /// written.
    pub fn may_be(&self, limit: &Limit, now_us: i64, state: Option<Bucket>) -> bool {
        let limit = self.limit_at(limit, now_us);
        match (state, &self.stored) {
            (None, None) => true,
            (None, Some(stored)) => now_us / 1000 >= stored.expires_ms.0,
            (Some(Bucket { level_micro, refilled_at_us }), _) => {
                // What had ended before the bucket was written is in its level.
                let returned = self.settled(now_us).stored.map_or_else(Exact::zero, |stored| {
                    ended(&stored.holds, now_us) - ended(&stored.holds, refilled_at_us)
                });
                let shown = limit.level_at(&(whole(level_micro) + returned), refilled_at_us, now_us);
                self.level(limit, now_us).contains(&shown)
            }
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
        let (own, limit) = (limit, &self.limit_at(limit, now_us).clone());
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
        if trace == Trace::Anchored && after != before {
            self.anchor((own, limit), now_us);
        }
        if let (Trace::Written, true, Some(stored), Some(after)) =
            (trace, is_still_full, &mut self.stored, after)
        {
            stored.written_at_us = after.refilled_at_us;
        }
        self.see(limit, now_us, after);
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
