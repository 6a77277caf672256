//! `TB.BHOLD key capacity rate amount ttl_ms id max_wait_ms [SHARE tenant [WEIGHT weight]]`: reserves tokens, and waits its turn in the server.

use super::pipeline::run_or_wait;
use crate::redis::spec::{
    Audience, Command, Spec, AMOUNT, CAPACITY, ID, KEY, MAX_WAIT_MS, RATE, SHARE, TTL_MS,
};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct BlockingHold;

impl Command for BlockingHold {
    const SPEC: Spec = Spec {
        name: c"TB.BHOLD",
        summary: c"Reserves tokens under an id for a limited time, and waits its turn in the server",
        complexity: c"O(log N) where N is the number of holds of the bucket and of calls that wait for it",
        audience: Audience::WaitingWriters,
        arguments: &[KEY, CAPACITY, RATE, AMOUNT, TTL_MS, ID, MAX_WAIT_MS, SHARE],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_or_wait(call, &Self::SPEC, request::blocking_hold(call.arguments())?)
    }
}
