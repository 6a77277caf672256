//! `TB.TOP [COUNT n] [RESET]`: replies the most denied keys.

use crate::redis::spec::{ArgumentSpec, Audience, Command, FromMaster, Keys, Kind, Spec};
use crate::redis::{with_top, Call};
use tokenbucket_core::error::Refusal;
use tokenbucket_core::request;

pub(crate) struct Top;

impl Command for Top {
    const SPEC: Spec = Spec {
        name: c"TB.TOP",
        summary: c"Returns the keys that were denied most often",
        complexity: c"O(N) where N is the number of keys replied",
        since: c"0.1.0",
        audience: Audience::Operators,
        from_master: FromMaster::Executed,
        keys: Keys::None,
        arguments: &[
            ArgumentSpec::optional(c"n", Kind::Whole).behind(c"COUNT"),
            ArgumentSpec::optional(c"reset", Kind::Word(c"RESET")),
        ],
    };

    fn run(call: Call) -> Result<(), Refusal> {
        let request = request::top(call.arguments())?;
        with_top(|top| {
            let denied: Vec<_> =
                top.iter().flat_map(tokenbucket_core::top::Top::iter).take(request.count).collect();
            call.reply_array(denied.len());
            for one in denied {
                call.reply_array(3);
                call.reply_bytes(one.key);
                call.reply_integer(i64::try_from(one.denied).unwrap_or(i64::MAX));
                call.reply_integer(one.last_denied_ms);
            }
            if request.reset {
                *top = None;
            }
        });
        Ok(())
    }
}
