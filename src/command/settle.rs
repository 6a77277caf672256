//! `TB.SETTLE key capacity rate id used`: ends a hold, and charges what the work really cost.

use super::pipeline::run_one;
use crate::redis::spec::{Command, Spec, CAPACITY, ID, KEY, RATE, USED};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Settle;

impl Command for Settle {
    const SPEC: Spec = Spec {
        name: c"TB.SETTLE",
        summary: c"Ends a hold: refunds what was not used, charges what was used beyond it",
        complexity: c"O(log N) where N is the number of holds of the bucket",
        arguments: &[KEY, CAPACITY, RATE, ID, USED],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_one(call, request::settle(call.arguments())?)
    }
}
