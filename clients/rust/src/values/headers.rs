//! What headers of HTTP say about a decision.

use crate::values::decision::saturating;
use crate::values::{Decision, Limit};

impl Decision {
    /// Returns `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers under the policy's `name`, and
    /// `Retry-After` if it is denied. That is left out where waiting does not help. A decision without the server says
    /// nothing about the bucket.
    pub fn headers(&self, limit: &Limit, name: &str) -> Vec<(&'static str, String)> {
        let mut headers = Vec::new();
        if !self.degraded {
            // Otherwise an override counts.
            if self.remaining <= saturating(limit.whole_capacity().into()) {
                headers.push(("ratelimit-policy", policy(limit, name)));
            }
            let reset = u64::try_from(self.reset_after_ms);
            let reset = reset.map_or_else(|_| String::new(), |ms| format!(";t={}", ms.div_ceil(1000)));
            headers.push(("ratelimit", format!("\"{name}\";r={}{reset}", self.remaining.max(0))));
        }
        if let Some(wait) = self.retry_after().filter(|wait| !self.allowed && !wait.is_zero()) {
            headers.push(("retry-after", wait.as_millis().div_ceil(1000).to_string()));
        }
        headers
    }
}

fn policy(limit: &Limit, name: &str) -> String {
    let window = limit.fills_in_us().filter(|us| *us > 0);
    let window = window.map_or_else(String::new, |us| format!(";w={}", us.div_ceil(1_000_000)));
    format!("\"{name}\";q={}{window}", limit.whole_capacity())
}
