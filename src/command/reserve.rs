//! `TB.RESERVE key capacity rate cost max_wait_ms`: books a place in the queue, if the wait is short enough.

use super::pipeline::run_one;
use crate::redis::spec::{Command, Spec, CAPACITY, COST, KEY, MAX_WAIT_MS, RATE};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Reserve;

impl Command for Reserve {
    const SPEC: Spec = Spec {
        name: c"TB.RESERVE",
        summary: c"Takes tokens now, into debt if need be, and returns how long to wait before acting",
        arguments: &[KEY, CAPACITY, RATE, COST, MAX_WAIT_MS],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_one(call, request::reserve(call.arguments())?)
    }
}
