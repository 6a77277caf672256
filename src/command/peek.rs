//! `TB.PEEK key capacity rate [cost]`: replies what `TB.TAKE` would, and changes nothing.

use super::pipeline::peek;
use super::take::Take;
use crate::redis::spec::{Audience, Command, Spec};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Peek;

impl Command for Peek {
    const SPEC: Spec = Spec {
        name: c"TB.PEEK",
        summary: c"Returns what TB.TAKE would, and changes nothing",
        audience: Audience::Readers,
        ..Take::SPEC
    };

    #[inline]
    fn run(call: Call) -> Result<(), Refusal> {
        peek(call, request::peek(call.arguments())?)
    }
}
