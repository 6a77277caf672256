//! The algorithm against a naive bucket in exact arithmetic (`model/exact.rs`), for any sequence of calls, limits and
//! times that a server can see.
//!
//! Where a rate is a whole number of tokens per second, every reply and every stored bucket has to be the exact one,
//! for ever. Elsewhere the module may hold less than the model, by what the contract allows it to lose, and never
//! more.

#[path = "model/exact.rs"]
#[allow(dead_code)] // The fuzz targets use the model too, and more of it.
mod exact;
#[path = "model/expiry.rs"]
mod expiry;
#[path = "model/gives.rs"]
mod gives;
#[path = "model/judge.rs"]
mod judge;
#[path = "model/long_run.rs"]
mod long_run;
#[path = "model/one_call.rs"]
mod one_call;
#[path = "model/scenario.rs"]
mod scenario;
#[path = "model/sequences.rs"]
mod sequences;
#[path = "model/settings.rs"]
mod settings;
#[path = "model/waits.rs"]
mod waits;

use exact::{Exact, TOKEN};
use proptest::prelude::*;
use scenario::{Found, Step, Worded};
use tokenbucket::bucket::{Bucket, DebtTooDeep, Limit, Operation, Outcome, MAX_TIME_US};
use tokenbucket::number::Rate;

/// Where a time is computed from what a write left: less than a microsecond's flow was lost, and the moment itself is
/// a whole microsecond.
const LATE_US: i64 = 2;

fn config(times: u32) -> ProptestConfig {
    settings::cases("proptest-regressions/model.txt", times)
}

fn limit(capacity: i64, rate: &str) -> Limit {
    Limit::new(capacity * TOKEN, Rate::parse(rate.as_bytes()).unwrap()).unwrap()
}

fn take(tokens: i64) -> Operation {
    Operation::Take { cost_micro: tokens * TOKEN }
}

/// Walks a sequence: at each step, the limit, the operation and the time.
fn walk(
    limits: &[Worded],
    start_us: i64,
    steps: &[Step],
    mut call: impl FnMut(&Worded, Operation, i64) -> Result<i64, TestCaseError>,
) -> Result<(), TestCaseError> {
    let (mut now_us, mut told_ms) = (start_us, 0);
    for step in steps {
        let limit = step.limit.get(limits);
        now_us = step.tick.after(now_us, limit, told_ms);
        told_ms = call(limit, step.wish.of(limit, told_ms), now_us)?;
    }
    Ok(())
}

/// How long the reply of a call told to wait; nothing if it was refused.
fn told_ms(outcome: Result<Outcome, DebtTooDeep>) -> i64 {
    outcome.map_or(0, |outcome| outcome.decision.retry_after_ms)
}

/// So many milliseconds later, if that is a time that any clock shows.
fn after_ms(now_us: i64, wait_ms: i64) -> Option<i64> {
    now_us.checked_add(wait_ms.checked_mul(1000)?).filter(|then_us| *then_us <= MAX_TIME_US)
}

/// What a stored bucket holds, without a rounding.
fn exact_level(stored: Option<Bucket>, limit: &Worded, now_us: i64) -> Exact {
    Found { stored, now_us }.exact().level(&limit.exact, now_us)
}
