//! The layer, in an axum app.

use axum::body::{to_bytes, Body};
use axum::routing::get;
use axum::{Extension, Router};
use http::{HeaderMap, Request, StatusCode};
use tokenbucket_client::tower::{name_of_address, RateLimitLayer};
use tokenbucket_client::{Decision, Limiter, OnError, Options};
use tower_service::Service;

use crate::servers::{self, Server};
use crate::{limit, limiter, STILL};

fn by_user(limiter: &Limiter) -> RateLimitLayer {
    RateLimitLayer::new(limiter.clone(), |request| user(&request.headers))
}

fn user(headers: &HeaderMap) -> String {
    headers.get("x-user").and_then(|user| user.to_str().ok()).unwrap_or("nobody").to_owned()
}

async fn hello(decision: Option<Extension<Decision>>) -> String {
    decision.map_or("unlimited".to_owned(), |Extension(decision)| format!("{} left", decision.remaining))
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

async fn ask(app: &Router, path: &str, user: &str) -> Answer {
    let request = Request::get(path).header("x-user", user).body(Body::empty()).unwrap();
    let (parts, body) = app.clone().call(request).await.unwrap().into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    Answer {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

#[tokio::test]
async fn each_caller_has_a_bucket_and_is_told_what_is_left() {
    let server = Server::start();
    let limiter = limiter(&server, limit(2, STILL), Options::new());
    let app = Router::new().route("/", get(hello)).layer(by_user(&limiter).name("user"));
    let first = ask(&app, "/", "alice").await;
    assert_eq!((first.status, first.body.as_str()), (200, "1 left"), "a handler sees the decision");
    assert_eq!(first.header("ratelimit-policy"), Some(r#""user";q=2;w=720"#));
    assert_eq!(first.header("ratelimit"), Some(r#""user";r=1;t=360"#));
    assert_eq!(first.header("retry-after"), None);
    assert_eq!(ask(&app, "/", "alice").await.status, 200);

    let denied = ask(&app, "/", "alice").await;
    assert_eq!((denied.status, denied.body.as_str()), (429, "rate limit exceeded\n"));
    assert_eq!(denied.header("ratelimit"), Some(r#""user";r=0;t=720"#));
    assert_eq!(denied.header("retry-after"), Some("360"));
    assert_eq!(ask(&app, "/", "bob").await.status, 200);
}

#[tokio::test]
async fn a_request_costs_what_its_cost_function_says() {
    let server = Server::start();
    let limiter = limiter(&server, limit(10, STILL), Options::new());
    let layer = by_user(&limiter).cost(|request| {
        let rows = request.uri.query().and_then(|query| query.strip_prefix("rows="));
        let rows = rows.and_then(|rows| rows.parse::<u64>().ok());
        rows.ok_or((StatusCode::BAD_REQUEST, "how many rows?\n".to_owned()))
    });
    let app = Router::new().route("/", get(hello)).layer(layer);
    assert_eq!(ask(&app, "/?rows=6", "alice").await.body, "4 left");
    assert_eq!(ask(&app, "/?rows=5", "alice").await.header("retry-after"), Some("360"));
    let never = ask(&app, "/?rows=11", "alice").await;
    assert_eq!((never.status, never.header("retry-after")), (429, None));
    assert_eq!(never.body, "the request costs more than its limit holds\n");
    let wrong = ask(&app, "/?rows=many", "alice").await;
    assert_eq!((wrong.status, wrong.body.as_str()), (400, "how many rows?\n"));
}

#[tokio::test]
async fn each_of_several_limits_writes_its_headers() {
    let server = Server::start();
    let outer = limiter(&server, limit(10, STILL), Options::new());
    let inner = limiter(&server, limit(5, STILL), Options::new().prefix("inner:"));
    let app =
        Router::new().route("/", get(hello)).layer(by_user(&inner)).layer(by_user(&outer).name("outer"));
    for left in (0..5).rev() {
        let answer = ask(&app, "/", "alice").await;
        let policies = r#""outer";q=10;w=3600, "default";q=5;w=1800"#;
        assert_eq!(answer.header("ratelimit-policy"), Some(policies));
        let state = answer.header("ratelimit").unwrap();
        assert!(state.starts_with(&format!(r#""outer";r={};t="#, left + 5)), "{state}");
        assert!(state.contains(&format!(r#", "default";r={left};t="#)), "{state}");
        assert_eq!(answer.header("retry-after"), None);
    }
    let denied = ask(&app, "/", "alice").await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("360")));
    assert!(denied.header("ratelimit").unwrap().contains(r#", "default";r=0;t="#));
}

#[tokio::test]
async fn without_a_server_requests_pass_or_are_told_to_come_back() {
    for (on_error, status) in [(OnError::Open, 200), (OnError::Closed, 503)] {
        let server = Server::start();
        let options = Options::new().on_error(on_error);
        let limiter = limiter(&server, limit(10, STILL), options);
        let app = Router::new().route("/", get(hello)).layer(by_user(&limiter));
        assert_eq!(ask(&app, "/", "alice").await.body, "9 left");
        server.kill();
        let answer = ask(&app, "/", "alice").await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("ratelimit"), None);
        assert_eq!(answer.header("retry-after"), (status == 503).then_some("1"));
        let text = if status == 200 { "unlimited" } else { "the rate limiter is not available\n" };
        assert_eq!(answer.body, text);
    }
}

#[tokio::test]
async fn what_is_wrong_in_itself_does_not_pass_by_failing_open() {
    let server = Server::start();
    servers::ask::<()>(&server, &["SET", "tb:alice", "hello"]);
    let limiter = limiter(&server, limit(10, STILL), Options::new());
    let app = Router::new().route("/", get(hello)).layer(by_user(&limiter));
    assert_eq!(ask(&app, "/", "alice").await.status, 500);
}

#[test]
fn an_address_is_one_name_and_of_ipv6_its_network_is() {
    let name = |text: &str| name_of_address(text.parse().unwrap());
    assert_eq!(name("127.0.0.1"), "127.0.0.1");
    assert_eq!(name("::ffff:127.0.0.1"), "127.0.0.1");
    assert_eq!(name("2001:db8::1:2:3:4"), "2001:db8::/64");
}
