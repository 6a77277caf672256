//! Theorems about the arithmetic of the core, as functions over the real core.
//!
//! Each returns [`HOLDS`], [`OUTSIDE`] its domain, or the number of the sentence that is broken. `make prove` walks every
//! path of them on symbolic numbers, and `core/tests/pure/theorems.rs` calls some with random ones.
//!
//! Two theorems, [`flow`] and [`reaches`], say what a rate does. All others use a rate only through these two sentences,
//! so that they cover every rate for which the two are proved.

use tokenbucket_core::bucket::{
    Bucket, Change, Decision, Expiring, Limit, NoHolds, Operation, Outcome, DEEPEST_DEBT_MICRO, MAX_TIME_US,
};
use tokenbucket_core::hold::{Begun, Extension};
use tokenbucket_core::number::{micro_tokens, Rounding, MAX_MICRO, MAX_TOKENS, MICRO_PER_TOKEN};
use tokenbucket_core::plan::Plan;
use tokenbucket_core::rate::{Flow, Rate, CENTURY_S};
use tokenbucket_core::request::{Request, Wanted};

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

/// States [`flow_up`] for `count` tokens in `period_s` seconds.
pub fn flow_up_of_ratio(count: u64, period_s: u64, since_us: i64, until_us: i64) -> Verdict {
    let Some(rate) = Rate::per_seconds(count, period_s) else { return OUTSIDE };
    flow_up(&rate, count.into(), period_s.into(), since_us, until_us)
}

/// States that a flow rounded up is rate times time, rounded up to whole micro-tokens, for a rate of
/// `numerator / denominator`: nothing flows backwards (1); micro-tokens and carry are within bounds (2); a product beyond
/// 128 bits saturates (3); no product that counts leaves 128 bits (4); it is not less than rate times time (5), and less
/// than a micro-token more (6); the carry is how long what was added takes to flow, in whole microseconds (7).
pub fn flow_up(rate: &Rate, numerator: u128, denominator: u128, since_us: i64, until_us: i64) -> Verdict {
    let Flow { micro, carry_us } = rate.flow_up(since_us, until_us);
    if until_us <= since_us {
        return verdict(micro == 0 && carry_us == 0, 1);
    }
    if micro < 0 || carry_us < 0 {
        return 2;
    }
    if micro > SATURATED || carry_us > SATURATED {
        return 2;
    }
    let Some(due) = wide(until_us.wrapping_sub(since_us)).checked_mul(numerator) else {
        return verdict(micro == SATURATED && carry_us == 0, 3);
    };
    if micro == SATURATED {
        return HOLDS;
    }
    let Some(whole) = wide(micro).checked_mul(denominator) else { return 4 };
    let Some(carried) = wide(carry_us).checked_mul(numerator) else { return 4 };
    if whole < due {
        return 5;
    }
    let added = whole.wrapping_sub(due);
    if added >= denominator {
        return 6;
    }
    verdict(carried <= added && added.wrapping_sub(carried) < numerator, 7)
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
#[derive(Clone, Copy, Debug)]
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
    /// What holds do, for the theorems about any holds.
    pub holds: AnyHolds,
}

/// Any holds, by what a call asks of them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AnyHolds {
    /// What those that have ended bring: 0 to 2^61.
    pub returned_micro: i64,
    /// When the last one ends.
    pub last_end_us: i64,
}

impl Expiring for AnyHolds {
    #[inline(always)]
    fn returned_micro(self, _since_us: i64, _now_us: i64) -> i64 {
        self.returned_micro
    }

    #[inline(always)]
    fn last_end_us(self) -> i64 {
        self.last_end_us
    }

    /// Any moment will do, which is what the runner puts in its place.
    fn reaches_at_us(self, rate: &Rate, bucket: Bucket, included_until_us: i64, level_micro: i64) -> i64 {
        NoHolds.reaches_at_us(rate, bucket, included_until_us, level_micro)
    }
}

