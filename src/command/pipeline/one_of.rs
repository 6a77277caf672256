//! Calls of one of several alternatives: `TB.TAKEANY` and `TB.HOLDANY`.
//!
//! An alternative is a call of several buckets, decided by itself. Its keys are closed before those of the next are opened,
//! because a key may be in both.

use super::part::{Request, Stored};
use super::{binding, commit_all, each, open, store_denied, Verdict};
use crate::redis::{announce_denial, Access, Argument, BucketKey, Call, Decisions, Replication, COUNTERS};
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request::OneOf;

/// Takes the first alternative that allows its part, changes no other bucket, and replies.
///
/// # Errors
/// Without having taken anything.
pub(in crate::command) fn run_one_of<'call>(
    call: Call<'call>,
    one_of: &OneOf<Argument<'call>>,
) -> Result<(), Refusal> {
    let held = one_of.held(|request| held_micro(call, request));
    let mut soonest = None;
    for (number, (first, requests)) in (1..).zip(one_of.alternatives()) {
        if held.is_some_and(|held| held != number) {
            continue;
        }
        let opened = open(call, requests, Access::Write);
        let (parts, verdict) = opened.map_err(|refusal| refusal.behind(first))?;
        if verdict == Verdict::Allowed {
            let mut decisions = commit_all(&call, parts, verdict, Replication::CallOrEffect);
            decisions.binding.allowed = number;
            call.reply_decisions(&decisions);
            return Ok(());
        }
        let stored = store_denied(&call, parts, Replication::CallOrEffect);
        soonest = sooner(soonest, &stored, verdict);
    }
    if let Some((decisions, key)) = soonest {
        announce_denial(&call, &key);
        COUNTERS.decision(false);
        call.reply_decisions(&decisions);
    }
    Ok(())
}

/// The denial of an alternative, and the key that binds it.
type Denial<'call> = (Decisions, Argument<'call>);

/// Returns the denial with the shorter wait; of equal ones the earlier.
fn sooner<'call>(
    earlier: Option<Denial<'call>>,
    stored: &[Stored<'_, 'call>],
    verdict: Verdict,
) -> Option<Denial<'call>> {
    let binding = binding(stored, verdict);
    let is_later =
        |(earlier, _): &Denial| length(binding.retry_after_ms) >= length(earlier.binding.retry_after_ms);
    if earlier.as_ref().is_some_and(is_later) {
        return earlier;
    }
    key_that_binds(stored).map(|key| (Decisions { binding, each: each(stored) }, key))
}

/// Returns how much of a bucket the call's id holds.
fn held_micro<'call>(call: Call<'call>, request: &Request<'call>) -> i64 {
    let Some(id) = request.id() else { return 0 };
    let Ok(key) = BucketKey::open(call, request.key, Access::Write) else { return 0 };
    key.extension().holds.outstanding_of(id.as_ref(), call.now_us()).map_or(0, |hold| hold.amount_micro)
}

/// Returns the key of the first bucket that denies the longest.
fn key_that_binds<'call>(stored: &[Stored<'_, 'call>]) -> Option<Argument<'call>> {
    let wait = |one: &Stored| length(one.outcome.decision.retry_after_ms);
    let denied = stored.iter().filter(|one| one.outcome.decision.allowed == 0);
    let binding = denied.reduce(|one, other| if wait(other) > wait(one) { other } else { one });
    binding.map(|one| one.request.key)
}

/// Returns the length of a wait, of which -1 is the longest.
fn length(wait_ms: i64) -> u64 {
    u64::try_from(wait_ms).unwrap_or(u64::MAX)
}
