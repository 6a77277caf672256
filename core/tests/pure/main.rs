//! The core against the exact model (`core/tests/model`): the algorithm for any sequence of calls, limits and times that a
//! server can see, and the reading of what clients, masters and files send. No server takes part.

mod behind;
mod calendar;
mod errors;
mod holds;
#[path = "../model/mod.rs"]
mod model;
mod numbers;
mod one_call;
mod requests;
mod scenario;
mod sequences;
mod split;
mod states;
mod strategies;
mod theorems;
mod top;
mod turns;
mod waiting;

use model::{Operation, MILLION};
use proptest::test_runner::{Config, FileFailurePersistence};

/// `times` the usual number of cases, which `PROPTEST_CASES` changes (256 unless told). What once broke a property is kept.
fn config(times: u32) -> Config {
    let usual = Config::default();
    let cases = usual.cases.saturating_mul(times);
    Config {
        cases,
        // A property of denials has to find some first.
        max_global_rejects: cases.saturating_mul(100),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("proptest-regressions/pure.txt"))),
        ..usual
    }
}

fn take(tokens: i64) -> Operation {
    Operation::Take { cost_micro: tokens * MILLION }
}
