//! The algorithm against the exact model (`tests/exact`), for any sequence of calls, limits and times that a server can
//! see. No server takes part.

mod calendar;
#[path = "../exact/mod.rs"]
mod exact;
mod long_run;
mod one_call;
mod scenario;
mod sequences;
mod settings;
mod split;

use exact::{Operation, MILLION};
use proptest::prelude::*;

fn config(times: u32) -> ProptestConfig {
    settings::cases("proptest-regressions/model.txt", times)
}

fn take(tokens: i64) -> Operation {
    Operation::Take { cost_micro: tokens * MILLION }
}
