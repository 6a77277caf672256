//! `TB.CHARGE key capacity rate amount`: what the work turned out to cost, whatever the level.

use super::pipeline::execute;
use crate::redis::spec::{Audience, Command, FromMaster, Keys, Spec, AMOUNT, CAPACITY, KEY, RATE};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Charge;

impl Command for Charge {
    const SPEC: Spec = Spec {
        name: c"TB.CHARGE",
        summary: c"Takes tokens unconditionally, into debt if need be",
        complexity: c"O(1)",
        since: c"0.1.0",
        audience: Audience::Writers,
        from_master: FromMaster::Ignored,
        keys: Keys::First,
        arguments: &[KEY, CAPACITY, RATE, AMOUNT],
    };

    fn run(call: Call) -> Result<(), Refusal> {
        let request = request::charge(call.arguments())?;
        let decision = execute(call, &request)?;
        call.reply_decision(&decision);
        Ok(())
    }
}
