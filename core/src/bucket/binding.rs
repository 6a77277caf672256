//! The decision that binds a call of several buckets.

use super::Decision;

impl Decision {
    /// Returns the tightest of each field over the decisions of several buckets.
    #[must_use]
    pub fn binding(decisions: impl Iterator<Item = Self>) -> Self {
        let none = Self { allowed: 1, remaining: 0, retry_after_ms: 0, reset_after_ms: 0 };
        decisions.reduce(tighter).unwrap_or(none)
    }
}

/// Returns the tighter of two decisions, field by field.
fn tighter(one: Decision, other: Decision) -> Decision {
    Decision {
        allowed: one.allowed.min(other.allowed),
        remaining: one.remaining.min(other.remaining),
        retry_after_ms: longer(one.retry_after_ms, other.retry_after_ms),
        reset_after_ms: longer(one.reset_after_ms, other.reset_after_ms),
    }
}

/// Returns the longer of two waits; -1 is the longest.
fn longer(one_ms: i64, other_ms: i64) -> i64 {
    if one_ms.min(other_ms) < 0 {
        return -1;
    }
    one_ms.max(other_ms)
}
