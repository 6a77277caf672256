//! `TB.BTAKE key capacity rate cost max_wait_ms`: a take that waits its turn in the server.

use super::pipeline::{run_or_wait, Wait};
use crate::redis::spec::{Audience, Command, Spec, CAPACITY, COST, KEY, MAX_WAIT_MS, RATE};
use crate::redis::{Argument, Call};
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request::{self, Waiting};

pub(crate) struct BlockingTake;

impl Command for BlockingTake {
    const SPEC: Spec = Spec {
        name: c"TB.BTAKE",
        summary: c"Takes tokens from a bucket, and waits its turn in the server if there are too few",
        complexity: c"O(log N) where N is the number of calls that wait for the bucket",
        audience: Audience::WaitingWriters,
        arguments: &[KEY, CAPACITY, RATE, COST, MAX_WAIT_MS],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_or_wait::<Self>(call)
    }
}

impl Wait for BlockingTake {
    fn read<'call>(arguments: &'call [Argument<'call>]) -> Result<Waiting<'call, Argument<'call>>, Refusal> {
        request::blocking_take(arguments)
    }
}
