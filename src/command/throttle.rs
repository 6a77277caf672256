//! `CL.THROTTLE key max_burst count period [quantity]`: redis-cell's command, on the same buckets as all others.
//!
//! A limit of `max_burst + 1` tokens that refills with `count` tokens per `period` seconds. The reply is
//! redis-cell's: 1 if limited and else 0, the limit, what remains of it, seconds until the call would pass (-1 if
//! it did, or never will), seconds until the limit is whole again.
//!
//! A key that redis-cell left behind is a string: the Unix nanosecond at which the limit is whole again, from
//! which the level at any other moment follows. The first call that takes from it turns it into a bucket.

use super::pipeline::{run, Decide, Written};
use crate::redis::spec::{ArgumentSpec, Audience, Command, FromMaster, Keys, Kind, Spec, KEY};
use crate::redis::{Access, Argument, BucketKey, Call, Replication};
use std::ffi::CStr;
use std::ops::RangeInclusive;
use tokenbucket_core::bucket::{Bucket, Change, Expiring, Limit, NoHolds, Operation, Outcome};
use tokenbucket_core::cast::signed;
use tokenbucket_core::error::{Error, Refusal};
use tokenbucket_core::number::MICRO_PER_TOKEN;
use tokenbucket_core::request::{self, Request};

pub(crate) struct Throttle;

impl Command for Throttle {
    const SPEC: Spec = Spec {
        // Files of redis-cell hold the calls themselves.
        from_master: FromMaster::Executed,
        // In lower case, as redis-cell has it: `INFO commandstats` and what is built on it show it so.
        name: c"cl.throttle",
        summary: c"Takes tokens from a bucket if it holds them, else nothing, with redis-cell's arguments",
        complexity: c"O(1)",
        since: c"0.1.0",
        audience: Audience::Writers,
        keys: Keys::First,
        arguments: &[
            KEY,
            ArgumentSpec::required(c"max_burst", Kind::Whole),
            ArgumentSpec::required(c"count", Kind::Whole),
            ArgumentSpec::required(c"period", Kind::Whole),
            ArgumentSpec::optional(c"quantity", Kind::Whole),
        ],
    };

    fn run(call: Call) -> Result<(), Refusal> {
        let request = request::throttle(call.arguments())?;
        let cost_micro = match request.operation {
            Operation::Take { cost_micro } => cost_micro,
            _ => 0,
        };
        // A call of cost 0 leaves no trace, not even on what redis-cell left.
        let access = if cost_micro > 0 { Access::Write } else { Access::Read };
        let (mut key, inherited) = open(call, &request, access)?;
        let throttled = Throttled { request, cost_micro, inherited };
        let Plan { verdict, .. } = match access {
            Access::Read => throttled.decide(&mut key)?,
            Access::Write => run(key, &throttled, Replication::Effect)?.0,
        };
        verdict.reply(&call);
        Ok(())
    }
}

/// Opens a bucket, or what redis-cell left: a bucket of the same level, and a full one if its moment is past.
fn open<'call>(
    call: Call<'call>,
    request: &Request<'call, Argument<'call>>,
    access: Access,
) -> Result<(BucketKey<'call>, Option<Bucket>), Error> {
    match BucketKey::open(call, *request.key, access) {
        Ok(key) => Ok((key, None)),
        Err(Error::WrongType) => {
            let (key, full_at_ns) = BucketKey::open_string(call, *request.key, access, full_at_ns)?;
            let full_at_us = full_at_ns.saturating_add(999).div_euclid(1000);
            Ok((key, Some(request.limit.bucket_full_at(full_at_us, call.now_us()))))
        }
        Err(error) => Err(error),
    }
}

/// A take, with redis-cell's reply.
struct Throttled<'call> {
    request: Request<'call, Argument<'call>>,
    cost_micro: i64,
    /// What redis-cell left in the key.
    inherited: Option<Bucket>,
}

#[derive(Clone, Copy)]
struct Plan {
    outcome: Outcome,
    verdict: Verdict,
}

