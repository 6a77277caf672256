//! A tower layer for axum that limits with a [`Limiter`]; copy this file with `limiter.rs`.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::{ConnectInfo, Request};
use axum::http::header::{HeaderName, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use tower::{Layer, Service};

use crate::limiter::{Decision, Limit, Limiter, Outcome, TakeError};

const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// What becomes of a request when Redis does not decide in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// It passes.
    Open,
    /// It is answered with 503.
    Closed,
}

/// Limits a route, or a router, by a bucket for each caller.
///
/// An allowed request carries its [`Decision`] as an extension. A denied one is answered with 429 and
/// `Retry-After`; without `Retry-After` if its cost is more than the bucket ever holds.
#[derive(Clone)]
pub struct RateLimitLayer {
    limiter: Limiter,
    limit: Limit,
    key: Arc<KeyOf>,
    cost: Arc<CostOf>,
    on_error: OnError,
}

/// The answer to a request whose cost cannot be told.
pub type Rejection = (StatusCode, String);

type KeyOf = dyn Fn(&Request) -> String + Send + Sync;
type CostOf = dyn Fn(&Request) -> Result<u64, Rejection> + Send + Sync;

impl RateLimitLayer {
    /// `key` names the caller's bucket. Two limits need two keys, as in `search:{caller}`.
    pub fn new(
        limiter: Limiter,
        limit: Limit,
        key: impl Fn(&Request) -> String + Send + Sync + 'static,
    ) -> Self {
        Self { limiter, limit, key: Arc::new(key), cost: Arc::new(|_| Ok(1)), on_error: OnError::Open }
    }

    /// How many tokens a request takes; 1 by default.
    pub fn cost(self, cost: impl Fn(&Request) -> Result<u64, Rejection> + Send + Sync + 'static) -> Self {
        Self { cost: Arc::new(cost), ..self }
    }

    /// Open by default.
    pub fn on_error(self, on_error: OnError) -> Self {
        Self { on_error, ..self }
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, rule: self.clone() }
    }
}

/// The service that [`RateLimitLayer`] makes.
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    rule: RateLimitLayer,
}

impl<S> Service<Request> for RateLimit<S>
where
    S: Service<Request, Response = Response, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        // The service that was polled is the one that is ready; a clone need not be.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let rule = self.rule.clone();
        let key = (rule.key)(&request);
        let cost = (rule.cost)(&request);
        Box::pin(async move {
            let cost = match cost {
                Ok(cost) => cost,
                Err(rejection) => return Ok(rejection.into_response()),
            };
            let decision = match rule.limiter.take(&key, rule.limit, cost).await {
                Ok(decision) => decision,
                Err(TakeError::Refused(error)) => {
                    log::error!("cannot limit {key:?}: {error}");
                    return Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response());
                }
                Err(_) if rule.on_error == OnError::Open => return inner.call(request).await,
                Err(_) => return Ok(unavailable()),
            };
            let mut response = match decision.outcome {
                Outcome::Allowed => {
                    request.extensions_mut().insert(decision);
                    inner.call(request).await?
                }
                Outcome::RetryAfter(wait) => too_many_requests(Some(wait)),
                Outcome::Never => too_many_requests(None),
            };
            describe(rule.limit, decision, response.headers_mut());
            Ok(response)
        })
    }
}

fn too_many_requests(wait: Option<Duration>) -> Response {
    let Some(wait) = wait else {
        let text = "the request costs more than its limit holds\n";
        return (StatusCode::TOO_MANY_REQUESTS, text).into_response();
    };
    let headers = [(RETRY_AFTER, whole_seconds(wait))];
    (StatusCode::TOO_MANY_REQUESTS, headers, "rate limit exceeded\n").into_response()
}

fn unavailable() -> Response {
    let headers = [(RETRY_AFTER, HeaderValue::from(1))];
    (StatusCode::SERVICE_UNAVAILABLE, headers, "the rate limiter is not available\n").into_response()
}

fn describe(limit: Limit, decision: Decision, headers: &mut HeaderMap) {
    // A limit nearer to the handler knows better, and has spoken already.
    if headers.contains_key(LIMIT) {
        return;
    }
    headers.insert(LIMIT, limit.capacity().into());
    headers.insert(REMAINING, decision.remaining.max(0).into());
    headers.insert(RESET, whole_seconds(decision.reset_after));
}

/// Rounded up, so that nobody comes back too early.
fn whole_seconds(duration: Duration) -> HeaderValue {
    duration.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX).into()
}

/// The address that the request came from; of IPv6 the /64, because one host has all of it to choose
/// from. Behind a proxy that is the proxy: there, take what your proxy, and nobody else, can have
/// written.
///
/// # Panics
///
/// The app is not served with `into_make_service_with_connect_info::<SocketAddr>()`.
pub fn client_address(request: &Request) -> String {
    let ConnectInfo(address) = request
        .extensions()
        .get::<ConnectInfo<SocketAddr>>()
        .expect("serve with into_make_service_with_connect_info::<SocketAddr>()");
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("{}/64", Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
    }
}
