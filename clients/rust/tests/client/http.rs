//! The layer, in an axum app.

use axum::body::{to_bytes, Body};
use axum::routing::get;
use axum::{Extension, Router};
use http::{HeaderMap, Request, Response, StatusCode};
use tokenbucket_client::fake::Fake;
use tokenbucket_client::tower::{name_of_address, RateLimitLayer};
use tokenbucket_client::{Decision, Limiter, OnError, Options};
use tower_service::Service;

use crate::{limit, STILL};

fn by_user(fake: &Fake, capacity: u32, options: Options) -> RateLimitLayer {
    let limiter = Limiter::with_options(&fake.server(), limit(capacity, STILL), options);
    RateLimitLayer::new(limiter, |request| user(&request.headers))
}

fn user(headers: &HeaderMap) -> String {
    headers.get("x-user").and_then(|user| user.to_str().ok()).unwrap_or("nobody").to_owned()
}

fn limited(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(hello)).layer(layer)
}

async fn hello(decision: Option<Extension<Decision>>) -> String {
    decision.map_or("unlimited".to_owned(), |Extension(decision)| format!("{} left", decision.remaining))
}

async fn ask(app: &Router, path: &str, user: &str) -> Response<String> {
    let request = Request::get(path).header("x-user", user).body(Body::empty()).unwrap();
    let (parts, body) = app.clone().call(request).await.unwrap().into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    Response::from_parts(parts, String::from_utf8(body.to_vec()).unwrap())
}

/// Status, body, and the headers of the limit.
fn parts(answer: &Response<String>) -> (u16, &str, [Option<&str>; 3]) {
    let header = |name| Some(answer.headers().get(name)?.to_str().unwrap());
    let headers = ["ratelimit-policy", "ratelimit", "retry-after"].map(header);
    (answer.status().as_u16(), answer.body(), headers)
}

#[tokio::test]
async fn each_caller_has_a_bucket_and_is_told_what_is_left() {
    let app = limited(by_user(&Fake::new(), 2, Options::new()).name("user"));
    let policy = Some(r#""user";q=2;w=720"#);
    let first = ask(&app, "/", "alice").await;
    assert_eq!(parts(&first), (200, "1 left", [policy, Some(r#""user";r=1;t=360"#), None]));
    assert_eq!(ask(&app, "/", "alice").await.status(), 200);
    let denied = ask(&app, "/", "alice").await;
    let headers = [policy, Some(r#""user";r=0;t=720"#), Some("360")];
    assert_eq!(parts(&denied), (429, "rate limit exceeded\n", headers));
    assert_eq!(ask(&app, "/", "bob").await.status(), 200);
}

#[tokio::test]
async fn a_request_costs_what_its_cost_function_says() {
    let layer = by_user(&Fake::new(), 10, Options::new()).cost(|request| {
        let rows = request.uri.query().and_then(|query| query.strip_prefix("rows="));
        let rows = rows.and_then(|rows| rows.parse::<i32>().ok());
        rows.ok_or((StatusCode::BAD_REQUEST, "how many rows?\n".to_owned()))
    });
    let app = limited(layer);
    assert_eq!(ask(&app, "/?rows=6", "alice").await.body(), "4 left");
    assert_eq!(parts(&ask(&app, "/?rows=5", "alice").await).2[2], Some("360"));
    let never = ask(&app, "/?rows=11", "alice").await;
    let (status, text, [_, _, retry_after]) = parts(&never);
    assert_eq!((status, text), (429, "the request costs more than its limit holds\n"));
    assert_eq!(retry_after, None);
    let wrong = ask(&app, "/?rows=many", "alice").await;
    assert_eq!(parts(&wrong), (400, "how many rows?\n", [None; 3]));
    assert_eq!(ask(&app, "/?rows=-1", "alice").await.status(), 500, "a mistake does not pass");
}

#[tokio::test]
async fn each_of_several_limits_writes_its_headers() {
    let fake = Fake::new();
    let inner = limited(by_user(&fake, 5, Options::new().prefix("inner:")));
    let app = inner.layer(by_user(&fake, 10, Options::new()).name("outer"));
    let policies = Some(r#""outer";q=10;w=3600, "default";q=5;w=1800"#);
    for left in (0..5).rev() {
        let answer = ask(&app, "/", "alice").await;
        let full_in_s = 360 * (5 - left);
        let state = format!(r#""outer";r={};t={full_in_s}, "default";r={left};t={full_in_s}"#, left + 5);
        assert_eq!(parts(&answer).2, [policies, Some(&state), None]);
    }
    let denied = ask(&app, "/", "alice").await;
    let state = r#""outer";r=4;t=2160, "default";r=0;t=1800"#;
    assert_eq!((denied.status().as_u16(), parts(&denied).2), (429, [policies, Some(state), Some("360")]));
}

#[tokio::test]
async fn without_a_server_requests_pass_or_are_told_to_come_back() {
    for (on_error, status, text, retry_after) in [
        (OnError::Open, 200, "unlimited", None),
        (OnError::Closed, 503, "the rate limiter is not available\n", Some("1")),
    ] {
        let fake = Fake::new();
        let app = limited(by_user(&fake, 10, Options::new().on_error(on_error)));
        assert_eq!(ask(&app, "/", "alice").await.body(), "9 left");
        fake.set_away(true);
        assert_eq!(parts(&ask(&app, "/", "alice").await), (status, text, [None, None, retry_after]));
    }
}

#[test]
fn an_address_is_one_name_and_of_ipv6_its_network_is() {
    let name = |text: &str| name_of_address(text.parse().unwrap());
    assert_eq!(name("127.0.0.1"), "127.0.0.1");
    assert_eq!(name("::ffff:127.0.0.1"), "127.0.0.1");
    assert_eq!(name("2001:db8::1:2:3:4"), "2001:db8::/64");
}
