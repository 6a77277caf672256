//! `TB.MTAKE numkeys key capacity rate cost […]`: takes from several buckets, all or nothing.
//!
//! A call may count against requests and tokens a minute, a user's limit and the tenant's. Taking them one by one would
//! need refunds, which are a race.

use super::pipeline::run_together;
use crate::redis::spec::{ArgumentSpec, Command, Keys, Spec, CAPACITY, COST, KEY, NUMKEYS, RATE};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct MultiTake;

impl Command for MultiTake {
    const SPEC: Spec = Spec {
        name: c"TB.MTAKE",
        summary: c"Takes from several buckets, each with its own limit and cost, all or nothing",
        complexity: c"O(N) where N is the number of buckets",
        keys: Keys::EveryFourth { first: 2 },
        arguments: &[NUMKEYS, ArgumentSpec::buckets(&[KEY, CAPACITY, RATE, COST])],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_together(call, &request::multi_take(call.arguments())?)
    }
}
