//! What the contract says that a bucket replies.

use crate::common::model::{whole, Exact, ExactLimit, Wish};
use crate::common::Decision;
use num_traits::{Signed, ToPrimitive};

/// What a bucket that holds `level` replies.
pub fn foretell(limit: &ExactLimit, wish: &Wish, level: &Exact) -> Decision {
    let wait = |wanted: &Exact| wait_ms(limit, wanted, level);
    let (allowed, taken, retry_after_ms) = match wish {
        Wish::Take(cost) if cost <= level => (1, cost.clone(), 0),
        Wish::Take(cost) => (0, whole(0), wait(cost)),
        Wish::TakeUpTo(max) => {
            let granted = whole_tokens(level).min(*max).max(0);
            (granted, whole(granted), if granted > 0 { 0 } else { wait(&whole(1)) })
        }
        Wish::Reserve(cost, max_wait_ms) => {
            let wait_ms = wait(cost);
            let granted = (0..=*max_wait_ms).contains(&wait_ms);
            (i64::from(granted), if granted { cost.clone() } else { whole(0) }, wait_ms)
        }
        Wish::Charge(amount) => (1, amount.clone(), wait_ms(limit, &whole(0), &(level - amount))),
        Wish::Give(amount) => (1, -amount.clone(), 0),
    };
    let after = (level - taken).min(limit.capacity.clone());
    Decision {
        allowed,
        remaining: whole_tokens(&after),
        retry_after_ms,
        reset_after_ms: wait_ms(limit, &limit.capacity, &after),
    }
}

/// Milliseconds until the level is what is wanted, -1 if it never is.
fn wait_ms(limit: &ExactLimit, wanted: &Exact, level: &Exact) -> i64 {
    if *wanted > limit.capacity {
        return -1;
    }
    let wait = limit.time_us(&(wanted - level)) / whole(1000);
    wait.ceil().to_integer().to_i64().unwrap_or(i64::MAX)
}

/// Whether a wish that is answered like this leaves less in the bucket.
pub fn takes(wish: &Wish, told: Decision) -> bool {
    told.allowed != 0
        && match wish {
            Wish::Take(amount) | Wish::Reserve(amount, _) | Wish::Charge(amount) => amount.is_positive(),
            Wish::TakeUpTo(_) => true,
            Wish::Give(_) => false,
        }
}

/// Tokens that can be taken, rounded down; negative in debt.
pub fn whole_tokens(level: &Exact) -> i64 {
    level.floor().to_integer().to_i64().unwrap()
}
