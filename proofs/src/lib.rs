//! Theorems about the arithmetic of the core, as functions over the real core.
//!
//! Each returns [`HOLDS`], [`OUTSIDE`] its domain, or the number of the sentence that is broken. `make prove` walks every
//! path of them on symbolic numbers, and `core/tests/pure/theorems.rs` calls them with random ones.
//!
//! Two theorems, [`flow`] and [`reaches`], say what a rate does. All others use a rate only through these two sentences,
//! so that they cover every rate for which the two are proved.

use tokenbucket_core::bucket::{Bucket, Change, Limit, NoHolds, Operation, Outcome, DEEPEST_DEBT_MICRO};
use tokenbucket_core::number::{MAX_TOKENS, MICRO_PER_TOKEN};
use tokenbucket_core::rate::{Flow, Rate, CENTURY_S};

/// What a theorem finds: [`HOLDS`], [`OUTSIDE`], or the number of the sentence that is broken.
pub type Verdict = i64;

/// Every sentence holds.
pub const HOLDS: Verdict = 0;

/// The numbers are outside the theorem's domain.
pub const OUTSIDE: Verdict = -1;

/// Flows and times saturate here.
const SATURATED: i64 = 1 << 62;

fn verdict(holds: bool, sentence: Verdict) -> Verdict {
    if holds {
        HOLDS
    } else {
        sentence
    }
}

/// States [`flow`] for `count` tokens in `period_s` seconds.
pub fn flow_of_ratio(count: u64, period_s: u64, since_us: i64, until_us: i64) -> Verdict {
    let Some(rate) = Rate::per_seconds(count, period_s) else { return OUTSIDE };
    flow(&rate, count.into(), period_s.into(), since_us, until_us)
}

/// States [`reaches`] for `count` tokens in `period_s` seconds.
pub fn reaches_of_ratio(count: u64, period_s: u64, since_us: i64, micro: i64) -> Verdict {
    let Some(rate) = Rate::per_seconds(count, period_s) else { return OUTSIDE };
    reaches(&rate, count.into(), period_s.into(), since_us, micro)
}

/// States that `count` tokens in `period_s` seconds are a rate if and only if they are at most 10^12 tokens a second and at least
/// one in 100 years (1).
pub fn ratio_is_within_bounds(count: u64, period_s: u64) -> Verdict {
    let fastest = u128::from(period_s).wrapping_mul(MAX_TOKENS.unsigned_abs().into());
    let slowest = u128::from(count).wrapping_mul(CENTURY_S.into());
    let is_within = period_s > 0 && u128::from(count) <= fastest && u128::from(period_s) <= slowest;
    verdict(Rate::per_seconds(count, period_s).is_some() == is_within, 1)
}

/// States [`refills`] for `count` tokens in `period_s` seconds.
pub fn refills_of_ratio(count: u64, period_s: u64, capacity_micro: i64) -> Verdict {
    let Some(rate) = Rate::per_seconds(count, period_s) else { return OUTSIDE };
    refills(&rate, count.into(), period_s.into(), capacity_micro)
}

/// States that a capacity is accepted if and only if a rate of `numerator / denominator` brings it within 100 years (1).
pub fn refills(rate: &Rate, numerator: u128, denominator: u128, capacity_micro: i64) -> Verdict {
    let century_us = u128::from(CENTURY_S).wrapping_mul(1_000_000);
    let is_within = match (wide(capacity_micro).checked_mul(denominator), century_us.checked_mul(numerator)) {
        (Some(due), Some(brought)) => due <= brought,
        // One of the terms is within 64 bits: the product that leaves 128 is the larger one.
        (due, _) => due.is_some(),
    };
    verdict(rate.refills_within_a_century(capacity_micro) == is_within, 1)
}

