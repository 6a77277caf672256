//! `TB.TAKEUPTO key capacity rate max`: takes as many whole tokens as there are.

use super::pipeline::run_one;
use crate::redis::spec::{ArgumentSpec, Command, Kind, Spec, CAPACITY, KEY, RATE};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct TakeUpTo;

impl Command for TakeUpTo {
    const SPEC: Spec = Spec {
        name: c"TB.TAKEUPTO",
        summary: c"Takes as many whole tokens as a bucket holds, up to a maximum",
        arguments: &[KEY, CAPACITY, RATE, ArgumentSpec::required(c"max", Kind::Whole)],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_one(call, request::take_up_to(call.arguments())?)
    }
}
