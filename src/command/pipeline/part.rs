//! One bucket of a call: planned, then stored.

use crate::redis::{announce_denial, denies_on_oom, waiting, Argument, BucketKey, Call, COUNTERS, MAX_HOLDS};
use std::ffi::CStr;
use tokenbucket_core::bucket::{Bucket, Change, Operation, Outcome, NEVER_MS};
use tokenbucket_core::effect::Effect;
use tokenbucket_core::error::Error;
use tokenbucket_core::expiry::ExpiryWindow;
use tokenbucket_core::hold::{Extension, ExtensionChange, ExtensionChanges, Override};
use tokenbucket_core::plan::Plan;
use tokenbucket_core::request::{self, Wanted};

/// A call's request to one bucket, with the server's arguments.
pub(super) type Request<'call> = request::Request<Argument<'call>>;

/// A request to one bucket whose key is open, and its plan.
pub(in crate::command) struct Part<'request, 'call> {
    request: &'request Request<'call>,
    pub(in crate::command) key: BucketKey<'call>,
    pub(super) plan: Plan,
}

impl<'request, 'call> Part<'request, 'call> {
    #[inline(always)]
    pub(in crate::command) fn new(
        request: &'request Request<'call>,
        key: BucketKey<'call>,
        plan: Plan,
    ) -> Self {
        Self { request, key, plan }
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
        let plan = request.plan(stored, key.extension_mut(), MAX_HOLDS.count(), now_us)?;
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
        let needed_micro = self.needed_micro();
        if !is_for_good && needed_micro > 0 {
            if let Some(ahead_micro) = waiting::wanted_before(&self.key, &self.request.limit, needed_micro) {
                self.plan = Plan::Outcome(self.denied_behind(ahead_micro));
            }
        }
    }

    fn needed_micro(&self) -> i64 {
        self.request.needs(self.key.extension(), self.key.call().now_us()).micro
    }

    /// Returns the denial of a call behind others that want `ahead_micro`.
    pub(super) fn denied_behind(&self, ahead_micro: i64) -> Outcome {
        let (stored, extension, now_us) = (self.key.bucket(), self.key.extension(), self.key.call().now_us());
        self.request.limit.denied_behind(stored, extension, self.needed_micro(), ahead_micro, now_us)
    }

    #[inline(always)]
    pub(super) fn is_denied(&self) -> bool {
        self.request().is_denied(&self.plan)
    }