impl Scene<'_> {
    #[inline(always)]
    fn limit(&self) -> Option<Limit> {
        Limit::new(self.capacity_micro, *self.rate)
    }

    #[inline(always)]
    fn any_limit(&self) -> Option<Limit> {
        let of_nothing = || match *self.rate {
            Rate::POOL => Some(Limit::pool(self.capacity_micro)),
            Rate::NOTHING => Some(Limit::stopped(self.capacity_micro)),
            _ => None,
        };
        self.limit().or_else(of_nothing)
    }

    #[inline(always)]
    fn stepped_back(&self) -> bool {
        self.is_stored && self.refilled_at_us > self.now_us
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
    if then_us > MAX_TIME_US || early_us > wait_ms.wrapping_mul(1000) {
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

/// States one step of "grants never exceed capacity plus refill plus refunds", for any holds. A bucket's worth at a later
/// moment is its level, at most the capacity, what flows until then, and what the holds that have ended bring, until a
/// level is stored that includes it. The step's grant and the worth after it are at most the worth before it and what was
/// given (1); what is stored is a bucket that loads (2), not above the capacity if the call was allowed (3) and not in the
/// future (4); a take never ends in debt (5); at most a micro-token is lost (6), unless the capacity cuts the level; the
/// outcome counts what the reply grants (7).
#[inline(always)]
fn is_conserved(scene: &Scene<'_>, operation: Operation, later_us: i64) -> Verdict {
    let Some(limit) = scene.any_limit() else { return OUTSIDE };
    let before = worth(scene, scene.stored(), later_us);
    if later_us < scene.now_us || before.flow_micro == SATURATED {
        return OUTSIDE;
    }
    let AnyHolds { returned_micro, .. } = scene.holds;
    let Ok(outcome) = limit.decide_with(scene.stored(), scene.holds, operation, scene.now_us) else {
        return HOLDS;
    };
    let (granted_micro, given_micro) = moved(operation, &outcome);
    if outcome.granted_micro != granted_micro {
        return 7;
    }
    let stored = after(scene.stored(), outcome.change);
    let not_included_micro = if matches!(outcome.change, Change::Keep) { returned_micro } else { 0 };
    let after =
        worth(scene, stored, later_us).micro().wrapping_add(granted_micro).wrapping_add(not_included_micro);
    let due = before.micro().wrapping_add(given_micro).wrapping_add(returned_micro);
    if after > due {
        return 1;
    }
    if let Change::Store { bucket, .. } = outcome.change {
        if let Some(broken) = keeps_bounds(scene, operation, &outcome, bucket) {
            return broken;
        }
    }
    let current = worth(scene, scene.stored(), scene.now_us);
    let is_cut =
        current.micro().wrapping_add(returned_micro).wrapping_add(given_micro) >= scene.capacity_micro;
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
    let Some(limit) = scene.any_limit() else { return OUTSIDE };
    let outcome = limit.denied_behind(scene.stored(), scene.holds, cost_micro, ahead_micro, scene.now_us);
    let decision = outcome.decision;
    let is_wait = decision.retry_after_ms == -1 || decision.retry_after_ms >= 1;
    verdict(decision.allowed == 0 && is_wait && decision.retry_after_ms < SATURATED, 1)
}

/// States that a bucket which allows its part of a denied call says so (1), for the theorem that no sum overflows.
pub fn other_overflows_nowhere(scene: &Scene<'_>) -> Verdict {
    let Some(limit) = scene.any_limit() else { return OUTSIDE };
    let decision = limit.denied_by_another(scene.stored(), scene.holds, scene.now_us).decision;
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

/// States that the time to a level is the first microsecond that suffices, unless the clock stepped back: see [`is_first`].
pub fn wait_is_the_first_that_suffices(scene: &Scene<'_>, level_micro: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    if scene.stepped_back() || level_micro > scene.capacity_micro {
        return OUTSIDE;
    }
    let wait_us = limit.wait_us(scene.stored(), level_micro, scene.now_us);
    is_first(scene, scene.stored(), level_micro, wait_us, 1)
}

/// States that a bucket is full `reset_after_ms` after a take and not a millisecond earlier, unless the clock stepped back: see
/// [`is_first`].
pub fn reset_is_honest(scene: &Scene<'_>, cost_micro: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    if scene.stepped_back() {
        return OUTSIDE;
    }
    let take = Operation::Take { cost_micro };
    let Ok(outcome) = limit.decide(scene.stored(), take, scene.now_us) else { return 9 };
    let stored = after(scene.stored(), outcome.change);
    let wait_us = outcome.decision.reset_after_ms.wrapping_mul(1000);
    is_first(scene, stored, scene.capacity_micro, wait_us, 1000)
}

/// States that a take of a level is allowed after a wait (1), and denied `early_us` before that if there is a wait (2).
#[inline(always)]
fn is_first(
    scene: &Scene<'_>,
    stored: Option<Bucket>,
    level_micro: i64,
    wait_us: i64,
    early_us: i64,
) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let then_us = scene.now_us.wrapping_add(wait_us);
    if then_us > MAX_TIME_US {
        return OUTSIDE;
    }
    let take = Operation::Take { cost_micro: level_micro };
    let Ok(then) = limit.decide(stored, take, then_us) else { return 9 };
    if then.decision.allowed == 0 {
        return 1;
    }
    if wait_us == 0 {
        return HOLDS;
    }
    let Ok(earlier) = limit.decide(stored, take, then_us.wrapping_sub(early_us)) else { return 9 };
    verdict(earlier.decision.allowed == 0, 2)
}

