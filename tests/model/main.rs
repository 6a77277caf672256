//! The pure code beside the exact model (`tests/exact`): the algorithm for any sequence of calls, limits and times that a
//! server can see, and what is read from the bytes that clients, masters and files bring. No server takes part.

mod calendar;
mod errors;
#[path = "../exact/mod.rs"]
mod exact;
mod holds;
mod long_run;
mod numbers;
mod one_call;
mod requests;
mod scenario;
mod sequences;
mod split;
mod top;
#[path = "../common/wishes.rs"]
mod wishes;

use exact::{Operation, MILLION};
use proptest::test_runner::{Config, FileFailurePersistence};

/// `times` the usual number of cases, which `PROPTEST_CASES` changes (256 unless told). What once broke a property is kept.
fn config(times: u32) -> Config {
    let usual = Config::default();
    let cases = usual.cases.saturating_mul(times);
    Config {
        cases,
        // A property of denials has to find some first.
        max_global_rejects: cases.saturating_mul(100),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("proptest-regressions/model.txt"))),
        ..usual
    }
}

fn take(tokens: i64) -> Operation {
    Operation::Take { cost_micro: tokens * MILLION }
}
