//! One bucket of a call: planned, then stored.

use crate::redis::{announce_denial, denies_on_oom, waiting, Argument, BucketKey, Call, COUNTERS, MAX_HOLDS};
use std::ffi::CStr;
use tokenbucket_core::bucket::{Bucket, Change, Limit, Operation, Outcome, NEVER_MS};
use tokenbucket_core::effect::{Effect, HoldChange, HoldChanges};
use tokenbucket_core::error::Error;
use tokenbucket_core::expiry::ExpiryWindow;
use tokenbucket_core::hold::{Holds, Override, Plan};
use tokenbucket_core::request::{self, Wanted};

/// A call's request to one bucket, with the server's arguments.
pub(super) type Request<'call> = request::Request<Argument<'call>>;

/// A request to one bucket, and its plan. The key is open until the plan is stored.
pub(in crate::command) struct Part<'request, 'call> {
    request: &'request Request<'call>,
    pub(in crate::command) key: BucketKey<'call>,
    /// The plan; once it is stored, the outcome.
    pub(super) plan: Plan,
    /// The amount to which a hold was set, 0 if it was ended; `None` if no hold was changed.
    held_micro: Option<i64>,
    /// The change of an override by the write, if there was one. In a box, because nearly no write has one.
    of_override: Option<Box<HoldChange>>,
    /// The write, if there was one.
    pub(super) written: Option<Written>,
}

impl<'request, 'call> Part<'request, 'call> {
    #[inline(always)]
    pub(in crate::command) fn new(
        request: &'request Request<'call>,
        key: BucketKey<'call>,
        plan: Plan,
    ) -> Self {
        Self { request, key, plan, held_micro: None, of_override: None, written: None }
    }

    /// Returns the request.
    #[inline(always)]
    pub(in crate::command) fn request(&self) -> &'request Request<'call> {
        self.request
    }

    /// Plans the call, and changes nothing.
    #[inline(always)] // Saves a copy of what is returned.
    pub(in crate::command) fn planned(
        request: &'request Request<'call>,
        mut key: BucketKey<'call>,
    ) -> Result<Self, Error> {
        let (stored, now_us) = (key.bucket(), key.call().now_us());
        let plan = request.plan(stored, key.holds_mut(), MAX_HOLDS.count(), now_us)?;
        let mut part = Self::new(request, key, plan);
        if part.comes_later() {
            part.deny_behind_others();
        }
        Ok(part)
    }

    /// Returns whether other calls have waited longer.
    fn comes_later(&self) -> bool {
        waiting::is_any() && !self.key.call().is_its_turn()
    }

    /// Denies a call that wants tokens which a waiting call lacks.
    #[cold]
    fn deny_behind_others(&mut self) {
        let is_for_good = self.is_denied() && self.plan.retry_after_ms() == NEVER_MS;
        let micro = self.lacking_micro();
        if !is_for_good && micro > 0 {
            if let Some(ahead_micro) = waiting::wanted_before(&self.key, &self.request.limit, micro) {
                self.plan = Plan::Outcome(self.denied_behind(ahead_micro));
            }
        }
    }

    fn lacking_micro(&self) -> i64 {
        self.request().lacking_micro(self.key.holds(), self.key.call().now_us())
    }

    /// Returns the denial of a call behind others that want `ahead_micro`.
    pub(super) fn denied_behind(&self, ahead_micro: i64) -> Outcome {
        let (stored, holds, now_us) = (self.key.bucket(), self.key.holds(), self.key.call().now_us());
        let lacking_micro = self.lacking_micro();
        self.request().limit.denied_behind(stored, holds, lacking_micro, ahead_micro, now_us)
    }

    #[inline(always)]
    pub(super) fn is_denied(&self) -> bool {
        self.request().is_denied(&self.plan)
    }

    /// Denies the part of a call that another bucket denies.
    #[inline(always)]
    pub(super) fn deny_by_another(&mut self) {
        if !self.is_denied() {
            let (stored, holds, now_us) = (self.key.bucket(), self.key.holds(), self.key.call().now_us());
            self.plan = Plan::Outcome(self.request().limit.denied_by_another(stored, holds, now_us));
        }
    }