/// States that a charge is paid off `retry_after_ms` later (1) and not a millisecond earlier (2).
pub fn charge_waits_honestly(scene: &Scene<'_>, amount_micro: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let charge = Operation::Charge { amount_micro };
    let Ok(Outcome { decision, change, .. }) = limit.decide(scene.stored(), charge, scene.now_us) else {
        return OUTSIDE;
    };
    let Change::Store { bucket, .. } = change else { return OUTSIDE };
    let wait_us = decision.retry_after_ms.wrapping_mul(1000);
    let then_us = scene.now_us.wrapping_add(wait_us);
    if then_us > MAX_TIME_US {
        return OUTSIDE;
    }
    let look = Operation::Take { cost_micro: 0 };
    let Ok(then) = limit.decide(Some(bucket), look, then_us) else { return 9 };
    if then.decision.remaining < 0 {
        return 1;
    }
    if wait_us == 0 {
        return HOLDS;
    }
    let Ok(earlier) = limit.decide(Some(bucket), look, then_us.wrapping_sub(1000)) else { return 9 };
    verdict(earlier.decision.remaining < 0, 2)
}

/// States of the bucket that will be full at `full_at_us`: it loads, is at most full and not of the future (1); it is not
/// full earlier, unless its debt would be too deep (2), and at most a microsecond later, unless it would be of a moment
/// before 1970 (3). For the theorem that no sum overflows, too.
pub fn bucket_is_full_at(scene: &Scene<'_>, full_at_us: i64) -> Verdict {
    let Some(limit) = scene.limit() else { return OUTSIDE };
    let Bucket { level_micro, refilled_at_us } = limit.bucket_full_at(full_at_us, scene.now_us);
    if Bucket::checked(level_micro, refilled_at_us).is_none() || level_micro > scene.capacity_micro {
        return 1;
    }
    if refilled_at_us > scene.now_us {
        return 1;
    }
    if full_at_us <= scene.now_us {
        return verdict(level_micro == scene.capacity_micro, 2);
    }
    let missing_micro = scene.capacity_micro.wrapping_sub(level_micro);
    let found_us = scene.rate.reaches_at_us(refilled_at_us, missing_micro);
    if level_micro == DEEPEST_DEBT_MICRO {
        return HOLDS;
    }
    if found_us < full_at_us {
        return 2;
    }
    verdict(refilled_at_us == 0 || found_us <= full_at_us.wrapping_add(1), 3)
}

/// States of an override by another limit from the moment of the scene on, under which no call comes: at its end the bucket is
/// one that loads, of that moment (1). A bucket that was full by the limit of the calls, or that the override `fills`, is full
/// by it, and what was above comes back (2); above its capacity, nothing flowed in (3); else what flowed in by its rate, up to
/// its capacity, and no level is less than it was (4).
pub fn ended_override_leaves_its_flow(
    scene: &Scene<'_>,
    rate: &Rate,
    capacity_micro: i64,
    fills: bool,
    end_us: i64,
) -> Verdict {
    let Some(own) = scene.limit() else { return OUTSIDE };
    let (Some(stored), Some(other)) = (scene.stored(), Limit::new(capacity_micro, *rate)) else {
        return OUTSIDE;
    };
    if end_us < scene.now_us {
        return OUTSIDE;
    }
    let before_micro = worth(scene, Some(stored), scene.now_us).micro().min(scene.capacity_micro);
    let flow_micro = rate.flow(scene.now_us, end_us).micro;
    let begun = Begun::new(&own, (stored, 0), (&other, fills), scene.now_us);
    let Bucket { level_micro, refilled_at_us } = begun.after(&other, 0, end_us);
    if Bucket::checked(level_micro, refilled_at_us).is_none() || refilled_at_us != end_us {
        return 1;
    }
    if fills || before_micro == scene.capacity_micro {
        return verdict(level_micro == before_micro.max(capacity_micro), 2);
    }
    if before_micro >= capacity_micro {
        return verdict(level_micro == before_micro, 3);
    }
    let due_micro = before_micro.wrapping_add(flow_micro).min(capacity_micro);
    verdict(level_micro == due_micro && level_micro >= before_micro, 4)
}

