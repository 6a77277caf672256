//! The order of steps of every command that decides: open the key, plan, admit, store, replicate, announce, reply.
//!
//! [`run_one`] does them on one bucket, and [`run_together`] on several, all or nothing. Both do each step by [`Planned`].

mod joint;
mod planned;
mod turn;
mod written;

pub(super) use planned::Planned;
pub(super) use turn::{run_or_wait, Wait};

use crate::redis::{counters, replicate, waiting, Access, Argument, BucketKey, Call, Replication};
use joint::Joint;
use tokenbucket_core::bucket::{Decision, Outcome};
use tokenbucket_core::error::{Error, Refusal};
use tokenbucket_core::hold::Plan;
use tokenbucket_core::request::{self, Wanted};

/// One bucket of a call, by the arguments that the server passed.
type Request<'call> = request::Request<'call, Argument<'call>>;

/// Decides on one bucket, changes it, and replies.
///
/// # Errors
/// Without having changed anything.
#[inline(always)] // Once per command, with the operation that is its own.
pub(super) fn run_one<'call>(call: Call<'call>, request: &Request<'call>) -> Result<(), Refusal> {
    call.reply_decision(&execute(call, request)?);
    Ok(())
}

#[inline(always)]
fn execute<'call>(call: Call<'call>, request: &Request<'call>) -> Result<Decision, Error> {
    let key = BucketKey::open(call, *request.key, Access::Write)?;
    match request.wanted {
        Wanted::Tokens(operation) if !key.has_holds() && !waiting::is_any() => {
            let outcome = request.limit.decide(key.bucket(), operation, call.now_us())?;
            let planned = Planned { request, key, plan: Plan::Outcome(outcome) };
            Ok(commit::<true>(planned, Replication::CallOrEffect)?.decision)
        }
        Wanted::Tokens(_) => execute_with_others(*request, key.into_cold()),
        _ => Ok(commit::<false>(Planned::new(request, key)?, Replication::CallOrEffect)?.decision),
    }
}

/// Decides on a bucket that has holds, or while calls wait, out of the way of all others.
#[cold]
#[inline(never)]
fn execute_with_others<'call>(request: Request<'call>, key: BucketKey<'call>) -> Result<Decision, Error> {
    let planned = Planned::new(&request, key)?;
    Ok(commit::<false>(planned, Replication::CallOrEffect)?.decision)
}

/// Changes the one bucket of a call as planned. `ALONE`: it is known to have no holds, and no calls wait.
///
/// # Errors
/// Without having changed anything.
#[inline(always)]
pub(super) fn commit<const ALONE: bool>(
    mut planned: Planned,
    replication: Replication,
) -> Result<Outcome, Error> {
    planned.admit()?;
    let call = *planned.key.call();
    let stored = planned.store::<ALONE>();
    if let Some(written) = stored.written {
        replicate(&call, replication, || [(*stored.request.key, stored.effect(&call, written))]);
    }
    stored.announce(&call);
    if !stored.is_late() {
        counters().decision(stored.outcome.decision.allowed != 0);
    }
    Ok(stored.outcome)
}

/// Decides on one bucket and leaves it as it is.
///
/// # Errors
/// [`Error::WrongType`].
#[inline]
pub(super) fn peek<'call>(call: Call<'call>, request: &Request<'call>) -> Result<Decision, Error> {
    let key = BucketKey::open(call, *request.key, Access::Read)?;
    match request.wanted {
        Wanted::Tokens(operation) if !key.has_holds() && !waiting::is_any() => {
            Ok(request.limit.decide(key.bucket(), operation, call.now_us())?.decision)
        }
        _ => peek_with_others(*request, key.into_cold()),
    }
}

#[cold]
#[inline(never)]
fn peek_with_others<'call>(request: Request<'call>, key: BucketKey<'call>) -> Result<Decision, Error> {
    Ok(Planned::new(&request, key)?.outcome().decision)
}

/// Decides on all buckets, changes all of them or none, and replies.
///
/// # Errors
/// Without having changed anything.
pub(super) fn run_together<'call>(call: Call<'call>, requests: &[Request<'call>]) -> Result<(), Refusal> {
    let joint = Joint::open(call, requests, Access::Write)?;
    call.reply_decisions(&joint.commit(Replication::CallOrEffect));
    Ok(())
}
