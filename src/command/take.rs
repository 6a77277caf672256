//! `TB.TAKE key capacity rate [cost]`: all of the cost, or nothing.

use super::pipeline::execute;
use crate::redis::spec::{
    ArgumentSpec, Audience, Command, FromMaster, Keys, Kind, Spec, CAPACITY, KEY, RATE,
};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Take;

impl Command for Take {
    const SPEC: Spec = Spec {
        name: c"TB.TAKE",
        summary: c"Takes tokens from a bucket if it holds them, else nothing",
        complexity: c"O(1)",
        since: c"0.1.0",
        audience: Audience::Writers,
        from_master: FromMaster::Ignored,
        keys: Keys::First,
        arguments: &[KEY, CAPACITY, RATE, ArgumentSpec::optional(c"cost", Kind::Decimal)],
    };

    #[inline]
    fn run(call: Call) -> Result<(), Refusal> {
        let request = request::take(call.arguments())?;
        let decision = execute(call, &request)?;
        call.reply_decision(&decision);
        Ok(())
    }
}