/// States that a flow is rate times time, rounded down to whole micro-tokens, for a rate of `numerator / denominator`:
/// nothing flows backwards (1); the carry is time that has passed (2); a product beyond 128 bits saturates (3); flow and
/// carry together are never more than rate times time (4, 5); less than a micro-token is left (6), and with the carry
/// less than what flows in one microsecond (7).
pub fn flow(rate: &Rate, numerator: u128, denominator: u128, since_us: i64, until_us: i64) -> Verdict {
    let Flow { micro, carry_us } = rate.flow(since_us, until_us);
    if until_us <= since_us {
        return verdict(micro == 0 && carry_us == 0, 1);
    }
    let elapsed_us = until_us.wrapping_sub(since_us);
    if micro < 0 || carry_us < 0 {
        return 2;
    }
    if micro > SATURATED || carry_us > elapsed_us {
        return 2;
    }
    let Some(due) = wide(elapsed_us).checked_mul(numerator) else {
        return verdict(micro == SATURATED && carry_us == 0, 3);
    };
    let Some(whole) = wide(micro).checked_mul(denominator) else { return 4 };
    let Some(carried) = wide(carry_us).checked_mul(numerator) else { return 4 };
    if whole > due || carried > due.wrapping_sub(whole) {
        return 5;
    }
    if micro == SATURATED {
        return HOLDS;
    }
    if due.wrapping_sub(whole) >= denominator {
        return 6;
    }
    verdict(due.wrapping_sub(whole).wrapping_sub(carried) < numerator, 7)
}

/// States that `reaches_at_us` is the first microsecond that suffices, for a rate of `numerator / denominator`: nothing
/// takes no time (1); the moment is later, by at most 2^62 (2); a product beyond 128 bits saturates (3); one microsecond
/// earlier it is not enough (4); then it is enough (5).
pub fn reaches(rate: &Rate, numerator: u128, denominator: u128, since_us: i64, micro: i64) -> Verdict {
    let at_us = rate.reaches_at_us(since_us, micro);
    if micro <= 0 {
        return verdict(at_us == since_us, 1);
    }
    let wait_us = at_us.wrapping_sub(since_us);
    if wait_us < 1 {
        return 2;
    }
    if wait_us > SATURATED {
        return 2;
    }
    let Some(due) = wide(micro).checked_mul(denominator) else { return verdict(wait_us == SATURATED, 3) };
    let is_enough = |time_us: i64| match wide(time_us).checked_mul(numerator) {
        Some(total) => total >= due,
        None => true,
    };
    if is_enough(wait_us.wrapping_sub(1)) {
        return 4;
    }
    verdict(wait_us == SATURATED || is_enough(wait_us), 5)
}

fn wide(value: i64) -> u128 {
    value.unsigned_abs().into()
}

/// States that a refill split in two brings no more (1), and at most a micro-token less (2), than one refill.
pub fn split(rate: &Rate, since_us: i64, between_us: i64, until_us: i64) -> Verdict {
    let whole = rate.flow(since_us, until_us);
    if between_us < since_us || until_us < between_us || whole.micro == SATURATED {
        return OUTSIDE;
    }
    let first = rate.flow(since_us, between_us);
    let second = rate.flow(between_us.wrapping_sub(first.carry_us), until_us);
    let parts = first.micro.wrapping_add(second.micro);
    if parts > whole.micro {
        return 1;
    }
    verdict(parts >= whole.micro.wrapping_sub(1), 2)
}

/// A call on one bucket: its limit, what is stored (if anything is), and the moment.
#[derive(Clone, Copy)]
#[repr(C)] // The runner writes its fields.
pub struct Scene<'a> {
    /// The rate of the limit.
    pub rate: &'a Rate,
    /// The capacity of the limit.
    pub capacity_micro: i64,
    /// Says whether a bucket is stored: without one it is full.
    pub is_stored: bool,
    /// The stored level.
    pub level_micro: i64,
    /// The stored moment.
    pub refilled_at_us: i64,
    /// The moment of the call.
    pub now_us: i64,
}

impl Scene<'_> {
    #[inline(always)]
    fn limit(&self) -> Option<Limit> {
        Limit::new(self.capacity_micro, *self.rate)
    }

    #[inline(always)]
    fn stored(&self) -> Option<Bucket> {
        let bucket = Bucket { level_micro: self.level_micro, refilled_at_us: self.refilled_at_us };
        self.is_stored.then_some(bucket)
    }
}

/// States that a wait is honest for a take: see [`is_honest`].
pub fn take_waits_honestly(scene: &Scene<'_>, cost_micro: i64, early_us: i64) -> Verdict {
    is_honest(scene, Operation::Take { cost_micro }, cost_micro, early_us)
}

/// States that a wait is honest for a call that takes what there is: see [`is_honest`].
pub fn take_up_to_waits_honestly(scene: &Scene<'_>, max_tokens: i64, early_us: i64) -> Verdict {
    is_honest(scene, Operation::TakeUpTo { max_tokens }, MICRO_PER_TOKEN, early_us)
}

