//! Why a request has no decision.

use std::borrow::Cow;

/// The reason why a request has no decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is wrong, or there are no limits: gRPC UNKNOWN, in the words of envoyproxy/ratelimit.
    Service(Cow<'static, str>),
    /// Redis is away or refuses: gRPC UNAVAILABLE.
    Redis(String),
}
