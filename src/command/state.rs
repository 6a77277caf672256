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
                let limit_override = key.extension().override_at(call.now_us());
                let fields = match limit_override {
                    _ if !tenants.is_empty() => 4,
                    Some(_) => 3,
                    None => 2,
                };
                call.reply_array(fields);
                call.reply_bytes(decimal_tokens(bucket.level_micro).as_bytes());
                call.reply_integer(bucket.refilled_at_us);
                match limit_override {
                    Some(limit_override) => {
                        call.reply_array(3);
                        limit_override.written().for_each(|text| call.reply_bytes(text));
                        call.reply_time_until(limit_override.ends_at_us);
                    }
                    None if fields == 4 => call.reply_nil(),
                    None => {}
                }
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