/// States of a denied call: -1 is replied if and only if it needs more than the capacity (1, 2); other waits are at least
/// a millisecond (3); after the wait the same call is allowed (4); `early_us` before, which is at least a millisecond, it
/// is denied (5).
#[inline(always)]
fn is_honest(scene: &Scene<'_>, operation: Operation, needed_micro: i64, early_us: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let Ok(first) = limit.decide(scene.stored(), operation, scene.now_us) else { return 9 };
    if first.decision.allowed > 0 {
        return OUTSIDE;
    }
    let wait_ms = first.decision.retry_after_ms;
    if wait_ms < 0 {
        return verdict(needed_micro > scene.capacity_micro, 1);
    }
    if needed_micro > scene.capacity_micro {
        return 2;
    }
    if wait_ms < 1 {
        return 3;
    }
    let stored = after(scene.stored(), first.change);
    let then_us = scene.now_us.wrapping_add(wait_ms.wrapping_mul(1000));
    if then_us > tokenbucket_core::bucket::MAX_TIME_US || early_us > wait_ms.wrapping_mul(1000) {
        return OUTSIDE;
    }
    let Ok(second) = limit.decide(stored, operation, then_us) else { return 9 };
    if second.decision.allowed < 1 {
        return 4;
    }
    let Ok(third) = limit.decide(stored, operation, then_us.wrapping_sub(early_us)) else { return 9 };
    verdict(third.decision.allowed == 0, 5)
}

/// States that a reservation replies with the wait of a take (1), is allowed only if that is at most `max_wait_ms` (2), and is
/// denied otherwise only if its debt would be too deep (3).
pub fn reserve_waits_honestly(scene: &Scene<'_>, cost_micro: i64, max_wait_ms: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let reserve = Operation::Reserve { cost_micro, max_wait_ms };
    let Ok(reserved) = limit.decide(scene.stored(), reserve, scene.now_us) else { return 9 };
    let Ok(taken) = limit.decide(scene.stored(), Operation::Take { cost_micro }, scene.now_us) else {
        return 9;
    };
    let wait_ms = taken.decision.retry_after_ms;
    if reserved.decision.retry_after_ms != wait_ms {
        return 1;
    }
    let is_too_long = wait_ms < 0 || wait_ms > max_wait_ms;
    if reserved.decision.allowed > 0 || is_too_long {
        return verdict(reserved.decision.allowed == 0 || !is_too_long, 2);
    }
    let current = worth(scene, scene.stored(), scene.now_us);
    verdict(current.micro().wrapping_sub(cost_micro) < DEEPEST_DEBT_MICRO, 3)
}

#[inline(always)]
fn after(stored: Option<Bucket>, change: Change) -> Option<Bucket> {
    match change {
        Change::Keep => stored,
        Change::Store { bucket, .. } => Some(bucket),
        Change::Clear => None,
    }
}

/// States that a denied take leaves the bucket as it is (1), or after a clock that stepped back stores the same level at
/// the new time (2).
pub fn denied_take_changes_nothing(scene: &Scene<'_>, cost_micro: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let Ok(outcome) = limit.decide(scene.stored(), Operation::Take { cost_micro }, scene.now_us) else {
        return 9;
    };
    if outcome.decision.allowed > 0 {
        return OUTSIDE;
    }
    if !scene.is_stored || scene.refilled_at_us <= scene.now_us {
        return verdict(matches!(outcome.change, Change::Keep), 1);
    }
    let Some(bucket) = after(None, outcome.change) else { return 2 };
    verdict(bucket.level_micro == scene.level_micro && bucket.refilled_at_us == scene.now_us, 2)
}

/// States of a take that is allowed below the capacity: the stored moment is the first microsecond by which the stored level
/// and the grant have flowed in (1). So a write loses less than what flows in one microsecond, for rates that flow all the time.
pub fn take_loses_less_than_a_microsecond(scene: &Scene<'_>, cost_micro: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let Ok(outcome) = limit.decide(scene.stored(), Operation::Take { cost_micro }, scene.now_us) else {
        return 9;
    };
    let Change::Store { bucket, .. } = outcome.change else { return OUTSIDE };
    let refilled_micro = bucket.level_micro.wrapping_add(outcome.granted_micro);
    if outcome.decision.allowed == 0 || refilled_micro >= scene.capacity_micro {
        return OUTSIDE;
    }
    let since_us = scene.refilled_at_us.min(scene.now_us);
    let flowed_micro = refilled_micro.wrapping_sub(scene.level_micro.min(scene.capacity_micro));
    verdict(scene.rate.reaches_at_us(since_us, flowed_micro) == bucket.refilled_at_us, 1)
}

