//! What the server, or the policy in its place, has decided.

use std::hash::{BuildHasher, RandomState};
use std::process;
use std::time::{Duration, SystemTime};

use redis::{FromRedisValue, ParsingError, Value};

/// What the server decided about a call: whether it is allowed, and when to try again.
///
/// ```
/// use std::time::Duration;
/// use tokenbucket_client::{fake::Fake, sync::Limiter, Limit};
///
/// let limiter = Limiter::new(&Fake::new().server(), Limit::new(1, "1/s")?);
/// assert!(limiter.take("user:42", 1)?.allowed);
/// let denied = limiter.take("user:42", 1)?;
/// assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
/// let headers = denied.headers(limiter.limit(), "search");
/// assert_eq!(headers[1], ("ratelimit", "\"search\";r=0;t=1".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// True if the caller may go on.
    pub allowed: bool,
    /// The number of tokens that [`take_up_to`](crate::Limiter::take_up_to) took, or that of the alternative that
    /// [`take_any`](crate::Limiter::take_any) took or [`hold_any`](crate::Limiter::hold_any) holds, from 1; 1 or 0 for other
    /// calls, as `allowed`.
    pub granted: u64,
    /// Whole tokens left; negative while the bucket is in debt.
    pub remaining: i64,
    /// Milliseconds. After a denial, the time until the same call is allowed if no other call takes, and not a millisecond earlier; -1
    /// if never, because it costs more than the bucket ever holds. After a reservation, the time to wait before acting;
    /// after a charge, the time until the bucket is out of debt.
    pub retry_after_ms: i64,
    /// Milliseconds until the bucket is full; -1 if it never will be by itself.
    pub reset_after_ms: i64,
    /// True if [`OnError`](crate::OnError) decided, because the server was away.
    pub degraded: bool,
    /// True if this process refused the call by itself, because it [remembers](crate::Options::remember_denials) a denial.
    pub remembered: bool,
    /// True if the reply to a give, a charge or a settlement was lost: the server may or may not have executed the call.
    pub lost: bool,
    /// True if the call was denied, and [shadow mode](crate::Options::shadow) let it pass.
    pub shadowed: bool,
}

impl Decision {
    /// Returns how long to wait; None if waiting does not help.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after_ms.try_into().ok().map(Duration::from_millis)
    }

    pub(crate) fn by_policy(allowed: bool, granted: u64, retry_after: Duration) -> Self {
        let retry_after_ms = if allowed { 0 } else { saturating(retry_after.as_millis()) };
        Self { allowed, granted, retry_after_ms, degraded: true, ..Self::default() }
    }

    /// Returns the decision as it stands after that time, if no call changed the bucket.
    pub(crate) fn later(self, passed: Duration, least_ms: i64) -> Self {
        let passed_ms = saturating(passed.as_millis());
        let less = |ms: i64| if ms > 0 { (ms - passed_ms).max(least_ms) } else { ms };
        Self { retry_after_ms: less(self.retry_after_ms), reset_after_ms: less(self.reset_after_ms), ..self }
    }
}

impl FromRedisValue for Decision {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Value::Array(fields) = value else { return Err("the reply is not an array".into()) };
        let [Value::Int(granted @ 0..), Value::Int(remaining), Value::Int(retry_after_ms), Value::Int(reset_after_ms)] =
            fields[..]
        else {
            return Err("the reply is not four numbers".into());
        };
        let (allowed, granted) = (granted > 0, granted.unsigned_abs());
        Ok(Self { allowed, granted, remaining, retry_after_ms, reset_after_ms, ..Self::default() })
    }
}

/// The decision over several buckets, all or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JointDecision {
    /// The decision over all buckets: the tightest of each field.
    pub binding: Decision,
    /// Each bucket's own, in the order of the call, or of the alternative that was granted; empty if the policy decided, a
    /// remembered denial, or if no alternative was granted.
    pub each: Vec<Decision>,
}

impl JointDecision {
    pub(crate) fn of(binding: Decision) -> Self {
        Self { binding, each: Vec::new() }
    }

    /// Returns it with each of its decisions changed.
    pub(crate) fn map(mut self, change: impl Fn(Decision) -> Decision) -> Self {
        for one in self.each.iter_mut().chain([&mut self.binding]) {
            *one = change(*one);
        }
        self
    }

    /// Returns the parts of the granted alternative, if every alternative has `each` parts.
    pub(crate) fn alternative<'a, T>(&self, parts: &'a [T], each: usize) -> Option<&'a [T]> {
        parts.chunks(each).nth(usize::try_from(self.binding.granted).ok()?.checked_sub(1)?)
    }

    /// Returns whether every bucket allowed.
    pub fn allowed(&self) -> bool {
        self.binding.allowed
    }
}

impl FromRedisValue for JointDecision {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Value::Array(mut fields) = value else { return Err("the reply is not an array".into()) };
        let each = fields.pop_if(|last| matches!(last, Value::Array(_)));
        let binding = Decision::from_redis_value(Value::Array(fields))?;
        Ok(Self { binding, each: each.map_or_else(|| Ok(vec![binding]), Vec::from_redis_value)? })
    }
}

pub(super) fn saturating(ms: u128) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}

/// Draws unforeseeable bits: std takes its keys from the operating system. A forked child has its parent's keys.
pub(crate) fn random_bits() -> u64 {
    RandomState::new().hash_one((process::id(), SystemTime::now()))
}
