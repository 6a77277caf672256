//! `TB.BMHOLD numkeys ttl_ms id max_wait_ms key capacity rate amount […]`: one hold over several buckets, in turn.

use super::pipeline::{run_or_wait, Wait};
use crate::redis::spec::{
    ArgumentSpec, Audience, Command, FromMaster, Keys, Kind, Spec, AMOUNT, CAPACITY, ID, KEY, MAX_WAIT_MS,
    NUMKEYS, RATE, TTL_MS,
};
use crate::redis::{Argument, Call, Decisions};
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request::{self, Waiting};

pub(crate) struct BlockingMultiHold;

impl Command for BlockingMultiHold {
    const SPEC: Spec = Spec {
        name: c"TB.BMHOLD",
        summary: c"Reserves tokens of several buckets under one id, and waits its turn in the server",
        complexity: c"O(M log N) where M is the number of buckets and N that of the holds of one and of calls that wait for it",
        since: c"0.1.0",
        audience: Audience::WaitingWriters,
        from_master: FromMaster::Ignored,
        keys: Keys::EveryFourth { first: 5 },
        arguments: &[
            NUMKEYS,
            TTL_MS,
            ID,
            MAX_WAIT_MS,
            ArgumentSpec::required(c"bucket", Kind::Groups(&[KEY, CAPACITY, RATE, AMOUNT])),
        ],
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_or_wait::<Self>(call)
    }
}

impl Wait for BlockingMultiHold {
    fn read<'call>(arguments: &'call [Argument<'call>]) -> Result<Waiting<'call, Argument<'call>>, Refusal> {
        request::blocking_multi_hold(arguments)
    }

    fn reply(call: &Call, decisions: &Decisions) {
        call.reply_decisions(decisions);
    }
}
