//! `TB.TAKE key capacity rate [cost]`: takes all of the cost, or nothing.

use super::pipeline::run_one;
use crate::redis::spec::{ArgumentSpec, Command, Kind, Spec, CAPACITY, KEY, RATE};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Take;

impl Command for Take {
    const SPEC: Spec = Spec {
        name: c"TB.TAKE",
        summary: c"Takes tokens from a bucket if it holds them, else nothing",
        arguments: &[KEY, CAPACITY, RATE, ArgumentSpec::optional(c"cost", Kind::Decimal)],
        ..Spec::DECIDING
    };

    #[inline]
    fn run(call: Call) -> Result<(), Refusal> {
        run_one(call, request::take(call.arguments())?)
    }
}
