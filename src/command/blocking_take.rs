//! `TB.BTAKE key capacity rate cost max_wait_ms [SHARE tenant [WEIGHT weight]]`: takes, and waits its turn in the server.

use super::pipeline::run_or_wait;
use crate::redis::spec::{Audience, Command, Spec, CAPACITY, COST, KEY, MAX_WAIT_MS, RATE, SHARE};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct BlockingTake;

impl Command for BlockingTake {
    const SPEC: Spec = Spec {
        name: c"TB.BTAKE",
        summary: c"Takes tokens from a bucket, and waits its turn in the server if there are too few",
        complexity: c"O(log N) where N is the number of calls that wait for the bucket",
        audience: Audience::WaitingWriters,
        arguments: &[KEY, CAPACITY, RATE, COST, MAX_WAIT_MS, SHARE],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_or_wait(call, &Self::SPEC, request::blocking_take(call.arguments())?)
    }
}