    /// Denies the part of a call that another bucket denies.
    #[inline(always)]
    pub(super) fn deny_by_another(&mut self) {
        if !self.is_denied() {
            let (stored, extension, now_us) =
                (self.key.bucket(), self.key.extension(), self.key.call().now_us());
            self.plan = Plan::Outcome(self.request().limit.denied_by_another(stored, extension, now_us));
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
        let (stored, extension, now_us) = (self.key.bucket(), self.key.extension(), self.key.call().now_us());
        let take = Operation::Take { cost_micro: taken_micro };
        let outcome = self.request().limit.decide_with(stored, extension, take, now_us)?;
        let change = if exists { outcome.change } else { Change::Keep };
        self.plan = Plan::Outcome(Outcome { change, ..outcome });
        Ok(())
    }

    /// Changes the bucket as planned, and closes its key.
    #[inline(always)]
    pub(super) fn store(mut self) -> Stored<'request, 'call> {
        let (request, key) = (self.request, &mut self.key);
        let stored = match self.plan {
            Plan::Outcome(outcome @ Outcome { change: Change::Store { .. }, .. }) if key.is_extended() => {
                store_extended(request, key, None, |_| outcome)
            }
            Plan::Outcome(outcome) => Stored::alone(request, outcome, store(key, outcome.change)),
            Plan::Hold { bucket, taken_micro, amount_micro } => {
                let now_us = key.call().now_us();
                store_extended(request, key, Some(amount_micro), |extension| {
                    request.change_hold(extension, bucket, taken_micro, amount_micro, now_us)
                })
            }
        };
        if stored.written.is_some() && self.comes_later() {
            stored.mark(&self.key);
        }
        stored
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
pub(super) struct Stored<'request, 'call> {
    pub(super) request: &'request Request<'call>,
    pub(super) outcome: Outcome,
    /// The write, if there was one.
    pub(super) written: Option<Written>,
    /// The amount to which a hold was set, 0 if it was ended; `None` if no hold was changed.
    held_micro: Option<i64>,
    /// The change of an override. In a box, because nearly no write has one.
    of_override: Option<Box<ExtensionChange>>,
}

impl<'request, 'call> Stored<'request, 'call> {
    /// Returns a bucket whose holds and override, if it has any, did not change.
    #[inline(always)]
    pub(super) fn alone(
        request: &'request Request<'call>,
        outcome: Outcome,
        written: Option<Written>,
    ) -> Self {
        Self { request, outcome, written, held_micro: None, of_override: None }
    }

    /// Reports the write to the calls that wait.
    #[cold]
    fn mark(&self, key: &BucketKey) {
        let id = self.request.id().filter(|_| self.held_micro.is_some());
        let granted_micro = self.outcome.granted_micro;
        // A hold that was there before may end earlier now.
        let is_anew = self.held_micro.is_none_or(|micro| micro == 0 || micro == granted_micro);
        waiting::mark(key, id.map(AsRef::as_ref), &self.request.limit, is_anew && granted_micro > 0);
    }

    /// Returns the effect of the write, for replicas and files.
    #[inline(always)]
    pub(super) fn effect(&self, call: &Call, written: Written) -> (Argument<'call>, Effect) {
        let effect = match written {
            Written::Cleared => Effect::Cleared,
            Written::Stored { bucket, expire_at_ms, holds } => {
                let extension = holds.map(|(dropped, len)| self.changes(call, dropped, len));
                Effect::Stored { bucket, expire_at_ms: Some(expire_at_ms), extension }
            }
        };
        (self.request.key, effect)
    }

    #[cold]
    #[inline(never)] // Off the path of buckets without holds: each take paid for its code.
    fn changes(&self, call: &Call, dropped: u32, len: u32) -> ExtensionChanges {
        let change = |amount_micro| self.request.change(amount_micro, call.now_us());
        let of_override = self.of_override.as_deref().cloned().into_iter();
        let changes = of_override.chain(self.held_micro.and_then(change)).collect();
        ExtensionChanges { dropped, changes, len }
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
/// under the limit of the call too, which counts again when an override has ended.
fn store_extended<'request, 'call>(
    request: &'request Request<'call>,
    key: &mut BucketKey<'call>,
    held_micro: Option<i64>,
    change: impl FnOnce(&mut Extension) -> Outcome,
) -> Stored<'request, 'call> {
    let (own, now_us) = (&request.limit, key.call().now_us());
    let dropped = key.extension().holds.ended(now_us);
    let withheld_micro = key.extension().withholds_micro(own, key.bucket(), now_us);
    let (len, (outcome, of_override)) = key.update_extension(dropped, |extension| {
        let is_overridden = extension.is_overridden();
        let of_override =
            if is_overridden { change_override(extension, withheld_micro, now_us) } else { None };
        let mut outcome = change(extension);
        let Change::Store { bucket, full_at_us } = &mut outcome.change else {
            return (None, (outcome, of_override));
        };
        if is_overridden {
            *full_at_us = extension.full_after_override_us(own, *bucket, now_us).max(*full_at_us);
        }
        (Some(*bucket), (outcome, of_override))
    });
    let written = match outcome.change {
        Change::Store { bucket, full_at_us } => {
            let holds = Some((count(dropped), count(len)));
            Written::Stored { bucket, expire_at_ms: expire(key, full_at_us), holds }
        }
        Change::Keep | Change::Clear => Written::Cleared,
    };
    key.signal_modified();
    Stored { request, outcome, written: Some(written), held_micro, of_override }
}

/// Ends an override whose time is over, or records what one withholds. Returns the change.
#[cold]
fn change_override(
    extension: &mut Extension,
    withheld_micro: Option<i64>,
    now_us: i64,
) -> Option<Box<ExtensionChange>> {
    if extension.limit_override.take_if(|stored| stored.ends_at_us <= now_us).is_some() {
        return Some(Box::new(ExtensionChange::Override(None)));
    }
    extension.withhold(withheld_micro?);
    Some(Box::new(ExtensionChange::Override(extension.limit_override.clone())))
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Begins an override, or ends the one that counts. Returns the effect; `None` if there is none to end.
pub(super) fn store_override(key: &mut BucketKey, request: &Request) -> Option<Effect> {
    let now_us = key.call().now_us();
    let Some(ExtensionChange::Override(begins)) = request.change(0, now_us) else { return None };
    match begins {
        Some(begins) => Some(begin_override(key, begins)),
        None if key.extension().override_at(now_us).is_some() => Some(end_override(key)),
        None => None,
    }
}

fn begin_override(key: &mut BucketKey, begins: Box<Override>) -> Effect {
    let (now_us, stored) = (key.call().now_us(), key.bucket());
    let extension = key.extension();
    let replaced = extension.replaced(stored, now_us);
    // Redis 8.10 dies of a question about the expiry of a key that does not exist.
    let expires_at_ms = stored.and_then(|_| key.expire_at_ms());
    // A key without an expiry keeps none.
    let stays = stored.is_some() && expires_at_ms.is_none();
    let expires_at_ms = expires_at_ms.unwrap_or(0);
    let expire_at_ms = (!stays).then(|| {
        let bucket = stored.unwrap_or(replaced.bucket);
        extension.overridden_until_ms(&begins, bucket, expires_at_ms, now_us)
    });
    update_override(key, expire_at_ms, replaced.dropped, |extension| {
        Some(extension.begin_override(begins, replaced.bucket, now_us))
    })
}

fn end_override(key: &mut BucketKey) -> Effect {
    let (now_us, stored, expire_at_ms) = (key.call().now_us(), key.bucket(), key.expire_at_ms());
    update_override(key, expire_at_ms, 0, |extension| {
        extension.end_override(now_us);
        stored.filter(|bucket| !extension.is_full_after_override(*bucket, now_us))
    })
}

/// Changes an override, and stores the bucket that `change` returns, or removes the key if it returns none.
fn update_override(
    key: &mut BucketKey,
    expire_at_ms: Option<i64>,
    dropped: usize,
    change: impl FnOnce(&mut Extension) -> Option<Bucket>,
) -> Effect {
    let (len, stored) = key.update_extension(dropped, |extension| {
        let bucket = change(extension);
        (bucket, bucket.map(|bucket| (bucket, ExtensionChange::Override(extension.limit_override.clone()))))
    });
    key.signal_modified();
    let Some((bucket, change)) = stored else { return Effect::Cleared };
    if key.expire_at_ms() != expire_at_ms {
        key.expire_at(expire_at_ms);
    }
    let changes = ExtensionChanges { dropped: count(dropped), changes: vec![change], len: count(len) };
    Effect::Stored { bucket, expire_at_ms, extension: Some(changes) }
}

/// Sets the expiry of a bucket that was just stored, and returns it.
#[inline(always)]
fn expire(key: &mut BucketKey, full_at_us: i64) -> i64 {
    key.expire_within(ExpiryWindow::new(full_at_us, key.call().now_us()))
}
