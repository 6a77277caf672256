//! `TB.SETTLE key capacity rate id used`: what a hold was for is done, and cost so much.

use super::hold::Hold;
use super::pipeline::execute;
use crate::redis::spec::{Command, Spec, CAPACITY, ID, KEY, RATE, USED};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Settle;

impl Command for Settle {
    const SPEC: Spec = Spec {
        name: c"TB.SETTLE",
        summary: c"Ends a hold: refunds what was not used, charges what was used beyond it",
        arguments: &[KEY, CAPACITY, RATE, ID, USED],
        ..Hold::SPEC
    };

    fn run(call: Call) -> Result<(), Refusal> {
        let request = request::settle(call.arguments())?;
        let decision = execute(call, &request)?;
        call.reply_decision(&decision);
        Ok(())
    }
}