/// States [`is_conserved`] for a take.
pub fn take_wins_nothing(scene: &Scene<'_>, cost_micro: i64, later_us: i64) -> Verdict {
    is_conserved(scene, Operation::Take { cost_micro }, later_us)
}

/// States [`is_conserved`] for a call that takes what there is.
pub fn take_up_to_wins_nothing(scene: &Scene<'_>, max_tokens: i64, later_us: i64) -> Verdict {
    is_conserved(scene, Operation::TakeUpTo { max_tokens }, later_us)
}

/// States [`is_conserved`] for a reservation.
pub fn reserve_wins_nothing(scene: &Scene<'_>, cost_micro: i64, max_wait_ms: i64, later_us: i64) -> Verdict {
    is_conserved(scene, Operation::Reserve { cost_micro, max_wait_ms }, later_us)
}

/// States [`is_conserved`] for a charge.
pub fn charge_wins_nothing(scene: &Scene<'_>, amount_micro: i64, later_us: i64) -> Verdict {
    is_conserved(scene, Operation::Charge { amount_micro }, later_us)
}

/// States [`is_conserved`] for a refund.
pub fn give_wins_nothing(scene: &Scene<'_>, amount_micro: i64, later_us: i64) -> Verdict {
    is_conserved(scene, Operation::Give { amount_micro }, later_us)
}

/// States one step of "grants never exceed capacity plus refill plus refunds". A bucket's worth at a later moment is its
/// level, at most the capacity, and what flows until then. The step's grant and the worth after it are at most the worth
/// before it and what was given (1); what is stored is a bucket that loads (2), not above the capacity if the call was
/// allowed (3) and not in the future (4); a take never ends in debt (5); at most a micro-token is lost (6), unless the
/// capacity cuts the level; the outcome counts what the reply grants (7).
#[inline(always)]
fn is_conserved(scene: &Scene<'_>, operation: Operation, later_us: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let before = worth(scene, scene.stored(), later_us);
    if later_us < scene.now_us || before.flow_micro == SATURATED {
        return OUTSIDE;
    }
    let Ok(outcome) = limit.decide(scene.stored(), operation, scene.now_us) else { return HOLDS };
    let (granted_micro, given_micro) = moved(operation, &outcome);
    if outcome.granted_micro != granted_micro {
        return 7;
    }
    let stored = after(scene.stored(), outcome.change);
    let after = worth(scene, stored, later_us).micro().wrapping_add(granted_micro);
    let due = before.micro().wrapping_add(given_micro);
    if after > due {
        return 1;
    }
    if let Change::Store { bucket, .. } = outcome.change {
        if let Some(broken) = keeps_bounds(scene, operation, &outcome, bucket) {
            return broken;
        }
    }
    let current = worth(scene, scene.stored(), scene.now_us);
    let is_cut = current.micro().wrapping_add(given_micro) >= scene.capacity_micro;
    verdict(is_cut || after >= due.wrapping_sub(1), 6)
}

/// Returns what an operation takes out of the bucket by its reply, and what it gives.
#[inline(always)]
fn moved(operation: Operation, outcome: &Outcome) -> (i64, i64) {
    let allowed = outcome.decision.allowed;
    match operation {
        Operation::Take { cost_micro } | Operation::Reserve { cost_micro, .. } if allowed > 0 => {
            (cost_micro, 0)
        }
        Operation::Take { .. } | Operation::Reserve { .. } => (0, 0),
        Operation::TakeUpTo { .. } => (allowed.wrapping_mul(MICRO_PER_TOKEN), 0),
        Operation::Charge { amount_micro } => (amount_micro, 0),
        Operation::Give { amount_micro } => (0, amount_micro),
    }
}