    /// Returns the planned outcome; the denial if a hold is planned but not stored.
    #[inline(always)]
    pub(in crate::command) fn outcome(&self) -> Outcome {
        match self.plan {
            Plan::Outcome(outcome) => outcome,
            Plan::Hold { .. } => self.denied_behind(0),
        }
    }

    /// Admits the plan, unless it needs memory and the server is out of memory.
    ///
    /// With `on-oom allow` the call passes without its hold, and gets the reply of a take. An existing bucket is still
    /// enforced: the tokens are taken and refill at its rate. A pool denies, because nothing would refill it.
    pub(super) fn admit(&mut self) -> Result<(), Error> {
        let taken_micro = match &mut self.plan {
            Plan::Outcome(outcome) => return admit(&self.key, outcome),
            Plan::Hold { taken_micro, .. } => *taken_micro,
        };
        let creates = taken_micro > 0 && taken_micro == self.request().wanted.micro();
        if !creates || !self.key.is_out_of_memory() {
            return Ok(());
        }
        let exists = !self.key.is_empty();
        if denies_on_oom() || (exists && self.request().limit.is_pool()) {
            return Err(if exists { Error::HoldOutOfMemory } else { Error::OutOfMemory });
        }
        let (stored, holds, now_us) = (self.key.bucket(), self.key.holds(), self.key.call().now_us());
        let take = Operation::Take { cost_micro: taken_micro };
        let outcome = self.request().limit.decide_with(stored, holds, take, now_us)?;
        let change = if exists { outcome.change } else { Change::Keep };
        self.plan = Plan::Outcome(Outcome { change, ..outcome });
        Ok(())
    }

    /// Changes the bucket as planned, and closes its key.
    #[inline(always)]
    pub(super) fn store(&mut self) {
        self.written = match self.plan {
            Plan::Outcome(Outcome { change: change @ Change::Store { .. }, .. }) if self.key.has_holds() => {
                Some(store_with_holds(&mut self.key, &self.request.limit, &mut self.of_override, |_| change))
            }
            Plan::Outcome(Outcome { change, .. }) => store(&mut self.key, change),
            Plan::Hold { bucket, taken_micro, amount_micro } => {
                let now_us = self.key.call().now_us();
                self.held_micro = Some(amount_micro);
                let request = self.request;
                Some(store_with_holds(&mut self.key, &request.limit, &mut self.of_override, |holds| {
                    let outcome = request.change_hold(holds, bucket, taken_micro, amount_micro, now_us);
                    self.plan = Plan::Outcome(outcome);
                    outcome.change
                }))
            }
        };
        if self.written.is_some() && self.comes_later() {
            let id = self.request().id().filter(|_| self.held_micro.is_some());
            let granted_micro = self.outcome().granted_micro;
            // A hold that was there before may end earlier now.
            let is_anew = self.held_micro.is_none_or(|micro| micro == 0 || micro == granted_micro);
            let has_taken = is_anew && granted_micro > 0;
            waiting::mark(&self.key, id.map(AsRef::as_ref), &self.request().limit, has_taken);
        }
        self.key.close();
    }

    /// Returns what was stored.
    #[inline(always)]
    pub(super) fn stored(&self) -> Stored<'_, 'call> {
        let of_override = self.of_override.as_deref();
        Stored { request: self.request, outcome: self.outcome(), held_micro: self.held_micro, of_override }
    }
}

/// Admits an outcome, unless it needs memory and the server is out of memory.
#[inline(always)]
pub(super) fn admit(key: &BucketKey, outcome: &mut Outcome) -> Result<(), Error> {
    let creates = key.bucket().is_none() && matches!(outcome.change, Change::Store { .. });
    // A key that exists without a bucket is redis-cell's, which the bucket replaces.
    if creates && key.is_out_of_memory() && key.is_empty() {
        if denies_on_oom() {
            return Err(Error::OutOfMemory);
        }
        outcome.change = Change::Keep;
    }
    Ok(())
}

/// A part that was stored, with its key closed.
#[derive(Clone, Copy)]
pub(super) struct Stored<'request, 'call> {
    pub(super) request: &'request Request<'call>,
    pub(super) outcome: Outcome,
    /// The amount to which a hold was set, 0 if it was ended; `None` if no hold was changed.
    pub(super) held_micro: Option<i64>,
    /// The change of an override.
    pub(super) of_override: Option<&'request HoldChange>,
}

