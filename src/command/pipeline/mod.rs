//! The order of steps of every command that decides: open the key, decide, admit, store, replicate, announce.
//!
//! A command says what is its own by [`Decide`]: [`tokens`] for calls that take or give, [`hold`] for calls that set or
//! settle holds. [`run`] does the steps on one bucket, and [`run_together`] on several, all or nothing.

mod hold;
mod together;
mod tokens;
mod turn;

pub(super) use together::run_together;
pub(super) use tokens::{execute, peek};
pub(super) use turn::{run_or_wait, Wait};

use crate::redis::{announce_denial, counters, replicate, Access, Argument, BucketKey, Call, Replication};
use std::ffi::CStr;
use tokenbucket_core::bucket::{Bucket, Change, Decision, Outcome};
use tokenbucket_core::effect::{Effect, HoldChange, HoldChanges};
use tokenbucket_core::error::Error;
use tokenbucket_core::expiry::ExpiryWindow;
use tokenbucket_core::hold::Holds;

/// What a call wants of one of its buckets.
pub(super) trait Decide<'call> {
    /// What is to happen to the bucket.
    type Plan: Copy;

    /// The argument that names the bucket.
    fn key(&self) -> &Argument<'call>;

    /// Decides, and leaves the bucket as it is.
    fn decide(&self, key: &mut BucketKey<'call>) -> Result<Self::Plan, Error>;

    /// Lets the plan pass unless it needs memory that the server does not have.
    fn admit(&self, key: &BucketKey<'call>, plan: &mut Self::Plan) -> Result<(), Error>;

    /// Changes the bucket as planned. Returns what was written, if anything was.
    fn store(&self, key: &mut BucketKey<'call>, plan: &Self::Plan) -> (Outcome, Option<Written>);

    /// The holds that the plan sets or removes, for replicas and files.
    #[inline]
    fn hold_changes(&self, _call: &Call, _plan: &Self::Plan) -> Vec<HoldChange> {
        Vec::new()
    }

    /// The keyspace event of a call that was allowed; `None` if it changed nothing.
    fn event(&self, plan: &Self::Plan, outcome: &Outcome) -> Option<&'static CStr>;

    /// Whether the call settles a hold that has ended: no decision, but counted by itself.
    #[inline]
    fn is_late(&self, _outcome: &Outcome) -> bool {
        false
    }
}

/// Decides on the bucket of one key, changes it, and returns the decision.
///
/// # Errors
/// Without having changed anything.
pub(super) fn run_one<'call, D: Decide<'call>>(call: Call<'call>, request: &D) -> Result<Decision, Error> {
    let key = BucketKey::open(call, *request.key(), Access::Write)?;
    Ok(run(key, request, Replication::CallOrEffect)?.1.decision)
}

/// The same on an open key, with the plan.
#[inline(always)] // Once per command, with the operation that is its own.
pub(super) fn run<'call, D: Decide<'call>>(
    mut key: BucketKey<'call>,
    request: &D,
    replication: Replication,
) -> Result<(D::Plan, Outcome), Error> {
    let mut plan = request.decide(&mut key)?;
    request.admit(&key, &mut plan)?;
    let call = *key.call();
    let (outcome, written) = request.store(&mut key, &plan);
    if let Some(written) = written {
        replicate(&call, replication, || {
            [(*request.key(), written.effect(request.hold_changes(&call, &plan)))]
        });
    }
    drop(key);
    announce(&call, request, &plan, &outcome);
    if !request.is_late(&outcome) {
        counters().decision(outcome.decision.allowed != 0);
    }
    Ok((plan, outcome))
}

/// Counts what left one bucket, and sends its keyspace event, once its key is closed.
#[inline(always)]
fn announce<'call, D: Decide<'call>>(call: &Call, request: &D, plan: &D::Plan, outcome: &Outcome) {
    counters().granted(outcome);
    if request.is_late(outcome) {
        return counters().settled_late();
    }
    if outcome.decision.allowed == 0 {
        return announce_denial(call, request.key());
    }
    if let Some(event) = request.event(plan, outcome) {
        call.notify(event, request.key());
        if outcome.change == Change::Clear {
            call.notify_deleted(request.key());
        }
    }
}

/// What was written to one key.
#[derive(Clone, Copy)]
pub(super) enum Written {
    Stored { bucket: Bucket, expire_at_ms: i64, holds: Option<HoldCounts> },
    Cleared,
}

/// What a replica needs to drop the holds that were dropped here, and to notice that it lacks some.
#[derive(Clone, Copy)]
pub(super) struct HoldCounts {
    /// How many were dropped because they had ended.
    dropped: usize,
    /// How many there are now.
    len: usize,
}

/// Drops the holds that have ended, lets `change` change the others, and stores what becomes of the bucket by that.
fn update_holds<T>(key: &mut BucketKey, change: impl FnOnce(&mut Holds) -> (Change, T)) -> (Written, T) {
    let dropped = key.ended_holds();
    let (len, (change, result)) = key.update_holds(dropped, |holds| {
        let (change, result) = change(holds);
        let stored = match change {
            Change::Store { bucket, .. } => Some(bucket),
            Change::Keep | Change::Clear => None,
        };
        (stored, (change, result))
    });
    let written = match change {
        Change::Store { bucket, full_at_us } => {
            Written::stored(key, bucket, full_at_us, Some(HoldCounts { dropped, len }))
        }
        Change::Keep | Change::Clear => Written::Cleared,
    };
    key.signal_modified();
    (written, result)
}

impl Written {
    /// Sets the expiry of a bucket that has just been stored.
    #[inline(always)]
    fn stored(key: &mut BucketKey, bucket: Bucket, full_at_us: i64, holds: Option<HoldCounts>) -> Self {
        let expire_at_ms = key.expire_within(ExpiryWindow::new(full_at_us, key.call().now_us()));
        Self::Stored { bucket, expire_at_ms, holds }
    }

    /// What replicas and files are sent of it, with the holds that were set or removed.
    #[inline]
    fn effect(self, changes: Vec<HoldChange>) -> Effect {
        match self {
            Self::Stored { bucket, expire_at_ms, holds: None } => {
                Effect::Stored { bucket, expire_at_ms: Some(expire_at_ms) }
            }
            Self::Stored { bucket, expire_at_ms, holds: Some(HoldCounts { dropped, len }) } => {
                let [dropped, len] = [dropped, len].map(|count| u32::try_from(count).unwrap_or(u32::MAX));
                let holds = HoldChanges { dropped, changes, len };
                Effect::Changed { bucket, expire_at_ms: Some(expire_at_ms), holds }
            }
            Self::Cleared => Effect::Cleared,
        }
    }
}