impl<'call> Decide<'call> for Throttled<'call> {
    type Plan = Plan;

    fn key(&self) -> &Argument<'call> {
        self.request.key
    }

    fn decide(&self, key: &mut BucketKey<'call>) -> Result<Plan, Error> {
        if let Some(bucket) = self.inherited {
            return self.take_over(bucket, key.call().now_us());
        }
        let outcome = self.request.decide(key)?;
        let verdict = Verdict::of(key, &self.request.limit, self.cost_micro, &outcome);
        Ok(Plan { outcome, verdict })
    }

    fn admit(&self, key: &BucketKey<'call>, plan: &mut Plan) -> Result<(), Error> {
        match self.inherited {
            Some(_) => Ok(()),
            None => self.request.admit(key, &mut plan.outcome),
        }
    }

    fn store(&self, key: &mut BucketKey<'call>, plan: &Plan) -> (Outcome, Option<Written>) {
        self.request.store(key, &plan.outcome)
    }

    fn event(&self, plan: &Plan, outcome: &Outcome) -> Option<&'static CStr> {
        self.request.event(&plan.outcome, outcome)
    }
}

impl Throttled<'_> {
    /// Decides on what redis-cell left, which is a bucket afterwards, allowed or denied. But a call that can never pass
    /// is not one of the limit that the key was used with, and leaves it alone.
    fn take_over(&self, bucket: Bucket, now_us: i64) -> Result<Plan, Error> {
        let Request { limit, operation, .. } = &self.request;
        let mut outcome = limit.decide(Some(bucket), *operation, now_us)?;
        let verdict = Verdict::new(limit, Some(bucket), NoHolds, self.cost_micro, &outcome, now_us);
        if outcome.change == Change::Keep && outcome.decision.retry_after_ms >= 0 {
            let full_in_us = limit.wait_us(Some(bucket), limit.capacity_micro(), now_us);
            outcome.change = Change::Store { bucket, full_at_us: now_us.saturating_add(full_in_us) };
        }
        Ok(Plan { outcome, verdict })
    }
}

/// Reads what redis-cell writes: a Unix nanosecond between 2001 and 2262, and no other way to spell it. Anything else
/// is somebody's counter.
fn full_at_ns(string: &[u8]) -> Option<i64> {
    const DIGITS: RangeInclusive<usize> = 18..=19;
    const YEAR_2001_NS: i64 = 978_307_200_000_000_000;
    let is_plain = DIGITS.contains(&string.len()) && string.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(string).ok()?.parse().ok()?;
    (is_plain && number >= YEAR_2001_NS).then_some(number)
}

/// The reply.
#[derive(Clone, Copy)]
struct Verdict {
    limited: i64,
    limit: i64,
    remaining: i64,
    retry_after_s: i64,
    reset_after_s: i64,
}

impl Verdict {
    /// What an outcome on an open key comes to, before it is applied.
    fn of(key: &BucketKey, limit: &Limit, cost_micro: i64, outcome: &Outcome) -> Self {
        let now_us = key.call().now_us();
        match key.holds() {
            None => Self::new(limit, key.bucket(), NoHolds, cost_micro, outcome, now_us),
            Some(holds) => Self::new(limit, key.bucket(), holds, cost_micro, outcome, now_us),
        }
    }

    fn new(
        limit: &Limit,
        stored: Option<Bucket>,
        expiring: impl Expiring,
        cost_micro: i64,
        outcome: &Outcome,
        now_us: i64,
    ) -> Self {
        let decision = &outcome.decision;
        let wait_us =
            |level_micro| limit.wait_after_us(stored, expiring, outcome.change, level_micro, now_us);
        let never = decision.allowed != 0 || decision.retry_after_ms < 0;
        Self {
            limited: i64::from(decision.allowed == 0),
            limit: limit.capacity_micro() / MICRO_PER_TOKEN,
            remaining: decision.remaining.max(0),
            retry_after_s: if never {
                -1
            } else {
                retry_after_s(decision.retry_after_ms, wait_us(cost_micro))
            },
            reset_after_s: whole_seconds(wait_us(limit.capacity_micro())),
        }
    }

    fn reply(&self, call: &Call) {
        let fields = [self.limited, self.limit, self.remaining, self.retry_after_s, self.reset_after_s];
        call.reply_array(fields.len());
        for field in fields {
            call.reply_integer(field);
        }
    }
}

/// The wait for the tokens, or the longer one behind calls that wait for them, which redis-cell does not know.
fn retry_after_s(retry_after_ms: i64, wait_us: i64) -> i64 {
    let retry_after_us = retry_after_ms.saturating_mul(1000);
    let is_behind_others = retry_after_us.saturating_sub(wait_us) >= 1000;
    whole_seconds(if is_behind_others { retry_after_us } else { wait_us })
}

/// Seconds as redis-cell counts them since 0.5: rounded up, except that less than a millisecond is nothing.
fn whole_seconds(us: i64) -> i64 {
    signed((us / 1000).unsigned_abs().div_ceil(1000))
}
