//! `TB.HOLDS key`: the holds of a bucket, with id, amount and time left.

use super::state::State;
use crate::redis::spec::{Command, Spec};
use crate::redis::{Access, BucketKey, Call};
use tokenbucket_core::error::Refusal;
use tokenbucket_core::hold::Hold;
use tokenbucket_core::number::decimal_tokens;
use tokenbucket_core::request;

pub(crate) struct Holds;

impl Command for Holds {
    const SPEC: Spec = Spec {
        name: c"TB.HOLDS",
        summary: c"Returns the holds of a bucket, the next to expire first",
        complexity: c"O(N) where N is the number of holds",
        ..State::SPEC
    };

    fn run(call: Call) -> Result<(), Refusal> {
        let key = request::key(call.arguments())?;
        let key = BucketKey::open(call, *key, Access::Read)?;
        let holds = &key.extension().holds;
        call.reply_array(holds.outstanding(call.now_us()));
        for hold in holds.iter().filter(|hold| hold.ends_at_us > call.now_us()) {
            reply(&call, hold);
        }
        Ok(())
    }
}

fn reply(call: &Call, hold: &Hold) {
    call.reply_array(3);
    call.reply_bytes(&hold.id);
    call.reply_bytes(decimal_tokens(hold.amount_micro).as_bytes());
    call.reply_time_until(hold.ends_at_us);
}
