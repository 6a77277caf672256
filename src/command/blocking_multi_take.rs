//! `TB.BMTAKE numkeys max_wait_ms key capacity rate cost […]`: takes from several buckets, in turn.

use super::pipeline::run_or_wait;
use crate::redis::spec::{
    ArgumentSpec, Audience, Command, Keys, Spec, CAPACITY, COST, KEY, MAX_WAIT_MS, NUMKEYS, RATE,
};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct BlockingMultiTake;

impl Command for BlockingMultiTake {
    const SPEC: Spec = Spec {
        name: c"TB.BMTAKE",
        summary: c"Takes from several buckets, all or nothing, and waits its turn in the server",
        complexity: c"O(M log N) where M is the number of buckets and N that of the calls that wait for one",
        audience: Audience::WaitingWriters,
        keys: Keys::EveryFourth { first: 3 },
        arguments: &[NUMKEYS, MAX_WAIT_MS, ArgumentSpec::buckets(&[KEY, CAPACITY, RATE, COST])],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_or_wait(call, &Self::SPEC, request::blocking_multi_take(call.arguments())?)
    }
}