/// Returns the sentence about the stored bucket that is broken, if one is.
#[inline(always)]
fn keeps_bounds(
    scene: &Scene<'_>,
    operation: Operation,
    outcome: &Outcome,
    bucket: Bucket,
) -> Option<Verdict> {
    if Bucket::checked(bucket.level_micro, bucket.refilled_at_us).is_none() {
        return Some(2);
    }
    let is_allowed = outcome.decision.allowed > 0;
    if is_allowed && bucket.level_micro > scene.capacity_micro {
        return Some(3);
    }
    if bucket.refilled_at_us > scene.now_us {
        return Some(4);
    }
    let is_take = matches!(operation, Operation::Take { .. } | Operation::TakeUpTo { .. });
    (is_take && is_allowed && bucket.level_micro < 0).then_some(5)
}

/// What a bucket can grant until a moment, if its capacity never cuts the level.
struct Worth {
    level_micro: i64,
    flow_micro: i64,
}

impl Worth {
    #[inline(always)]
    fn micro(&self) -> i64 {
        self.level_micro.wrapping_add(self.flow_micro)
    }
}

#[inline(always)]
fn worth(scene: &Scene<'_>, stored: Option<Bucket>, later_us: i64) -> Worth {
    let (level_micro, since_us) = match stored {
        Some(bucket) => {
            (bucket.level_micro.min(scene.capacity_micro), bucket.refilled_at_us.min(scene.now_us))
        }
        None => (scene.capacity_micro, scene.now_us),
    };
    Worth { level_micro, flow_micro: scene.rate.flow(since_us, later_us).micro }
}

/// Decides a take, for the theorem that no sum overflows.
pub fn take_overflows_nowhere(scene: &Scene<'_>, cost_micro: i64) -> Verdict {
    decide(scene, Operation::Take { cost_micro })
}

/// Decides a call that takes what there is, for the theorem that no sum overflows.
pub fn take_up_to_overflows_nowhere(scene: &Scene<'_>, max_tokens: i64) -> Verdict {
    decide(scene, Operation::TakeUpTo { max_tokens })
}

/// Decides a reservation, for the theorem that no sum overflows.
pub fn reserve_overflows_nowhere(scene: &Scene<'_>, cost_micro: i64, max_wait_ms: i64) -> Verdict {
    decide(scene, Operation::Reserve { cost_micro, max_wait_ms })
}

/// Decides a charge, for the theorem that no sum overflows.
pub fn charge_overflows_nowhere(scene: &Scene<'_>, amount_micro: i64) -> Verdict {
    decide(scene, Operation::Charge { amount_micro })
}

/// Decides a refund, for the theorem that no sum overflows.
pub fn give_overflows_nowhere(scene: &Scene<'_>, amount_micro: i64) -> Verdict {
    decide(scene, Operation::Give { amount_micro })
}

/// States that a call behind waiting calls is denied, and for a while at least if at all (1), for the theorem that no sum
/// overflows.
pub fn behind_overflows_nowhere(scene: &Scene<'_>, cost_micro: i64, ahead_micro: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let outcome = limit.denied_behind(scene.stored(), NoHolds, cost_micro, ahead_micro, scene.now_us);
    let decision = outcome.decision;
    let is_wait = decision.retry_after_ms == -1 || decision.retry_after_ms >= 1;
    verdict(decision.allowed == 0 && is_wait && decision.retry_after_ms < SATURATED, 1)
}

/// States that a bucket which allows its part of a denied call says so (1), for the theorem that no sum overflows.
pub fn other_overflows_nowhere(scene: &Scene<'_>) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let decision = limit.denied_by_another(scene.stored(), NoHolds, scene.now_us).decision;
    verdict(decision.allowed == 1 && decision.retry_after_ms == 0, 1)
}

/// States that the time to a level is neither negative nor endless (1), for the theorem that no sum overflows.
pub fn wait_overflows_nowhere(scene: &Scene<'_>, level_micro: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let wait_us = limit.wait_us(scene.stored(), level_micro, scene.now_us);
    if wait_us < 0 {
        return 1;
    }
    verdict(wait_us <= SATURATED, 1)
}

/// States that a decision is made (a charge alone may be refused), its grant is not negative, and its waits are within
/// bounds (1).
#[inline(always)]
fn decide(scene: &Scene<'_>, operation: Operation) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let Ok(outcome) = limit.decide(scene.stored(), operation, scene.now_us) else { return HOLDS };
    let decision = outcome.decision;
    let are_waits_bounded = decision.retry_after_ms >= -1
        && decision.retry_after_ms < SATURATED
        && decision.reset_after_ms >= -1
        && decision.reset_after_ms < SATURATED;
    verdict(are_waits_bounded && outcome.granted_micro >= 0, 1)
}
