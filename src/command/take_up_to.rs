//! `TB.TAKEUPTO key capacity rate max`: as many whole tokens as there are.

use super::pipeline::execute;
use crate::redis::spec::{
    ArgumentSpec, Audience, Command, FromMaster, Keys, Kind, Spec, CAPACITY, KEY, RATE,
};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct TakeUpTo;

impl Command for TakeUpTo {
    const SPEC: Spec = Spec {
        name: c"TB.TAKEUPTO",
        summary: c"Takes as many whole tokens as a bucket holds, up to a maximum",
        complexity: c"O(1)",
        since: c"0.1.0",
        audience: Audience::Writers,
        from_master: FromMaster::Ignored,
        keys: Keys::First,
        arguments: &[KEY, CAPACITY, RATE, ArgumentSpec::required(c"max", Kind::Whole)],
    };

    fn run(call: Call) -> Result<(), Refusal> {
        let request = request::take_up_to(call.arguments())?;
        let decision = execute(call, &request)?;
        call.reply_decision(&decision);
        Ok(())
    }
}
