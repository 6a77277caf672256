//! The algorithm against a naive bucket in exact arithmetic (`oracle/bucket.rs`), for any sequence of calls, limits and
//! times that a server can see.
//!
//! Where a rate is a whole number of tokens per second, every reply and every stored bucket has to be the exact one,
//! for ever. Elsewhere the module may hold less than the model, by what the contract allows it to lose, and never
//! more.

mod expiry;
mod gives;
mod long_run;
mod one_call;
#[path = "../oracle/mod.rs"]
mod oracle;
mod scenario;
mod sequences;
mod settings;
mod waits;

use oracle::bucket::TOKEN;
use oracle::module::Worded;
use proptest::prelude::*;
use scenario::Step;
use tokenbucket::bucket::{DebtTooDeep, Limit, Operation, Outcome, MAX_TIME_US};
use tokenbucket::number::Rate;

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
