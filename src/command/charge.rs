//! `TB.CHARGE key capacity rate amount`: charges for work that is done, whatever the level.

use super::pipeline::run_one;
use crate::redis::spec::{Command, Spec, AMOUNT, CAPACITY, KEY, RATE};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Charge;

impl Command for Charge {
    const SPEC: Spec = Spec {
        name: c"TB.CHARGE",
        summary: c"Takes tokens unconditionally, into debt if need be",
        arguments: &[KEY, CAPACITY, RATE, AMOUNT],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_one(call, request::charge(call.arguments())?)
    }
}
