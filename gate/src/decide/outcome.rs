//! Reads the outcome of each descriptor from the replies of Redis.

use tokenbucket_client::Decision;

use super::ask::{decision_on, was_looked_at, Answer};
use super::plan::{Asked, Disposition, Kind, Plan};
use crate::messages::{Code, Duration, Status};

/// The outcome of a descriptor with a limit.
pub(super) struct Outcome<'a> {
    pub(super) asked: &'a Asked,
    pub(super) decision: Decision,
    /// Says that its hits are above the limit. A shadow passes nevertheless.
    pub(super) is_over: bool,
    /// Tokens that were there before, if Redis reported them.
    pub(super) left_before: Option<i64>,
    /// Says that its hits were taken or charged.
    pub(super) is_taken: bool,
    /// Says that its hits are no demand: they are given back, or were only asked about and are there.
    pub(super) is_uncounted: bool,
}

/// Returns the outcome of each descriptor; none of those that pass without a limit.
pub(super) fn outcomes<'a>(plan: &'a Plan, answers: &[Answer]) -> Vec<Option<Outcome<'a>>> {
    plan.dispositions
        .iter()
        .map(|disposition| match disposition {
            Disposition::Asked(asked) => outcome(plan, answers, asked),
            Disposition::Passes | Disposition::Unlimited => None,
        })
        .collect()
}

fn outcome<'a>(plan: &'a Plan, answers: &[Answer], asked: &'a Asked) -> Option<Outcome<'a>> {
    let (place, part) = asked.place;
    let (call, answer) = (plan.calls.get(place)?, answers.get(place)?);
    let decision = decision_on(part, answer);
    let is_taken = answer.binding.allowed && call.kind != Kind::Peek;
    let taken = if is_taken { call.parts.get(part)?.cost } else { 0 };
    let left = decision.remaining.saturating_add_unsigned(taken).saturating_sub_unsigned(asked.earlier);
    let is_over = is_over(call.kind, &decision);
    Some(Outcome {
        asked,
        decision,
        is_over,
        left_before: was_looked_at(&decision).then_some(left),
        is_taken,
        is_uncounted: call.kind == Kind::Give || call.kind == Kind::Peek && !is_over,
    })
}

/// Returns whether the hits of a call are above the limit.
fn is_over(kind: Kind, decision: &Decision) -> bool {
    match kind {
        Kind::Take | Kind::Peek | Kind::Hold(_) => !decision.allowed,
        Kind::PayAfterwards => !decision.allowed || decision.retry_after_ms > 0,
        Kind::Give => false,
    }
}

impl Asked {
    /// Returns whether the descriptor's own status is OVER_LIMIT after this decision.
    pub(super) fn denies(&self, kind: Kind, decision: &Decision) -> bool {
        is_over(kind, decision) && !self.rule.shadow_mode
    }
}

impl Outcome<'_> {
    /// Returns whether the descriptor's own status is OVER_LIMIT.
    pub(super) fn denies(&self) -> bool {
        self.is_over && !self.asked.rule.shadow_mode
    }

    /// Returns the descriptor's part of the reply.
    pub(super) fn status(&self) -> Status {
        let code = if self.denies() { Code::OverLimit } else { Code::Ok };
        let is_known = !self.decision.degraded;
        let left = if self.is_over || !is_known { 0 } else { self.decision.remaining.max(0) };
        let has_quota = left as f64 <= self.asked.rule.capacity; // Otherwise an override counts.
        let knows_reset = self.is_over || was_looked_at(&self.decision);
        Status {
            code: code.into(),
            current_limit: (is_known && has_quota).then(|| self.asked.rule.current.clone()),
            limit_remaining: u32::try_from(left).unwrap_or(u32::MAX),
            duration_until_reset: knows_reset.then(|| Duration { seconds: self.reset_after_s(), nanos: 0 }),
            ..Status::default()
        }
    }

    /// Returns the time until the bucket is full, or until the same call passes. Rounded up, because Envoy cuts fractions off.
    fn reset_after_s(&self) -> i64 {
        let ms = if self.is_over { self.decision.retry_after_ms } else { self.decision.reset_after_ms };
        let ms = u64::try_from(ms).unwrap_or(self.asked.rule.unit_ms);
        i64::try_from(ms.div_ceil(1000)).unwrap_or(i64::MAX)
    }
}
