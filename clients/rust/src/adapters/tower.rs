//! A layer for tower services that speak [`http`], as axum's do.
//!
//! ```
//! use axum::{routing::get, Router};
//! use tokenbucket_client::tower::RateLimitLayer;
//! use tokenbucket_client::{Limit, Limiter, Server};
//!
//! let server = Server::connect("redis://127.0.0.1:6379")?;
//! let limiter = Limiter::new(&server, Limit::new(20, "10/s")?);
//! let by_user = RateLimitLayer::new(limiter, |request| {
//!     request.headers.get("x-user").and_then(|user| user.to_str().ok()).unwrap_or("nobody").to_owned()
//! });
//! let by_user = by_user.name("api").cost(|request| Ok(if request.uri.path() == "/export" { 10 } else { 1 }));
//! let app: Router = Router::new().route("/", get(|| async { "hello, world\n" })).layer(by_user);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::future::Future;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::{Amount, Decision, Error, Limiter, OnError};

/// Limits a route, or a router, by a bucket for each caller.
///
/// An allowed request carries its [`Decision`] as an extension. A denied one is answered with 429 and `Retry-After`;
/// without `Retry-After` if its cost is above the capacity. Both get the headers of
/// [`Decision::headers`]. While the server is away the limiter's [`OnError`] decides: this process limits by itself and
/// leaves out the headers of the bucket, requests pass without a decision, or they are answered with 503. Any other
/// [`Error`] is answered with 500, and logged.
#[derive(Clone)]
#[must_use]
pub struct RateLimitLayer {
    limiter: Limiter,
    name: Arc<str>,
    key: Arc<KeyOf>,
    cost: Arc<CostOf>,
}

const NOT_AVAILABLE: &str = "the rate limiter is not available\n";

/// The answer to a request whose cost cannot be told.
///
/// ```
/// use http::{request::Parts, StatusCode};
/// use tokenbucket_client::tower::Rejection;
///
/// fn rows(request: &Parts) -> Result<u32, Rejection> {
///     let rows = request.uri.query().unwrap_or("1");
///     rows.parse().map_err(|_| (StatusCode::BAD_REQUEST, format!("{rows} is no number of rows\n")))
/// }
/// ```
pub type Rejection = (StatusCode, String);

type KeyOf = dyn Fn(&Parts) -> String + Send + Sync;
type CostOf = dyn Fn(&Parts) -> Result<Amount, Rejection> + Send + Sync;

impl RateLimitLayer {
    /// `key` names the caller's bucket. Two limits need two prefixes, or two keys as in `search:{caller}`.
    pub fn new(limiter: Limiter, key: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        let cost = Arc::new(|_: &Parts| Ok(Amount::from(1)));
        Self { limiter, name: "default".into(), key: Arc::new(key), cost }
    }

    /// Sets how many tokens a request takes; 1 by default.
    pub fn cost<A: Into<Amount>>(
        self,
        cost: impl Fn(&Parts) -> Result<A, Rejection> + Send + Sync + 'static,
    ) -> Self {
        Self { cost: Arc::new(move |parts| cost(parts).map(Into::into)), ..self }
    }

    /// Sets the name of the limit in the headers; `default` by default.
    pub fn name(self, name: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), ..self }
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

impl<S, I, O> Service<Request<I>> for RateLimit<S>
where
    S: Service<Request<I>, Response = Response<O>> + Clone + Send + 'static,
    S::Future: Send,
    I: Send + 'static,
    O: From<String>,
{
    type Response = Response<O>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<O>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<I>) -> Self::Future {
        // The service that was polled is the one that is ready; a clone need not be.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let rule = self.rule.clone();
        let (mut parts, body) = request.into_parts();
        Box::pin(async move {
            let decision = match rule.decide(&parts).await {
                Ok(decision) => decision,
                Err((status, text)) => return Ok(answer(status, text)),
            };
            let is_known = !decision.degraded || rule.limiter.caller.options.on_error == OnError::Local;
            let mut response = if !decision.allowed {
                denial(&decision, is_known)
            } else if !is_known {
                return inner.call(Request::from_parts(parts, body)).await;
            } else {
                parts.extensions.insert(decision);
                inner.call(Request::from_parts(parts, body)).await?
            };
            rule.describe(&decision, &mut response);
            Ok(response)
        })
    }
}

impl RateLimitLayer {
    async fn decide(&self, parts: &Parts) -> Result<Decision, Rejection> {
        let (key, cost) = ((self.key)(parts), (self.cost)(parts)?);
        self.limiter.take(&key, cost).await.map_err(|error| match error {
            Error::ServerAway(_) => (StatusCode::SERVICE_UNAVAILABLE, NOT_AVAILABLE.to_owned()),
            _ => {
                log::error!(target: "tokenbucket_client::tower", "cannot limit {key:?}: {error}");
                (StatusCode::INTERNAL_SERVER_ERROR, "the rate limiter does not work\n".to_owned())
            }
        })
    }

    fn describe<O>(&self, decision: &Decision, response: &mut Response<O>) {
        let headers = response.headers_mut();
        for (name, own) in decision.headers(self.limiter.limit(), &self.name) {
            // A limit nearer to the handler has spoken already. Only the one that denies writes Retry-After.
            let value = match headers.get(name).map(HeaderValue::to_str) {
                Some(Ok(inner)) => format!("{own}, {inner}"),
                _ => own,
            };
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name, value);
            }
        }
    }
}

fn denial<O: From<String>>(decision: &Decision, is_known: bool) -> Response<O> {
    let (status, text) = match decision {
        _ if !is_known => (StatusCode::SERVICE_UNAVAILABLE, NOT_AVAILABLE),
        Decision { retry_after_ms: ..0, .. } => {
            (StatusCode::TOO_MANY_REQUESTS, "the request costs more than its limit holds\n")
        }
        _ => (StatusCode::TOO_MANY_REQUESTS, "rate limit exceeded\n"),
    };
    answer(status, text.to_owned())
}

fn answer<O: From<String>>(status: StatusCode, text: String) -> Response<O> {
    let mut response = Response::new(O::from(text));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, plain);
    response
}

/// Names the caller at this address; for IPv6 the /64, because one host can choose from all of it. Behind a proxy,
/// take the address from a header that only your proxy can have written.
///
/// ```
/// use tokenbucket_client::tower::name_of_address;
///
/// assert_eq!(name_of_address([192, 0, 2, 7].into()), "192.0.2.7");
/// assert_eq!(name_of_address([0x2001, 0xdb8, 1, 2, 3, 4, 5, 6].into()), "2001:db8:1:2::/64");
/// ```
pub fn name_of_address(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("{}/64", Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
    }
}
