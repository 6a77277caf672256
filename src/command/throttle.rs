//! `CL.THROTTLE key max_burst count period [quantity]`: redis-cell's command, on the module's buckets.
//!
//! A limit of `max_burst + 1` tokens that refills with `count` tokens per `period` seconds. The reply is
//! redis-cell's: 1 if limited and else 0, the limit, the tokens left, seconds until the call would pass (-1 if
//! it did, or never will), seconds until the limit is full.
//!
//! A key of redis-cell is a string: the Unix nanosecond at which the limit is full, which determines the level at any
//! other moment. The first take turns it into a bucket.

use super::pipeline::{decide, Part};
use crate::redis::spec::{ArgumentSpec, Command, FromMaster, Kind, Spec, KEY};
use crate::redis::{Access, Argument, BucketKey, Call, Replication};
use std::ops::RangeInclusive;
use tokenbucket_core::bucket::{Bucket, Change, Expiring, Operation, Outcome};
use tokenbucket_core::cast::signed;
use tokenbucket_core::error::{Error, Refusal};
use tokenbucket_core::hold::{Extension, NO_EXTENSION};
use tokenbucket_core::number::MICRO_PER_TOKEN;
use tokenbucket_core::plan::Plan;
use tokenbucket_core::request::{self, Request};

pub(crate) struct Throttle;

impl Command for Throttle {
    const SPEC: Spec = Spec {
        // Files of redis-cell contain the calls themselves.
        from_master: FromMaster::Executed,
        // In lower case, like redis-cell's: `INFO commandstats` shows it, and dashboards use that.
        name: c"cl.throttle",
        summary: c"Takes tokens from a bucket if it holds them, else nothing, with redis-cell's arguments",
        since: c"0.1.0",
        arguments: &[
            KEY,
            ArgumentSpec::required(c"max_burst", Kind::Whole),
            ArgumentSpec::required(c"count", Kind::Whole),
            ArgumentSpec::required(c"period", Kind::Whole),
            ArgumentSpec::optional(c"quantity", Kind::Whole),
        ],
        ..Spec::DECIDING
    };

    fn run(call: Call) -> Result<(), Refusal> {
        let request = request::throttle(call.arguments())?;
        // A call of cost 0 changes nothing, not even a key of redis-cell.
        let access = if request.wanted.micro() > 0 { Access::Write } else { Access::Read };
        let (part, reply) = plan(call, &request, access)?;
        if access == Access::Write {
            decide(&call, part, Replication::Effect)?;
        }
        call.reply_array(reply.len());
        reply.into_iter().for_each(|number| call.reply_integer(number));
        Ok(())
    }
}

/// Plans the take from a bucket, or from a key of redis-cell.
fn plan<'request, 'call>(
    call: Call<'call>,
    request: &'request Request<Argument<'call>>,
    access: Access,
) -> Result<(Part<'request, 'call>, Reply), Error> {
    match BucketKey::open(call, request.key, access) {
        Ok(key) => {
            let part = Part::planned(request, key)?;
            let (key, outcome) = (&part.key, part.outcome());
            let reply = reply(part.request(), key.bucket(), key.extension(), &outcome, call.now_us());
            Ok((part, reply))
        }
        Err(Error::WrongType) => {
            let (key, full_at_ns) = BucketKey::open_string(call, request.key, access, full_at_ns)?;
            let full_at_us = full_at_ns.saturating_add(999).div_euclid(1000);
            take_over(request, key, request.limit.bucket_full_at(full_at_us, call.now_us()))
        }
        Err(error) => Err(error),
    }
}

/// Plans the take from a key of redis-cell, which becomes a bucket, allowed or denied. But a call that can never pass has
/// another limit than the key, and leaves it alone.
fn take_over<'request, 'call>(
    request: &'request Request<Argument<'call>>,
    key: BucketKey<'call>,
    inherited: Bucket,
) -> Result<(Part<'request, 'call>, Reply), Error> {
    let (limit, now_us) = (&request.limit, key.call().now_us());
    let mut outcome =
        limit.decide(Some(inherited), Operation::Take { cost_micro: request.wanted.micro() }, now_us)?;
    let reply = reply(request, Some(inherited), &NO_EXTENSION, &outcome, now_us);
    if outcome.change == Change::Keep && outcome.decision.retry_after_ms >= 0 {
        let full_in_us = limit.wait_us(Some(inherited), limit.capacity_micro(), now_us);
        let full_at_us = now_us.saturating_add(full_in_us);
        outcome.change = Change::Store { bucket: inherited, full_at_us };
    }
    Ok((Part::new(request, key, Plan::Outcome(outcome)), reply))
}

/// Reads the value of redis-cell: a Unix nanosecond between 2001 and 2262, in plain digits. Anything else is another
/// program's counter.
fn full_at_ns(string: &[u8]) -> Option<i64> {
    const DIGITS: RangeInclusive<usize> = 18..=19;
    const YEAR_2001_NS: i64 = 978_307_200_000_000_000;
    let is_plain = DIGITS.contains(&string.len()) && string.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(string).ok()?.parse().ok()?;
    (is_plain && number >= YEAR_2001_NS).then_some(number)
}

/// The five numbers of the reply.
type Reply = [i64; 5];

/// Returns the reply to a call. `stored` and `extension` are the content of its key before the change.
fn reply(
    request: &Request<Argument>,
    stored: Option<Bucket>,
    extension: &Extension,
    outcome: &Outcome,
    now_us: i64,
) -> Reply {
    let (limit, decision) = (&request.limit, &outcome.decision);
    let wait_us = |level_micro| limit.wait_after_us(stored, extension, outcome.change, level_micro, now_us);
    let counting_micro = extension.counting(limit, stored, now_us).limit.capacity_micro();
    let never = decision.allowed != 0 || decision.retry_after_ms < 0;
    let retry_after_s = || retry_after_s(decision.retry_after_ms, wait_us(request.wanted.micro()));
    [
        i64::from(decision.allowed == 0),
        if extension.is_suspended(now_us) { 0 } else { counting_micro / MICRO_PER_TOKEN },
        decision.remaining.max(0),
        if never { -1 } else { retry_after_s() },
        whole_seconds(wait_us(counting_micro)),
    ]
}

/// Returns the wait for the tokens, or the longer one behind waiting calls, which redis-cell does not have.
fn retry_after_s(retry_after_ms: i64, wait_us: i64) -> i64 {
    let retry_after_us = retry_after_ms.saturating_mul(1000);
    let is_behind_others = retry_after_us.saturating_sub(wait_us) >= 1000;
    whole_seconds(if is_behind_others { retry_after_us } else { wait_us })
}

/// Converts to seconds as redis-cell does since 0.5: rounded up, but less than a millisecond is 0.
fn whole_seconds(us: i64) -> i64 {
    signed((us / 1000).unsigned_abs().div_ceil(1000))
}
