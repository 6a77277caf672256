//! `TB.RESERVE key capacity rate cost max_wait_ms`: a place in the future, if it is not too far away.

use super::pipeline::execute;
use crate::redis::spec::{Audience, Command, FromMaster, Keys, Spec, CAPACITY, COST, KEY, MAX_WAIT_MS, RATE};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Reserve;

impl Command for Reserve {
    const SPEC: Spec = Spec {
        name: c"TB.RESERVE",
        summary: c"Takes tokens now, into debt if need be, and returns how long to wait before acting",
        complexity: c"O(1)",
        since: c"0.1.0",
        audience: Audience::Writers,
        from_master: FromMaster::Ignored,
        keys: Keys::First,
        arguments: &[KEY, CAPACITY, RATE, COST, MAX_WAIT_MS],
    };

    fn run(call: Call) -> Result<(), Refusal> {
        let request = request::reserve(call.arguments())?;
        let decision = execute(call, &request)?;
        call.reply_decision(&decision);
        Ok(())
    }
}
