//! Decisions as a client sees them, on a clock that the test moves. The arithmetic itself is judged in `core/tests/pure`;
//! what is judged here by the exact model is that it arrives, and what is spelled out is what has no other place.

use super::stories::play_all;
use crate::common::clock::START_US;
use crate::common::judged_calls::{self, JudgedCalls};
use crate::common::model::call::Wanted;
use crate::common::model::{Limit, Operation};
use crate::common::{Decision, Random, Server};
use std::ops::Range;
use tokenbucket_core::request::MAX_TTL_MS;

#[test]
fn stories_of_decisions() {
    play_all(include_str!("stories/decisions.txt"));
}

#[test]
fn stories_of_overrides() {
    play_all(include_str!("stories/overrides.txt"));
}

#[test]
fn no_token_is_lost_or_won_under_any_limit_by_any_mixture_of_calls() {
    judge_any_calls(&Server::with_clock(), JudgedCalls::new, 0..9, any_limit);
}

pub fn any_limit(random: &mut Random) -> Limit {
    judged_calls::limit(random, judged_calls::RATES)
}

/// Any call of any limit, in some kinds of walks on holds too, while limits change, or while the clock steps back: each
/// judged by the exact model. A denied take is allowed when it was told, and not a millisecond before.
pub fn judge_any_calls<'a>(
    server: &'a Server,
    walk: fn(&'a Server, u64) -> JudgedCalls<'a>,
    kinds: Range<u64>,
    any_limit: fn(&mut Random) -> Limit,
) {
    const WALKS_OF_A_KIND: u64 = 35;
    const CALLS: u64 = 40;
    let mut random = Random::new(3);
    for (number, kind) in (0..WALKS_OF_A_KIND).flat_map(|_| kinds.clone()).enumerate() {
        server.clock().set_us(START_US);
        let (is_pool, has_holds, changes_limits) = (matches!(kind, 0 | 8), kind < 3, kind > 5);
        let any_limit = |random: &mut Random| match is_pool {
            true => Limit::pool(&random.between(0, 20).to_string()),
            false => any_limit(random),
        };
        let mut limit = any_limit(&mut random);
        let mut walk = walk(server, number as u64);
        for _ in 0..CALLS {
            if (changes_limits || is_pool) && random.once_in(4) {
                limit = any_limit(&mut random);
            }
            let hold_operation = judged_calls::any_hold_operation(&mut random, &limit);
            let operation = match is_pool {
                true => judged_calls::take(&mut random, &limit),
                false => judged_calls::any_operation(&mut random, &limit),
            };
            let is_of_hold = is_pool || has_holds && random.once_in(2);
            let wanted: Wanted = if is_of_hold { (&hold_operation).into() } else { operation.into() };
            if changes_limits && walk.has_overrides() && random.once_in(8) {
                let ttl_ms = judged_calls::pause_us(&mut random, &limit) / 1000;
                let ttl_ms = if random.once_in(3) { 0 } else { ttl_ms.clamp(1, MAX_TTL_MS) };
                let limit = any_limit(&mut random).times(random.between(0, 2));
                let fills = random.once_in(2) && ttl_ms > 0 && limit.capacity_micro() > 0;
                walk.call(&limit, Wanted::Override { ttl_ms, fills });
            }
            let mut call = || walk.call(&limit, wanted);
            let told = call();
            // Under another limit the key may go before, and be full.
            let is_promised = told.allowed == 0 && told.retry_after_ms > 0 && !changes_limits;
            let is_take = matches!(operation, Operation::Take { .. });
            if is_promised && (is_of_hold || is_take) && random.once_in(2) {
                let shown = format!("{told:?} of {}, {wanted:?}", limit.words);
                retry(server, told.retry_after_ms, call, &shown);
            }
            let pause_us = judged_calls::pause_us(&mut random, &limit);
            let steps_back = (has_holds && random.once_in(12)) || (changes_limits && random.once_in(6));
            // No further than to 1970.
            let steps_back = steps_back && pause_us < server.clock().now_us();
            server.clock().advance_us(if steps_back { -pause_us } else { pause_us });
        }
    }
}

/// Waits as told: the same call is denied one millisecond before, and allowed then.
fn retry(server: &Server, wait_ms: i64, mut again: impl FnMut() -> Decision, told: &str) {
    server.clock().advance_ms(wait_ms - 1);
    let early = again();
    assert_eq!((early.allowed, early.retry_after_ms), (0, 1), "1 ms before {told}");
    server.clock().advance_ms(1);
    assert_eq!(again().allowed, 1, "after {told}");
}
