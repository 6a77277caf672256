//! Calls that wait their turn in the server: `TB.BTAKE`, `TB.BMTAKE`, `TB.BHOLD` and `TB.BMHOLD`.
//!
//! They decide as the commands without the B. What would be denied is parked by [`waiting`], which
//! comes back here when it is the call's turn, or its time is over.

use super::Joint;
use crate::redis::spec::{Command, Keys};
use crate::redis::waiting::{self, Resume};
use crate::redis::{Access, Argument, Call, Decisions, Replication};
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request::Waiting;

/// A command whose calls wait instead of being denied.
pub(in crate::command) trait Wait: Command {
    /// Reads what a call wants of its buckets, and how long it waits at most.
    fn read<'call>(arguments: &'call [Argument<'call>]) -> Result<Waiting<'call, Argument<'call>>, Refusal>;
}

/// Replies as the command without the B.
fn reply<W: Wait>(call: &Call, decisions: &Decisions) {
    match W::SPEC.keys {
        Keys::EveryFourth { .. } => call.reply_decisions(decisions),
        _ => call.reply_decision(&decisions.binding),
    }
}

/// Decides, and replies or lets the call wait.
///
/// # Errors
/// Without having changed anything.
pub(in crate::command) fn run_or_wait<W: Wait>(call: Call) -> Result<(), Refusal> {
    let (requests, max_wait_ms) = W::read(call.arguments())?;
    let joint = Joint::open(call, &requests, Access::Write)?;
    let parts = if max_wait_ms > 0 { joint.parts() } else { Vec::new() };
    let wants_anything = parts.iter().any(|part| part.wanted_micro > 0);
    if !wants_anything || !waiting::is_possible(&call)? {
        reply::<W>(&call, &joint.commit(Replication::CallOrEffect));
        return Ok(());
    }
    // Nothing is written, unless the clock stepped back: the bucket counts on from the new time.
    joint.store(Replication::Effect);
    if !waiting::enter::<W>(&call, parts, max_wait_ms) {
        reply::<W>(&call, &Joint::open(call, &requests, Access::Write)?.commit(Replication::CallOrEffect));
    }
    Ok(())
}

impl<W: Wait> Resume for W {
    fn grant(call: Call) -> Result<Option<Decisions>, Refusal> {
        let (requests, _) = W::read(call.arguments())?;
        let joint = Joint::open(call, &requests, Access::Write)?;
        if joint.is_worth_waiting() {
            joint.store(Replication::Effect);
            return Ok(None);
        }
        Ok(call.is_its_turn().then(|| joint.commit(Replication::Effect)))
    }

    fn deny(call: Call) -> Result<Decisions, Refusal> {
        let (requests, _) = W::read(call.arguments())?;
        Ok(Joint::open(call, &requests, Access::Read)?.deny())
    }

    fn reply_decisions(call: &Call, decisions: &Decisions) {
        reply::<W>(call, decisions);
    }
}
