//! `TB.HOLD key capacity rate amount ttl_ms id`: tokens taken under a name, that come back by themselves.

use super::pipeline::execute;
use crate::redis::spec::{
    Audience, Command, FromMaster, Keys, Spec, AMOUNT, CAPACITY, ID, KEY, RATE, TTL_MS,
};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Hold;

impl Command for Hold {
    const SPEC: Spec = Spec {
        name: c"TB.HOLD",
        summary: c"Reserves tokens under an id for a limited time, and refunds them unless settled before",
        complexity: c"O(log N) where N is the number of holds of the bucket",
        since: c"0.1.0",
        audience: Audience::Writers,
        from_master: FromMaster::Ignored,
        keys: Keys::First,
        arguments: &[KEY, CAPACITY, RATE, AMOUNT, TTL_MS, ID],
    };

    fn run(call: Call) -> Result<(), Refusal> {
        let request = request::hold(call.arguments())?;
        let decision = execute(call, &request)?;
        call.reply_decision(&decision);
        Ok(())
    }
}
