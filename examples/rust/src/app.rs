use axum::extract::{Query, Request};
use axum::http::{StatusCode, Uri};
use axum::routing::get;
use axum::{Extension, Router};

use crate::layer::{client_address, RateLimitLayer, Rejection};
use crate::limiter::{Decision, Limit, Limiter};
use crate::settings::Settings;

pub fn app(limiter: Limiter, settings: &Settings) -> Router {
    let limited = |name: &'static str, limit: Limit| {
        let key = move |request: &Request| format!("tb:{name}:{}", client_address(request));
        RateLimitLayer::new(limiter.clone(), limit, key).on_error(settings.on_error)
    };
    Router::new()
        .route("/", get(|| async { "hello, world\n" }))
        // A limit of its own.
        .route("/search", get(search).layer(limited("search", settings.search_limit)))
        // A cost of its own: one token a row.
        .route("/export", get(export).layer(limited("export", settings.export_limit).cost(rows_of_request)))
        // Everything above: one bucket for each client address.
        .layer(limited("ip", settings.ip_limit))
        .route("/healthz", get(|| async { "ok\n" }))
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

fn rows_of_request(request: &Request) -> Result<u64, Rejection> {
    rows(request.uri())
}

fn rows(uri: &Uri) -> Result<u64, Rejection> {
    let Query(query) = Query::<Vec<(String, String)>>::try_from_uri(uri).unwrap_or_default();
    let rows = query.iter().find(|(name, _)| name == "rows").and_then(|(_, value)| value.parse().ok());
    rows.filter(|rows| (1..=1_000_000_000).contains(rows)).ok_or_else(|| {
        (StatusCode::BAD_REQUEST, "rows must be a whole number from 1 to 1000000000\n".to_owned())
    })
}
