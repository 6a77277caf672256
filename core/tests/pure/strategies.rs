//! What may be wanted of a bucket: limits, calls, and the time between them; and damaged bytes. Properties of the pure code
//! try it, and tests of servers draw from the same by `Random::draw`.

use super::model::operation::LONGEST_WAIT_MS;
use super::model::{HoldOperation, Limit, Operation, MILLION};
use proptest::prelude::*;
use proptest::sample::{select, Index};
use tokenbucket_core::bucket::MAX_TIME_US;
use tokenbucket_core::expiry::MAX_EXPIRE_AT_MS;
use tokenbucket_core::number::{MAX_MICRO, MAX_TOKENS};

const DAY_US: i64 = 86_400_000_000;

/// Numbers of all sizes from 0 to `most`.
pub fn spread(most: i64) -> impl Strategy<Value = i64> + Clone {
    let bits = 64 - most.leading_zeros();
    (0..=bits, any::<u64>()).prop_map(move |(bits, random)| {
        let mask = 1u64.checked_shl(bits).map_or(u64::MAX, |bit| bit - 1);
        i64::try_from(random & mask).unwrap_or(most).min(most)
    })
}

/// Usual capacities in micro-tokens, and all up to the largest.
pub fn limits(most_micro: i64, rates: impl Strategy<Value = String>) -> impl Strategy<Value = Limit> {
    let capacities = prop_oneof![
        4 => (1..=20i64).prop_map(|tokens| tokens * MILLION),
        4 => spread(most_micro),
        1 => select(vec![0, 1, MILLION - 1, MILLION + 1, most_micro]),
    ];
    (capacities, rates).prop_map(|(capacity_micro, rate)| Limit::of_micro(capacity_micro, &rate))
}

/// Micro-tokens near what matters to a limit: a few tokens, a share of the capacity, all of it, and next to that.
pub fn amounts(limit: &Limit) -> impl Strategy<Value = i64> + Clone {
    let capacity_micro = limit.capacity_micro();
    prop_oneof![
        4 => (0..=3i64).prop_map(|tokens| tokens * MILLION),
        4 => 0..=capacity_micro,
        1 => (-1..=1i64).prop_map(move |off_by| (capacity_micro + off_by).clamp(0, MAX_MICRO)),
    ]
}

/// All that can be wanted of a bucket.
pub fn operations(
    limit: &Limit,
    amounts: impl Strategy<Value = i64> + Clone,
) -> impl Strategy<Value = Operation> {
    let up_to = prop_oneof![1..=5i64, spread(MAX_TOKENS)];
    let patience = prop_oneof![spread(LONGEST_WAIT_MS), 0..=limit.refill_us() / 500];
    let reserves = (amounts.clone(), patience.prop_map(|ms| ms.min(LONGEST_WAIT_MS)));
    prop_oneof![
        4 => amounts.clone().prop_map(|cost_micro| Operation::Take { cost_micro }),
        2 => up_to.prop_map(|max_tokens| Operation::TakeUpTo { max_tokens: max_tokens.max(1) }),
        2 => reserves.prop_map(|(cost_micro, max_wait_ms)| Operation::Reserve { cost_micro, max_wait_ms }),
        1 => amounts.clone().prop_map(|amount_micro| Operation::Charge { amount_micro }),
        2 => amounts.prop_map(|amount_micro| Operation::Give { amount_micro }),
    ]
}

/// All that can be wanted of a few holds.
pub fn hold_operations(
    limit: &Limit,
    amounts: impl Strategy<Value = i64> + Clone,
) -> impl Strategy<Value = HoldOperation> {
    let is_pool = limit.is_pool();
    let times_ms = prop_oneof![1 => Just(1), 3 => 1..=limit.refill_us().clamp(2, DAY_US) / 1000 + 2];
    let ids = (0..9u8).prop_map(|number| format!("hold:{number}"));
    (ids, amounts, prop::option::weighted(0.7, times_ms), prop::bool::weighted(0.2)).prop_map(
        move |(id, micro, time_ms, renews)| match time_ms {
            Some(ttl_ms) if renews => HoldOperation::Renew { id, ttl_ms },
            Some(ttl_ms) => HoldOperation::Set { id, amount_micro: micro, ttl_ms },
            None => HoldOperation::Settle { id, used_micro: if is_pool { 0 } else { micro } },
        },
    )
}

/// Times in which something can happen under a limit, in microseconds.
pub fn pauses_us(limit: &Limit) -> impl Strategy<Value = i64> {
    prop_oneof![
        2 => Just(0),
        // Replies are rounded to milliseconds: those are where they may go wrong.
        4 => spread(100_000).prop_map(|ms| ms * 1000),
        4 => spread(10_000_000),
        1 => spread(MAX_TIME_US),
        4 => 0..=limit.refill_us() / 2 * 3,
    ]
}

/// Numbers around every bound of what is stored.
pub fn near_bounds() -> impl Strategy<Value = i64> + Clone {
    let edges = [i64::MIN, -MAX_MICRO, 0, 1 << 60, MAX_EXPIRE_AT_MS, MAX_MICRO, MAX_TIME_US, i64::MAX];
    prop_oneof![
        3 => (select(edges.to_vec()), -2..=2i64).prop_map(|(edge, off_by)| edge.saturating_add(off_by)),
        1 => any::<i64>(),
    ]
}

/// A byte of them changed, left out, put in or doubled, or all behind it left out.
pub fn damaged(
    bytes: impl Strategy<Value = Vec<u8>>,
    others: impl Strategy<Value = u8>,
) -> impl Strategy<Value = Vec<u8>> {
    (bytes, any::<Index>(), others, 0..5u8).prop_map(|(mut bytes, index, other, how)| {
        let at = index.index(bytes.len());
        match how {
            0 => bytes[at] = other,
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, other),
            3 => bytes.insert(at, bytes[at]),
            _ => bytes.truncate(at),
        }
        bytes
    })
}
