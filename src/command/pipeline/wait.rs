//! Calls that wait their turn in the server: `TB.BTAKE`, `TB.BMTAKE`, `TB.BHOLD` and `TB.BMHOLD`.
//!
//! They decide like the commands without the B. [`waiting`] parks a denied call with its requests, and calls back here when
//! it is the call's turn, or its time is over.

use super::part::Request;
use super::{commit_all, open, store_denied, Verdict};
use crate::redis::spec::Spec;
use crate::redis::waiting::{self, Resume};
use crate::redis::{Access, Argument, Call, Decisions, Replication};
use tokenbucket_core::bucket::{Change, Outcome};
use tokenbucket_core::error::Refusal;
use tokenbucket_core::plan::Plan;
use tokenbucket_core::request::Waiting;

/// Decides as the command without the B, and replies or lets the call wait.
///
/// # Errors
/// Without having changed anything.
pub(in crate::command) fn run_or_wait<'call>(
    call: Call<'call>,
    spec: &'static Spec,
    waiting: Waiting<Argument<'call>>,
) -> Result<(), Refusal> {
    let Waiting { requests, max_wait_ms, .. } = &waiting;
    let (mut parts, mut verdict) = open(call, requests, Access::Write)?;
    let wants_anything = requests.iter().any(|request| request.wanted.micro() > 0);
    let may_wait = verdict == Verdict::Denied && *max_wait_ms > 0 && wants_anything;
    if may_wait && waiting::is_possible(&call) {
        store_denied(&call, parts, Replication::Effect);
        if waiting::enter(&call, spec, &waiting, Resume { grant, deny }) {
            return Ok(());
        }
        (parts, verdict) = open(call, requests, Access::Write)?;
    }
    spec.reply(&call, &commit_all(&call, parts, verdict, Replication::CallOrEffect));
    Ok(())
}

/// Grants a call; see [`Resume::grant`].
fn grant<'call>(call: Call<'call>, requests: &[Request<'call>]) -> Result<Option<Decisions>, Refusal> {
    let (parts, verdict) = open(call, requests, Access::Write)?;
    if verdict == Verdict::Denied {
        store_denied(&call, parts, Replication::Effect);
        return Ok(None);
    }
    Ok(call.is_its_turn().then(|| commit_all(&call, parts, verdict, Replication::Effect)))
}

/// Denies a call, whatever is in its buckets, and writes nothing.
fn deny<'call>(call: Call<'call>, requests: &[Request<'call>]) -> Result<Decisions, Refusal> {
    let (mut parts, verdict) = open(call, requests, Access::Read)?;
    for part in &mut parts {
        let outcome = if verdict == Verdict::Allowed { part.denied_behind(0) } else { part.outcome() };
        part.plan = Plan::Outcome(Outcome { change: Change::Keep, ..outcome });
    }
    Ok(commit_all(&call, parts, verdict, Replication::Effect))
}
