//! `TB.MSETTLE numkeys id key capacity rate used […]`: ends the holds of several buckets.

use super::pipeline::run_together;
use crate::redis::spec::{ArgumentSpec, Command, Keys, Spec, CAPACITY, ID, KEY, NUMKEYS, RATE, USED};
use crate::redis::Call;
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct MultiSettle;

impl Command for MultiSettle {
    const SPEC: Spec = Spec {
        name: c"TB.MSETTLE",
        summary: c"Ends the holds of one id in several buckets, wherever there is one",
        complexity: c"O(M log N) where M is the number of buckets and N that of the holds of one",
        keys: Keys::EveryFourth { first: 3 },
        arguments: &[NUMKEYS, ID, ArgumentSpec::buckets(&[KEY, CAPACITY, RATE, USED])],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        run_together(call, &request::multi_settle(call.arguments())?)
    }
}
