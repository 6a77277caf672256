//! `TB.BTAKE key capacity rate cost max_wait_ms`: a take that waits its turn in the server.

use super::pipeline::{run_or_wait, Wait};
use crate::redis::spec::{Audience, Command, FromMaster, Keys, Spec, CAPACITY, COST, KEY, MAX_WAIT_MS, RATE};
use crate::redis::{Argument, Call, Decisions};
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request::{self, Waiting};

pub(crate) struct BlockingTake;

impl Command for BlockingTake {
    const SPEC: Spec = Spec {
        name: c"TB.BTAKE",
        summary: c"Takes tokens from a bucket, and waits its turn in the server if there are too few",
        complexity: c"O(log N) where N is the number of calls that wait for the bucket",
        since: c"0.1.0",
        audience: Audience::WaitingWriters,
        from_master: FromMaster::Ignored,
        keys: Keys::First,
        arguments: &[KEY, CAPACITY, RATE, COST, MAX_WAIT_MS],
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_or_wait::<Self>(call)
    }
}

impl Wait for BlockingTake {
    fn read<'call>(arguments: &'call [Argument<'call>]) -> Result<Waiting<'call, Argument<'call>>, Refusal> {
        request::blocking_take(arguments)
    }

    fn reply(call: &Call, decisions: &Decisions) {
        call.reply_decision(&decisions.binding);
    }
}