/// States that a decision is made (a charge alone may be refused), its grant is not negative, and its waits are within
/// bounds (1).
#[inline(always)]
fn decide(scene: &Scene<'_>, operation: Operation) -> Verdict {
    let Some(limit) = scene.any_limit() else { return OUTSIDE };
    let Ok(outcome) = limit.decide_with(scene.stored(), scene.holds, operation, scene.now_us) else {
        return HOLDS;
    };
    let decision = outcome.decision;
    let are_waits_bounded = decision.retry_after_ms >= -1
        && decision.retry_after_ms < SATURATED
        && decision.reset_after_ms >= -1
        && decision.reset_after_ms < SATURATED;
    verdict(are_waits_bounded && outcome.granted_micro >= 0, 1)
}

/// States of setting the hold `id` to `amount_micro`, whether it is new, renewed or given up: nothing to give up changes
/// nothing (1); a denial wants more than there is, more than is held, and leaves a bucket that loads (2); a hold takes the
/// difference to what it had (3), leaves a bucket that loads and is at most full (4), gives back at once what it no longer
/// needs (5), and never takes into debt (6). For the theorem that no sum overflows, too.
pub fn hold_takes_the_difference(
    scene: &Scene<'_>,
    extension: &mut Extension,
    id: &[u8],
    amount_micro: i64,
) -> Verdict {
    let Some(limit) = scene.any_limit() else { return OUTSIDE };
    let held = extension.holds.outstanding_of(id, scene.now_us).map(|hold| hold.amount_micro);
    let lacking_micro = amount_micro.wrapping_sub(held.unwrap_or(0));
    let before_micro = level_with_ended(scene, extension);
    let wanted = Wanted::Hold { id, amount_micro, ttl_ms: 1 };
    let request = Request { key: id, limit, wanted };
    match request.plan(scene.stored(), Some(extension), usize::MAX, scene.now_us) {
        Err(_) => 2,
        Ok(Plan::Outcome(Outcome { decision, change, .. })) => {
            if decision.allowed > 0 {
                return verdict(amount_micro == 0 && held.is_none() && matches!(change, Change::Keep), 1);
            }
            if lacking_micro <= 0 || lacking_micro <= before_micro || decision.retry_after_ms < -1 {
                return 2;
            }
            let Change::Store { bucket, .. } = change else {
                return verdict(matches!(change, Change::Keep), 2);
            };
            verdict(Bucket::checked(bucket.level_micro, bucket.refilled_at_us).is_some(), 2)
        }
        Ok(Plan::Hold { bucket, taken_micro, .. }) => {
            if taken_micro != lacking_micro {
                return 3;
            }
            if taken_micro > 0 && bucket.level_micro < 0 {
                return 6;
            }
            gives_back(scene, bucket, before_micro.wrapping_sub(taken_micro))
        }
    }
}

/// States of ending the hold `id`, of which `used_micro` were used: what is not there cannot be ended, and changes nothing
/// (1); an error means that the debt would be too deep (2); it takes the difference to what was held (3), leaves a bucket
/// that loads and is at most full (4), and gives back at once what was not used (5). For the theorem that no sum overflows,
/// too.
pub fn settle_gives_back(
    scene: &Scene<'_>,
    extension: &mut Extension,
    id: &[u8],
    used_micro: i64,
) -> Verdict {
    let Some(limit) = scene.any_limit() else { return OUTSIDE };
    let held = extension.holds.outstanding_of(id, scene.now_us).map(|hold| hold.amount_micro);
    let before_micro = level_with_ended(scene, extension);
    let request = Request { key: id, limit, wanted: Wanted::Settle { id, used_micro } };
    let settled = request.plan(scene.stored(), Some(extension), usize::MAX, scene.now_us);
    let Some(held_micro) = held else {
        let Ok(Plan::Outcome(Outcome { decision, change, .. })) = settled else { return 1 };
        return verdict(decision.allowed == 0 && matches!(change, Change::Keep), 1);
    };
    let due_micro = used_micro.wrapping_sub(held_micro);
    match settled {
        Err(_) => verdict(before_micro.wrapping_sub(due_micro) < DEEPEST_DEBT_MICRO, 2),
        Ok(Plan::Outcome(_)) => 1,
        Ok(Plan::Hold { taken_micro, .. }) if taken_micro != due_micro => 3,
        Ok(Plan::Hold { bucket, .. }) => gives_back(scene, bucket, before_micro.wrapping_sub(due_micro)),
    }
}

