//! `TB.MHOLD numkeys ttl_ms id key capacity rate amount […]`: reserves tokens of several buckets, all or nothing.

use super::pipeline::run_together;
use crate::redis::spec::{
    ArgumentSpec, Command, Keys, Spec, AMOUNT, CAPACITY, ID, KEY, NUMKEYS, RATE, TTL_MS,
};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct MultiHold;

impl Command for MultiHold {
    const SPEC: Spec = Spec {
        name: c"TB.MHOLD",
        summary: c"Reserves tokens of several buckets under one id, all or nothing",
        complexity: c"O(M log N) where M is the number of buckets and N that of the holds of one",
        keys: Keys::EveryFourth { first: 4 },
        arguments: &[NUMKEYS, TTL_MS, ID, ArgumentSpec::buckets(&[KEY, CAPACITY, RATE, AMOUNT])],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_together(call, &request::multi_hold(call.arguments())?)
    }
}
