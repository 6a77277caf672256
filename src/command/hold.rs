//! `TB.HOLD key capacity rate amount ttl_ms id`: reserves tokens under an id, refunded when the time is over.

use super::pipeline::run_one;
use crate::redis::spec::{Command, Spec, AMOUNT, CAPACITY, ID, KEY, RATE, TTL_MS};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Hold;

impl Command for Hold {
    const SPEC: Spec = Spec {
        name: c"TB.HOLD",
        summary: c"Reserves tokens under an id for a limited time, and refunds them unless settled before",
        complexity: c"O(log N) where N is the number of holds of the bucket",
        arguments: &[KEY, CAPACITY, RATE, AMOUNT, TTL_MS, ID],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_one(call, request::hold(call.arguments())?)
    }
}
