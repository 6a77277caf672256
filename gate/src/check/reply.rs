//! The reply to a proxy: a status, and headers for its caller.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{header, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use tokenbucket_client::Decision;

use crate::decide::Refusal;
use crate::limits::{Limits, Matched};
use crate::messages::{self, Code, Descriptor, Status};

/// Returns the reply to a request without a limit.
pub(super) fn allowed() -> Response {
    StatusCode::OK.into_response()
}

/// Returns the reply without a decision: the proxy decides what to do.
pub(super) fn refused(refusal: &Refusal) -> Response {
    let status = match refusal {
        Refusal::Redis(_) => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::Service(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    // The error of Redis is for the log: proxies pass the body to their callers.
    (status, "no decision on the rate limit\n").into_response()
}

/// Returns the decision, with the tokens left of the tightest limit.
pub(super) fn decided(
    limits: Option<&Limits>,
    request: &messages::Request,
    response: &messages::Response,
    denied_status: StatusCode,
) -> Response {
    let is_denied = response.overall_code == Code::OverLimit as i32;
    let mut reply = match is_denied {
        true => (denied_status, "too many requests\n").into_response(),
        false => allowed(),
    };
    match limits.and_then(|limits| Answered::tightest(limits, request, response, is_denied)) {
        Some(tightest) => add(&mut reply, tightest.headers(is_denied)),
        // Denied by ON_ERROR.
        None if is_denied => {
            add(&mut reply, retry_after_s(response).map(|wait| ("retry-after", wait.to_string())))
        }
        None => {}
    }
    reply
}

/// Returns when to retry a request that is denied without knowing the tokens left.
fn retry_after_s(response: &messages::Response) -> Option<i64> {
    response.statuses.iter().filter_map(|status| Some(status.duration_until_reset.as_ref()?.seconds)).max()
}

fn add(reply: &mut Response<Body>, headers: impl IntoIterator<Item = (&'static str, String)>) {
    for (name, value) in headers {
        if let Ok(value) = HeaderValue::try_from(value) {
            reply.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    // A cache would send one caller the tokens left of another.
    reply.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// A descriptor of the request that has a limit, and its decision.
struct Answered<'a> {
    descriptor: &'a Descriptor,
    status: &'a Status,
    matched: Matched,
}

impl<'a> Answered<'a> {
    /// Returns the limit to report: of a denied request the one that denies it longest, else the one with the fewest tokens
    /// left.
    fn tightest(
        limits: &Limits,
        request: &'a messages::Request,
        response: &'a messages::Response,
        is_denied: bool,
    ) -> Option<Self> {
        let pairs = request.descriptors.iter().zip(&response.statuses);
        // A status without either is of no limit, or a guess.
        let is_known = |status: &Status| status.current_limit.is_some() || status.limit_remaining > 0;
        let all = pairs.filter(|(_, status)| is_known(status)).filter_map(|(descriptor, status)| {
            let matched = limits.find(&request.domain, descriptor).filter(|found| !found.rule.unlimited)?;
            Some(Self { descriptor, status, matched })
        });
        if is_denied {
            all.filter(Self::is_over).max_by_key(Self::reset_s)
        } else {
            all.filter(|one| !one.matched.rule.shadow_mode).min_by_key(|one| one.status.limit_remaining)
        }
    }

    fn is_over(&self) -> bool {
        self.status.code == Code::OverLimit as i32
    }

    fn reset_s(&self) -> i64 {
        self.status.duration_until_reset.as_ref().map_or(0, |time| time.seconds)
    }

    fn headers(&self, is_denied: bool) -> Vec<(&'static str, String)> {
        let mut decision = Decision::default();
        decision.allowed = !is_denied;
        decision.remaining = self.status.limit_remaining.into();
        decision.reset_after_ms = self.reset_s().saturating_mul(1000);
        decision.retry_after_ms = if self.can_ever_pass() { decision.reset_after_ms } else { -1 };
        decision.headers(&self.matched.rule.limit, &self.name())
    }

    /// Returns whether the bucket holds what the request costs.
    fn can_ever_pass(&self) -> bool {
        let cost = self.descriptor.hits_addend.as_ref().map_or(1, |hits| hits.value);
        self.matched.rule.capacity >= cost as f64
    }

    /// Returns the name of the limit, or the keys of its descriptor; in the characters that a quoted string of a
    /// header may have.
    fn name(&self) -> String {
        let name = match self.matched.rule.name.as_str() {
            "" => Cow::from(
                self.descriptor.entries.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>().join("_"),
            ),
            name => Cow::from(name),
        };
        name.chars()
            .map(|c| if matches!(c, ' '..='~') && !matches!(c, '"' | '\\') { c } else { '_' })
            .collect()
    }
}
