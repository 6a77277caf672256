//! `TB.GIVE key capacity rate amount`: refunds what was not used, never above the capacity.

use super::pipeline::run_one;
use crate::redis::spec::{Command, Spec, AMOUNT, CAPACITY, KEY, RATE};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Give;

impl Command for Give {
    const SPEC: Spec = Spec {
        name: c"TB.GIVE",
        summary: c"Puts tokens back, never above the capacity",
        arguments: &[KEY, CAPACITY, RATE, AMOUNT],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_one(call, request::give(call.arguments())?)
    }
}
