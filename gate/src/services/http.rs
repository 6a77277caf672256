//! The HTTP server.

use std::future::Future;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Extension, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{from_fn_with_state, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::Router;
use hyper::body::Body as _;
use hyper::server::conn::http1;
use hyper::service::{service_fn, Service};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::sync::mpsc;
use tonic::transport::server::Connected;

use super::in_flight::{until_sent, Arriving};
use super::json;
use super::listen::{Connection, Peer};
use super::{Gate, InFlight};
use crate::check;
use crate::decide::Refusal;
use crate::messages::Code;

/// The longest body, whose parsed form is many times larger. Requests have a few hundred bytes.
const MAX_BODY_BYTES: usize = 1 << 17;

/// The most bytes and headers of a head. Proxies pass on those of their callers: nginx reads 32 KiB.
const MAX_HEAD_BYTES: usize = 1 << 16;
const MAX_HEADERS: usize = 1_000;

/// How much longer than an idle connection a head may take to arrive.
const HEADERS_WITHIN: Duration = Duration::from_secs(15);

/// A reply beyond this holds memory until it is sent. Metrics can have megabytes.
const LARGE_REPLY_BYTES: usize = 1 << 16;

/// The time for a body to arrive.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);

/// Returns the routes of `PORT`.
pub fn main_routes(gate: Arc<Gate>) -> Router {
    Router::new()
        .route("/healthcheck", any(healthcheck))
        .route("/json", any(should_rate_limit))
        .route("/check", any(forwarded))
        .route("/metrics", get(metrics))
        .with_state(gate)
}

/// Returns the routes of `DEBUG_PORT`.
pub fn debug_routes(gate: Arc<Gate>) -> Router {
    Router::new().route("/rlconfig", get(rlconfig)).with_state(gate)
}

/// Returns the routes of `PROMETHEUS_ADDR`.
pub fn prometheus_routes(gate: Arc<Gate>, path: &str) -> Router {
    Router::new().route(path, get(metrics)).with_state(gate)
}

async fn healthcheck(State(gate): State<Arc<Gate>>) -> Response {
    if gate.health.is_serving() {
        (StatusCode::OK, "OK").into_response()
    } else {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

async fn metrics(State(gate): State<Arc<Gate>>) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], gate.counters.render()).into_response()
}

async fn rlconfig(State(gate): State<Arc<Gate>>) -> String {
    gate.limits().map(|limits| limits.dump()).unwrap_or_default()
}

async fn should_rate_limit(State(gate): State<Arc<Gate>>, body: Bytes) -> Response {
    let request = match json::request(&body) {
        Ok(request) => request,
        Err(reason) => return bad_request(&reason),
    };
    let response = match gate.decider.decide(gate.limits().as_deref(), &request).await {
        Ok(response) => response,
        Err(Refusal::Service(reason)) => return bad_request(&reason),
        Err(Refusal::Redis(reason)) => {
            return (StatusCode::SERVICE_UNAVAILABLE, format!("Service Unavailable: {reason}\n"))
                .into_response()
        }
    };
    let status = match response.overall_code() {
        Code::Ok => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    match json::response(&response) {
        Ok(json) => (status, [(CONTENT_TYPE, "application/json")], json).into_response(),
        Err(reason) => (StatusCode::INTERNAL_SERVER_ERROR, reason).into_response(),
    }
}

async fn forwarded(
    State(gate): State<Arc<Gate>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Response {
    let Some(rules) = gate.rules.load_full() else {
        return (StatusCode::NOT_FOUND, "CHECK_FILE is not set\n").into_response();
    };
    check::answer(&rules, gate.limits().as_deref(), &gate.decider, &headers, peer.0).await
}

fn bad_request(reason: &str) -> Response {
    (StatusCode::BAD_REQUEST, format!("Bad Request: {reason}\n")).into_response()
}

/// Serves connections until `stop`, then finishes the requests that run.
pub async fn serve(
    mut connections: mpsc::Receiver<io::Result<Connection>>,
    routes: Router,
    in_flight: Arc<InFlight>,
    idle: Duration,
    stop: impl Future<Output = ()>,
) {
    let bounds = from_fn_with_state(in_flight, bounded);
    let routes = routes.layer(DefaultBodyLimit::max(MAX_BODY_BYTES)).layer(bounds);
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(idle.saturating_add(HEADERS_WITHIN));
    server.max_buf_size(MAX_HEAD_BYTES).max_headers(MAX_HEADERS);
    let running = GracefulShutdown::new();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            connection = connections.recv() => match connection {
                Some(Ok(connection)) => {
                    tokio::spawn(serve_one(server.clone(), connection, routes.clone(), running.watcher()));
                }
                Some(Err(error)) => log::debug!("connection: {error}"),
                None => break,
            },
            () = &mut stop => break,
        }
    }
    drop(connections);
    running.shutdown().await;
}

async fn serve_one(server: http1::Builder, connection: Connection, routes: Router, running: Watcher) {
    let peer = connection.connect_info();
    let wants_head = connection.wants_head();
    let routes = TowerToHyperService::new(routes.layer(Extension(peer)));
    let service = service_fn(move |request| {
        // The head is complete; the next may come after the reply.
        wants_head.store(false, Ordering::Relaxed);
        let (reply, wants_head) = (routes.call(request), wants_head.clone());
        async move {
            let reply = reply.await;
            wants_head.store(true, Ordering::Relaxed);
            reply
        }
    });
    let serving = server.serve_connection(TokioIo::new(connection), service);
    if let Err(error) = running.watch(serving).await {
        log::debug!("connection of {peer:?}: {error}");
    }
}

/// Ends a request that takes too long, for example because its body never arrives, and refuses one without memory for it.
async fn bounded(State(in_flight): State<Arc<InFlight>>, request: Request<Body>, next: Next) -> Response {
    let held = in_flight.request();
    let request = Arriving::new(request, held.clone());
    if held.is_refused() {
        return too_many();
    }
    let response = tokio::time::timeout(REQUEST_WITHIN, next.run(request.map(Body::new))).await;
    let response = response.unwrap_or_else(|_| StatusCode::REQUEST_TIMEOUT.into_response());
    match response.body().size_hint().exact().map(usize::try_from) {
        _ if held.is_refused() => too_many(),
        // A client that does not read must not make this program keep many.
        Some(Ok(size)) if size > LARGE_REPLY_BYTES => match held.hold(size) {
            true => response.map(|body| Body::new(until_sent(body, held))),
            false => too_many(),
        },
        _ => response,
    }
}

fn too_many() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "too many unfinished requests\n").into_response()
}
