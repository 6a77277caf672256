//! `TB.GIVE key capacity rate amount`: what was not used, never above the capacity.

use super::charge::Charge;
use super::pipeline::execute;
use crate::redis::spec::{Command, Spec};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Give;

impl Command for Give {
    const SPEC: Spec =
        Spec { name: c"TB.GIVE", summary: c"Puts tokens back, never above the capacity", ..Charge::SPEC };

    fn run(call: Call) -> Result<(), Refusal> {
        let request = request::give(call.arguments())?;
        let decision = execute(call, &request)?;
        call.reply_decision(&decision);
        Ok(())
    }
}