impl<'call> Stored<'_, 'call> {
    /// Returns the effect of the write, for replicas and files.
    #[inline(always)]
    pub(super) fn effect(&self, call: &Call, written: Written) -> (Argument<'call>, Effect) {
        let effect = match written {
            Written::Cleared => Effect::Cleared,
            Written::Stored { bucket, expire_at_ms, holds } => {
                let holds = holds.map(|(dropped, len)| self.hold_changes(call, dropped, len));
                Effect::Stored { bucket, expire_at_ms: Some(expire_at_ms), holds }
            }
        };
        (self.request.key, effect)
    }

    #[cold]
    #[inline(never)] // Off the path of buckets without holds: each take paid for its code.
    fn hold_changes(&self, call: &Call, dropped: u32, len: u32) -> HoldChanges {
        let change = |amount_micro| self.request.hold_change(amount_micro, call.now_us());
        let of_override = self.of_override.cloned().into_iter();
        let changes = of_override.chain(self.held_micro.and_then(change)).collect();
        HoldChanges { dropped, changes, len }
    }

    /// Counts the granted tokens, and sends the keyspace event.
    #[inline(always)]
    pub(super) fn announce(&self, call: &Call) {
        COUNTERS.granted(&self.outcome);
        if self.is_late() {
            return COUNTERS.late(matches!(self.request.wanted, Wanted::Renew { .. }));
        }
        let key = self.request.key;
        if self.outcome.decision.allowed == 0 {
            return announce_denial(call, &key);
        }
        if let Some(event) = self.event() {
            call.notify(event, &key);
            if self.outcome.change == Change::Clear {
                call.notify_deleted(&key);
            }
        }
    }

    /// Returns the keyspace event of a call that was allowed; `None` if it moved no token.
    #[inline(always)]
    fn event(&self) -> Option<&'static CStr> {
        match (self.request.wanted, self.outcome.change) {
            (Wanted::Hold { .. } | Wanted::Renew { .. }, _) if self.held_micro.is_some() => Some(c"tb.hold"),
            (Wanted::Settle { .. }, _) => Some(c"tb.settle"),
            (_, Change::Keep) => None,
            (Wanted::Tokens(Operation::Give { .. }), _) => Some(c"tb.give"),
            // Continues from a clock that stepped back.
            _ if self.outcome.granted_micro == 0 => None,
            _ => Some(c"tb.take"),
        }
    }

    /// Returns whether the call settles or renews a hold that has ended, which is counted instead of a decision.
    pub(super) fn is_late(&self) -> bool {
        matches!(self.request.wanted, Wanted::Renew { .. } | Wanted::Settle { .. })
            && self.outcome.decision.allowed == 0
    }
}

/// The write to one key.
#[derive(Clone, Copy)]
pub(super) enum Written {
    /// A bucket; of its holds, the number dropped because they had ended, and the number left.
    Stored {
        bucket: Bucket,
        expire_at_ms: i64,
        holds: Option<(u32, u32)>,
    },
    Cleared,
}

/// Changes a bucket that has no holds, or loses them. Returns `None` if nothing was written.
#[inline(always)]
pub(super) fn store(key: &mut BucketKey, change: Change) -> Option<Written> {
    let written = match change {
        Change::Keep => return None,
        Change::Store { bucket, full_at_us } => {
            key.store(bucket);
            Written::Stored { bucket, expire_at_ms: expire(key, full_at_us), holds: None }
        }
        Change::Clear => {
            key.delete();
            Written::Cleared
        }
    };
    key.signal_modified();
    Some(written)
}

/// Drops the ended holds, changes the others by `change`, and stores the bucket accordingly. Its key stays until it is full
/// under `own_limit` too, which counts again when an override has ended. `of_override` becomes what the write changes of one.
fn store_with_holds(
    key: &mut BucketKey,
    own_limit: &Limit,
    of_override: &mut Option<Box<HoldChange>>,
    change: impl FnOnce(&mut Holds) -> Change,
) -> Written {
    let now_us = key.call().now_us();
    let dropped = key.holds().map_or(0, |holds| holds.ended(now_us));
    let overridden = key.holds().filter(|holds| holds.is_overridden());
    let withheld_micro = overridden.and_then(|holds| holds.withholds_micro(own_limit, key.bucket(), now_us));
    let (len, change) = key.update_holds(dropped, |holds| {
        if holds.is_overridden() {
            *of_override = change_override(holds, withheld_micro, now_us);
        }
        match change(holds) {
            Change::Store { bucket, full_at_us } if holds.is_overridden() => {
                let full_then_us = holds.full_after_override_us(own_limit, bucket, now_us);
                (Some(bucket), Change::Store { bucket, full_at_us: full_at_us.max(full_then_us) })
            }
            change @ Change::Store { bucket, .. } => (Some(bucket), change),
            change => (None, change),
        }
    });
    let written = match change {
        Change::Store { bucket, full_at_us } => {
            let holds = Some((count(dropped), count(len)));
            Written::Stored { bucket, expire_at_ms: expire(key, full_at_us), holds }
        }
        Change::Keep | Change::Clear => Written::Cleared,
    };
    key.signal_modified();
    written
}

