use std::net::SocketAddr;

use axum::extract::{ConnectInfo, Query};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::routing::get;
use axum::{Extension, Router};
use tokenbucket_client::tower::{name_of_address, RateLimitLayer, Rejection};
use tokenbucket_client::{Decision, Limit, Limiter, Server};

use crate::settings::Settings;

pub fn app(server: &Server, settings: &Settings) -> Router {
    let limited = |name: &'static str, limit: &Limit| {
        let limiter = Limiter::with_options(server, limit.clone(), settings.options());
        RateLimitLayer::new(limiter, move |request| format!("{name}:{}", client_address(request))).name(name)
    };
    Router::new()
        .route("/", get(|| async { "hello, world\n" }))
        // A limit of its own.
        .route("/search", get(search).layer(limited("search", &settings.search_limit)))
        // A cost of its own: one token a row.
        .route("/export", get(export).layer(limited("export", &settings.export_limit).cost(rows_of_request)))
        // Everything above: one bucket for each client address.
        .layer(limited("ip", &settings.ip_limit))
        .route("/healthz", get(|| async { "ok\n" }))
}

/// The address that the request came from. Behind a proxy that is the proxy: there, take what your proxy, and nobody
/// else, can have written.
///
/// # Panics
///
/// The app is not served with `into_make_service_with_connect_info::<SocketAddr>()`.
fn client_address(request: &Parts) -> String {
    let ConnectInfo(address) = request
        .extensions
        .get::<ConnectInfo<SocketAddr>>()
        .expect("serve with into_make_service_with_connect_info::<SocketAddr>()");
    name_of_address(address.ip())
}

/// A handler can see what was decided; there is nothing to see when Redis was away.
async fn search(decision: Option<Extension<Decision>>) -> String {
    match decision {
        Some(Extension(decision)) => format!("found; {} more searches\n", decision.remaining),
        None => "found\n".to_owned(),
    }
}

async fn export(uri: Uri) -> Result<String, Rejection> {
    Ok(format!("{} rows\n", rows(&uri)?))
}

fn rows_of_request(request: &Parts) -> Result<u64, Rejection> {
    rows(&request.uri)
}

fn rows(uri: &Uri) -> Result<u64, Rejection> {
    let Query(query) = Query::<Vec<(String, String)>>::try_from_uri(uri).unwrap_or_default();
    let rows = query.iter().find(|(name, _)| name == "rows").and_then(|(_, value)| value.parse().ok());
    rows.filter(|rows| (1..=1_000_000_000).contains(rows)).ok_or_else(|| {
        (StatusCode::BAD_REQUEST, "rows must be a whole number from 1 to 1000000000\n".to_owned())
    })
}
