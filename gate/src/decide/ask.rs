//! Sends the calls of a request.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use tokenbucket_client::{Decision, Error, JointDecision, Limiter, Part as Share};

use super::plan::{Asked, Call, Kind, Part, Plan};
use super::reservation::Reservation;
use crate::to_the_end;

/// The reply of Redis to one call. `binding` decides on all of its parts: allowed if the tokens were taken.
pub(super) type Answer = JointDecision;

/// Returns the decision on one part of a call.
pub(super) fn decision_on(part: usize, answer: &Answer) -> Decision {
    answer.each.get(part).copied().unwrap_or(answer.binding)
}

/// Returns the reply to each call, in their order. All are sent at once: one round trip.
///
/// Plain limits on several nodes of a cluster are all or nothing too: if one denies, or all quotas do, the others are refunded,
/// and also if a call fails. What a request has taken that is dropped before the replies is lost.
pub(super) async fn ask(limiter: &Limiter, plan: &Plan, quota_mode: bool) -> Result<Vec<Answer>, Error> {
    if let [call] = plan.calls.as_slice() {
        return Ok(vec![send(limiter, call).await?]);
    }
    let sends = plan.calls.iter().map(async |call| {
        let answer = send(limiter, call).await?;
        Ok::<_, Error>(Sent { limiter, call, answer: Some(answer) })
    });
    // Each is waited for: a reply that nobody reads cannot be refunded.
    let sent = join_all(sends).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let denies = |_, asked: &Asked| {
        let (place, part) = asked.place;
        sent.get(place).is_some_and(|sent| sent.denies(asked, part))
    };
    let is_denied = sent.iter().any(|sent| sent.call.is_plain && !sent.is_allowed())
        || plan.all_quotas_deny(quota_mode, denies);
    Ok(sent.into_iter().filter_map(|sent| if is_denied { sent.end_denied() } else { sent.keep() }).collect())
}

async fn send(limiter: &Limiter, call: &Call) -> Result<Answer, Error> {
    let mut answer = Answer::default();
    answer.binding = match (call.kind, call.parts.as_slice()) {
        (Kind::Take, [part]) => of(limiter, part).take(&part.bucket, part.cost).await?,
        (Kind::Give, [part]) => of(limiter, part).give(&part.bucket, part.cost).await?,
        (Kind::PayAfterwards, [part]) => pay(limiter, part).await?,
        (Kind::Peek, [part]) => of(limiter, part).peek(&part.bucket, part.cost).await?,
        (Kind::Hold(lease), parts) => {
            let held = limiter.hold_as(&lease.reservation.id(), &shares(parts), lease.ttl).await;
            return held.or_else(without_room);
        }
        (_, parts) => {
            let joint = limiter.take_all(&shares(parts)).await?;
            let is_remembered = joint.each.is_empty() && joint.binding.remembered;
            return Ok(if is_remembered { split_remembered(joint, limiter, parts) } else { joint });
        }
    };
    Ok(answer)
}

/// The time after which a hold may have ended, so that a bucket has room for another.
const HOLD_AGAIN_MS: i64 = 1000;

/// Denies a hold in a bucket that has `tokenbucket.max-holds`.
fn without_room(error: Error) -> Result<Answer, Error> {
    let is_full = |error: &redis::RedisError| error.detail().is_some_and(|text| text.contains("max-holds"));
    match error {
        Error::Refused { error, .. } if is_full(&error) => {
            let mut denied = Answer::default();
            denied.binding.retry_after_ms = HOLD_AGAIN_MS;
            Ok(denied)
        }
        error => Err(error),
    }
}

pub(super) fn shares(parts: &[Part]) -> Vec<Share> {
    parts.iter().map(|part| Share::new(&*part.bucket, &part.rule.limit, part.cost)).collect()
}

/// Finds the parts whose denials are cached. The others have at most their capacity left.
fn split_remembered(mut joint: Answer, limiter: &Limiter, parts: &[Part]) -> Answer {
    let unknown = |part: &Part| {
        let mut decision = Decision::default();
        (decision.allowed, decision.remembered) = (true, true);
        // Casts of floats saturate.
        decision.remaining = part.rule.capacity as i64;
        decision
    };
    let remembered =
        |part: &Part| of(limiter, part).remembered(&part.bucket, part.cost).unwrap_or_else(|| unknown(part));
    joint.each = parts.iter().map(remembered).collect();
    if joint.each.iter().all(|decision| decision.allowed) {
        // The denial has expired just now.
        joint.each.clear();
    }
    joint
}

/// Returns whether Redis reported what is in the bucket, now or when it denied.
pub(super) fn was_looked_at(decision: &Decision) -> bool {
    !(decision.degraded || decision.allowed && decision.remembered)
}