#[inline(always)]
fn gives_back(scene: &Scene<'_>, bucket: Bucket, due_micro: i64) -> Verdict {
    let is_one = Bucket::checked(bucket.level_micro, bucket.refilled_at_us).is_some();
    if !is_one || bucket.level_micro > scene.capacity_micro || bucket.refilled_at_us > scene.now_us {
        return 4;
    }
    verdict(bucket.level_micro == due_micro.min(scene.capacity_micro), 5)
}

/// Returns the level at the moment of the call, with what the holds that have ended bring.
#[inline(always)]
fn level_with_ended(scene: &Scene<'_>, extension: &Extension) -> i64 {
    if scene.any_limit().is_some_and(|limit| limit.is_pool()) {
        return extension.holds.free_micro(scene.capacity_micro, scene.now_us);
    }
    let current = worth(scene, scene.stored(), scene.now_us).micro();
    current.wrapping_add(extension.returned_micro(i64::MIN, scene.now_us)).min(scene.capacity_micro)
}

/// States the reply to a hold that was set or ended: it is allowed and counts what it took (1); nothing is stored of a full
/// bucket if no hold has still to end, and else the bucket is (2); its waits are within bounds (3). For the theorem that no
/// sum overflows, too.
pub fn hold_is_replied(scene: &Scene<'_>, extension: &Extension, taken_micro: i64) -> Verdict {
    let Some(limit) = scene.any_limit() else { return OUTSIDE };
    let bucket = Bucket { level_micro: scene.level_micro, refilled_at_us: scene.refilled_at_us };
    if bucket.level_micro > scene.capacity_micro || bucket.refilled_at_us > scene.now_us {
        return OUTSIDE;
    }
    let none: &[u8] = b"";
    let request = Request { key: none, limit, wanted: Wanted::Settle { id: none, used_micro: 0 } };
    let Outcome { decision, change, granted_micro } =
        request.outcome_of_hold(extension, bucket, taken_micro, scene.now_us);
    if decision.allowed != 1 || granted_micro != taken_micro.max(0) {
        return 1;
    }
    let has_none = extension.last_end_us() <= scene.now_us;
    let is_gone = has_none && bucket.level_micro == scene.capacity_micro;
    let is_right = match change {
        Change::Store { bucket: stored, full_at_us } => {
            stored.level_micro == bucket.level_micro && full_at_us >= extension.last_end_us() && !is_gone
        }
        Change::Clear => is_gone,
        Change::Keep => false,
    };
    if !is_right {
        return 2;
    }
    verdict(decision.retry_after_ms >= -1 && decision.reset_after_ms >= -1, 3)
}

/// States that bytes are read as the amount of `micro` that their digits say, however it is rounded (1).
pub fn amount_is_read(bytes: &[u8], micro: i64) -> Verdict {
    let is_read = |rounding| micro_tokens(bytes, rounding) == Some(micro);
    verdict(is_read(Rounding::Down) && is_read(Rounding::Up), 1)
}

/// States two sentences about an amount in any spelling. It is within bounds, and rounding up adds a micro-token at most (1).
/// If only the amount that is rounded down is within bounds, it is the largest; both are refused together otherwise (2).
pub fn amount_is_within_bounds(bytes: &[u8]) -> Verdict {
    match (micro_tokens(bytes, Rounding::Down), micro_tokens(bytes, Rounding::Up)) {
        (Some(down), Some(up)) if down < 0 || up < down => 1,
        (Some(down), Some(up)) => verdict(up <= MAX_MICRO && up.wrapping_sub(down) <= 1, 1),
        (Some(down), None) => verdict(down == MAX_MICRO, 2),
        (None, up) => verdict(up.is_none(), 2),
    }
}

/// States of the reply to a call on two buckets: it allows and leaves the smaller number (1), and its waits are the longer
/// ones, without end if one of them is (2).
pub fn tightest_binds(one: &Decision, other: &Decision) -> Verdict {
    let binding = Decision::binding([one, other].iter().map(|decision| **decision));
    if binding.allowed != one.allowed.min(other.allowed)
        || binding.remaining != one.remaining.min(other.remaining)
    {
        return 1;
    }
    let is_longer = |wait_ms: i64, one_ms: i64, other_ms: i64| {
        let is_endless = one_ms < 0 || other_ms < 0;
        wait_ms == if is_endless { -1 } else { one_ms.max(other_ms) }
    };
    let is_right = is_longer(binding.retry_after_ms, one.retry_after_ms, other.retry_after_ms)
        && is_longer(binding.reset_after_ms, one.reset_after_ms, other.reset_after_ms);
    verdict(is_right, 2)
}
