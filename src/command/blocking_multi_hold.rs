//! `TB.BMHOLD numkeys ttl_ms id max_wait_ms key capacity rate amount […]`: reserves tokens of several buckets, in turn.

use super::pipeline::run_or_wait;
use crate::redis::spec::{
    ArgumentSpec, Audience, Command, Keys, Spec, AMOUNT, CAPACITY, ID, KEY, MAX_WAIT_MS, NUMKEYS, RATE,
    TTL_MS,
};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct BlockingMultiHold;

impl Command for BlockingMultiHold {
    const SPEC: Spec = Spec {
        name: c"TB.BMHOLD",
        summary: c"Reserves tokens of several buckets under one id, and waits its turn in the server",
        complexity: c"O(M log N) where M is the number of buckets and N that of the holds of one and of calls that wait for it",
        audience: Audience::WaitingWriters,
        keys: Keys::EveryFourth { first: 5 },
        arguments: &[
            NUMKEYS,
            TTL_MS,
            ID,
            MAX_WAIT_MS,
            ArgumentSpec::buckets(&[KEY, CAPACITY, RATE, AMOUNT]),
        ],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_or_wait(call, &Self::SPEC, request::blocking_multi_hold(call.arguments())?)
    }
}
