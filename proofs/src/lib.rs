//! Theorems about the arithmetic of the core, as functions over the real core.
//!
//! Each returns [`HOLDS`], [`OUTSIDE`] its domain, or the number of the sentence that is broken. `make prove` walks every
//! path of them on symbolic numbers, and `core/tests/pure/theorems.rs` calls them with random ones.
//!
//! Two theorems, [`flow`] and [`reaches`], say what a rate does. All others use a rate only through these two sentences,
//! so that they cover every rate for which the two are proved.

use tokenbucket_core::bucket::{Bucket, Change, Limit, NoHolds, Operation, Outcome};
use tokenbucket_core::number::MICRO_PER_TOKEN;
use tokenbucket_core::rate::{Flow, Rate};

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

/// States [`is_conserved`] for a take.
pub fn take_wins_nothing(scene: &Scene<'_>, cost_micro: i64, later_us: i64) -> Verdict {
    is_conserved(scene, Operation::Take { cost_micro }, 0, later_us)
}

/// States [`is_conserved`] for a call that takes what there is.
pub fn take_up_to_wins_nothing(scene: &Scene<'_>, max_tokens: i64, later_us: i64) -> Verdict {
    is_conserved(scene, Operation::TakeUpTo { max_tokens }, 0, later_us)
}

/// States [`is_conserved`] for a reservation.
pub fn reserve_wins_nothing(scene: &Scene<'_>, cost_micro: i64, max_wait_ms: i64, later_us: i64) -> Verdict {
    is_conserved(scene, Operation::Reserve { cost_micro, max_wait_ms }, 0, later_us)
}

/// States [`is_conserved`] for a charge.
pub fn charge_wins_nothing(scene: &Scene<'_>, amount_micro: i64, later_us: i64) -> Verdict {
    is_conserved(scene, Operation::Charge { amount_micro }, 0, later_us)
}

/// States [`is_conserved`] for a refund.
pub fn give_wins_nothing(scene: &Scene<'_>, amount_micro: i64, later_us: i64) -> Verdict {
    is_conserved(scene, Operation::Give { amount_micro }, amount_micro, later_us)
}

/// States one step of "grants never exceed capacity plus refill plus refunds". A bucket's worth at a later moment is its
/// level, at most the capacity, and what flows until then. The step's grant and the worth after it are at most the worth
/// before it and what was given (1); what is stored is a bucket that loads (2), not above the capacity if the call was
/// allowed (3) and not in the future (4); a take never ends in debt (5); at most a micro-token is lost (6), unless the
/// capacity cuts the level.
#[inline(always)]
fn is_conserved(scene: &Scene<'_>, operation: Operation, given_micro: i64, later_us: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let before = worth(scene, scene.stored(), later_us);
    if later_us < scene.now_us || before.flow_micro == SATURATED {
        return OUTSIDE;
    }
    let Ok(outcome) = limit.decide(scene.stored(), operation, scene.now_us) else { return HOLDS };
    let stored = after(scene.stored(), outcome.change);
    let after = worth(scene, stored, later_us).micro().wrapping_add(outcome.granted_micro);
    if after > before.micro().wrapping_add(given_micro) {
        return 1;
    }
    let Change::Store { bucket, .. } = outcome.change else { return HOLDS };
    keeps_bounds(scene, operation, &outcome, bucket).unwrap_or_else(|| {
        let is_cut = bucket.level_micro.wrapping_add(outcome.granted_micro) >= scene.capacity_micro;
        verdict(is_cut || given_micro > 0 || after >= before.micro().wrapping_sub(1), 6)
    })
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

/// Denies a call behind waiting calls, and looks how long the bucket takes to a level, for a property that no sum
/// overflows: it is not proved.
pub fn waiting_overflows_nowhere(scene: &Scene<'_>, cost_micro: i64, ahead_micro: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let behind = limit.denied_behind(scene.stored(), NoHolds, cost_micro, ahead_micro, scene.now_us);
    let other = limit.denied_by_another(scene.stored(), NoHolds, scene.now_us);
    let wait_us = limit.wait_us(scene.stored(), cost_micro, scene.now_us);
    verdict(behind.decision.allowed == 0 && other.decision.allowed == 1 && wait_us >= 0, 1)
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