pub(super) fn of(limiter: &Limiter, part: &Part) -> Limiter {
    limiter.with_limit(part.rule.limit.clone())
}

/// Charges to the end: the tokens are used, even if the proxy no longer waits for the reply.
pub(super) async fn pay(limiter: &Limiter, part: &Part) -> Result<Decision, Error> {
    to_the_end(charge(of(limiter, part), part.clone())).await
}

/// Charges as much of the cost as leaves at most one unit's worth of debt: proxies also report denied requests, and their
/// callers may choose the cost.
async fn charge(limiter: Limiter, part: Part) -> Result<Decision, Error> {
    let Part { rule, bucket, cost } = &part;
    let decision = limiter.reserve(bucket, *cost, Duration::from_millis(rule.unit_ms)).await?;
    let within_bound = decision.remaining.saturating_add_unsigned(rule.most_debt);
    let charged = u64::try_from(within_bound).unwrap_or(0).min(*cost);
    if decision.allowed || decision.degraded || charged == 0 {
        return Ok(decision);
    }
    let mut decision = limiter.charge(bucket, charged).await?;
    // Others charged since the first reply.
    bound_debt(&limiter, &part, charged, decision.remaining).await?;
    // The counters assume that all of the cost was charged.
    decision.remaining = decision.remaining.saturating_sub_unsigned(cost - charged);
    Ok(decision)
}

/// Gives back what was charged beyond one unit's worth of debt.
pub(super) async fn bound_debt(limiter: &Limiter, part: &Part, charged: u64, left: i64) -> Result<(), Error> {
    let excess = left.saturating_add_unsigned(part.rule.most_debt).min(0).unsigned_abs().min(charged);
    if excess > 0 {
        of(limiter, part).give(&part.bucket, excess).await?;
    }
    Ok(())
}

/// Gives back what the calls have taken, in the background.
pub(super) fn undo(limiter: &Limiter, calls: &[Call], answers: Vec<Answer>) {
    for (call, answer) in calls.iter().zip(answers) {
        drop(Sent { limiter, call, answer: Some(answer) });
    }
}

/// A call with its reply. Refunds what it took if it is dropped without being kept.
struct Sent<'a> {
    limiter: &'a Limiter,
    call: &'a Call,
    answer: Option<Answer>,
}

impl Sent<'_> {
    fn is_allowed(&self) -> bool {
        self.answer.as_ref().is_some_and(|answer| answer.binding.allowed)
    }

    fn denies(&self, asked: &Asked, part: usize) -> bool {
        self.answer.as_ref().is_some_and(|answer| asked.denies(self.call.kind, &decision_on(part, answer)))
    }

    fn keep(mut self) -> Option<Answer> {
        self.answer.take()
    }

    /// Refunds the call of a denied request, if it took something, and returns the answer after that.
    fn end_denied(mut self) -> Option<Answer> {
        if !self.call.is_plain || !self.is_allowed() {
            return self.keep();
        }
        let mut answer = self.answer.take()?;
        self.refund(&answer);
        let after_refund = |(place, part): (usize, &Part)| {
            let mut decision = decision_on(place, &answer);
            decision.remaining = decision.remaining.saturating_add_unsigned(part.cost);
            decision
        };
        answer.each = self.call.parts.iter().enumerate().map(after_refund).collect();
        answer.binding.allowed = false;
        Some(answer)
    }

    fn refund(&self, answer: &Answer) {
        let granted = answer.binding;
        if !granted.allowed || granted.degraded {
            return;
        }
        match self.call.kind {
            Kind::Take => self.give_back(),
            Kind::Hold(lease) => self.release(lease.reservation),
            Kind::PayAfterwards | Kind::Give | Kind::Peek => {}
        }
    }

    fn give_back(&self) {
        for part in self.call.parts.iter().filter(|part| part.cost > 0) {
            let (limiter, bucket, cost) = (of(self.limiter, part), part.bucket.clone(), part.cost);
            in_background(async move { limiter.give(&bucket, cost).await.map(|_| ()) });
        }
    }

    fn release(&self, reservation: Reservation) {
        let unused = |part: &Part| Share::new(&*part.bucket, &part.rule.limit, 0_u32);
        let (limiter, parts) = (self.limiter.clone(), self.call.parts.iter().map(unused).collect::<Vec<_>>());
        in_background(async move { limiter.settle_as(&reservation.id(), &parts).await.map(|_| ()) });
    }
}

fn in_background(refund: impl Future<Output = Result<(), Error>> + Send + 'static) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(async move {
        if let Err(error) = refund.await {
            log::warn!("hits of a denied request were not refunded: {error}");
        }
    });
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            self.refund(&answer);
        }
    }
}