/// Ends an override whose time is over, or records what one withholds. Returns the change.
#[cold]
fn change_override(holds: &mut Holds, withheld_micro: Option<i64>, now_us: i64) -> Option<Box<HoldChange>> {
    if holds.limit_override.take_if(|stored| stored.ends_at_us <= now_us).is_some() {
        return Some(Box::new(HoldChange::Override(None)));
    }
    holds.withhold(withheld_micro?);
    Some(Box::new(HoldChange::Override(holds.limit_override.clone())))
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Begins an override, or ends the one that counts. Returns the effect; `None` if there is none to end.
pub(super) fn store_override(key: &mut BucketKey, request: &Request) -> Option<Effect> {
    let now_us = key.call().now_us();
    let Some(HoldChange::Override(begins)) = request.hold_change(0, now_us) else { return None };
    match begins {
        Some(begins) => Some(begin_override(key, begins)),
        None if key.holds()?.override_at(now_us).is_some() => Some(end_override(key)),
        None => None,
    }
}

fn begin_override(key: &mut BucketKey, begins: Box<Override>) -> Effect {
    let (now_us, stored) = (key.call().now_us(), key.bucket());
    let none = Holds::default();
    let holds = key.holds().unwrap_or(&none);
    let replaced = holds.replaced(stored, now_us);
    // Redis 8.10 dies of a question about the expiry of a key that does not exist.
    let expires_at_ms = stored.and_then(|_| key.expire_at_ms());
    // A key without an expiry keeps none.
    let stays = stored.is_some() && expires_at_ms.is_none();
    let expires_at_ms = expires_at_ms.unwrap_or(0);
    let expire_at_ms = (!stays).then(|| {
        let bucket = stored.unwrap_or(replaced.bucket);
        holds.overridden_until_ms(&begins, bucket, expires_at_ms, now_us)
    });
    update_override(key, expire_at_ms, replaced.dropped, |holds| {
        Some(holds.begin_override(begins, replaced.bucket, now_us))
    })
}

fn end_override(key: &mut BucketKey) -> Effect {
    let (now_us, stored, expire_at_ms) = (key.call().now_us(), key.bucket(), key.expire_at_ms());
    update_override(key, expire_at_ms, 0, |holds| {
        holds.end_override(now_us);
        stored.filter(|bucket| !holds.is_full_after_override(*bucket, now_us))
    })
}

/// Changes an override, and stores the bucket that `change` returns, or removes the key if it returns none.
fn update_override(
    key: &mut BucketKey,
    expire_at_ms: Option<i64>,
    dropped: usize,
    change: impl FnOnce(&mut Holds) -> Option<Bucket>,
) -> Effect {
    let (len, stored) = key.update_holds(dropped, |holds| {
        let bucket = change(holds);
        (bucket, bucket.map(|bucket| (bucket, HoldChange::Override(holds.limit_override.clone()))))
    });
    key.signal_modified();
    let Some((bucket, change)) = stored else { return Effect::Cleared };
    if key.expire_at_ms() != expire_at_ms {
        key.expire_at(expire_at_ms);
    }
    let holds = Some(HoldChanges { dropped: count(dropped), changes: vec![change], len: count(len) });
    Effect::Stored { bucket, expire_at_ms, holds }
}

/// Sets the expiry of a bucket that was just stored, and returns it.
#[inline(always)]
fn expire(key: &mut BucketKey, full_at_us: i64) -> i64 {
    key.expire_within(ExpiryWindow::new(full_at_us, key.call().now_us()))
}
