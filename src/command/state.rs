//! `TB.STATE key`: replies the stored bucket, to explain a decision.

use crate::redis::spec::{Audience, Command, FromMaster, Keys, Spec, KEY};
use crate::redis::{waiting, Access, BucketKey, Call};
use tokenbucket_core::error::Refusal;
use tokenbucket_core::number::decimal_tokens;
use tokenbucket_core::request;

pub(crate) struct State;

impl Command for State {
    const SPEC: Spec = Spec {
        name: c"TB.STATE",
        summary: c"Returns the stored level and refill time of a bucket, or nil if it is full",
        complexity: c"O(1), or O(T) while T tenants wait for the bucket: with 9,000 tenants about 2 ms.",
        since: c"0.1.0",
        audience: Audience::Readers,
        from_master: FromMaster::Executed,
        keys: Keys::First,
        arguments: &[KEY],
    };

    fn run(call: Call) -> Result<(), Refusal> {
        let key = request::key(call.arguments())?;
        let key = BucketKey::open(call, *key, Access::Read)?;
        match key.bucket() {
            None => call.reply_nil(),
            Some(bucket) => {
                let tenants = if waiting::is_any() { waiting::tenants(&key) } else { Vec::new() };
                call.reply_array(if tenants.is_empty() { 2 } else { 3 });
                call.reply_bytes(decimal_tokens(bucket.level_micro).as_bytes());
                call.reply_integer(bucket.refilled_at_us);
                if !tenants.is_empty() {
                    reply_tenants(&call, &tenants);
                }
            }
        }
        Ok(())
    }
}

fn reply_tenants(call: &Call, tenants: &[(Vec<u8>, usize)]) {
    call.reply_array(tenants.len());
    for (tenant, calls) in tenants {
        call.reply_array(2);
        call.reply_bytes(tenant);
        call.reply_integer(i64::try_from(*calls).unwrap_or(i64::MAX));
    }
}
