//! `CL.THROTTLE` as published clients of redis-cell call it, which know nothing of this module.

use crate::common::Server;
use redis_cell_rs::{Cmd, Key, Policy, Verdict};
use std::convert::Infallible;
use std::time::Duration;
use tower::{service_fn, Layer, Service};
use tower_redis_cell::{Error, ProvideRule, ProvideRuleResult, RateLimitConfig, RateLimitLayer, Rule};

/// Sends one call of the crate `redis-cell-rs`.
fn ask(server: &Server, key: &Key, policy: &Policy) -> Verdict {
    let command: redis::Cmd = Cmd::new(key, policy).into();
    command.query(server.connect().inner()).unwrap()
}

/// Total, remaining, when to retry if it was blocked, and when it is whole again, in seconds.
fn told(verdict: Verdict) -> (usize, usize, Option<u64>, u64) {
    match verdict {
        Verdict::Allowed(told) => (told.total, told.remaining, None, told.reset_after),
        Verdict::Blocked(told) => (told.total, told.remaining, Some(told.retry_after), told.reset_after),
    }
}

#[test]
fn redis_cell_rs_is_allowed_and_blocked() {
    let server = Server::with_clock();
    let policy = Policy::new(15, 30, Duration::from_secs(60), 1);
    let keys = [Key::from("user123"), Key::pair("user123", "/api/infer"), Key::from(42_usize)];
    for key in keys {
        assert_eq!(told(ask(&server, &key, &policy)), (16, 15, None, 2));
        assert_eq!(told(ask(&server, &key, &policy.apply_tokens(15))), (16, 0, None, 32));
        assert_eq!(told(ask(&server, &key, &policy)), (16, 0, Some(2), 32));
        assert_eq!(told(ask(&server, &key, &policy.apply_tokens(16))), (16, 0, Some(32), 32));
        server.clock().advance_ms(2000);
        assert_eq!(told(ask(&server, &key, &policy)), (16, 0, None, 32));
    }
}

/// What goes through the layer: the name of who asks; and what comes back.
struct Request(&'static str);

#[derive(Debug, PartialEq)]
enum Response {
    Served { remaining: Option<usize> },
    Limited { retry_after_s: u64 },
    Failed(String),
}

#[derive(Clone)]
struct ByName;

impl ProvideRule<Request> for ByName {
    fn provide<'a>(&self, request: &'a Request) -> ProvideRuleResult<'a> {
        const THREE_AT_ONCE: Policy = Policy::from_tokens_per_second(1).max_burst(2);
        Ok((request.0 != "health").then(|| Rule::new(request.0, THREE_AT_ONCE)))
    }
}

fn refuse(error: Error, _request: &Request) -> Response {
    match error {
        Error::RateLimit(blocked) => Response::Limited { retry_after_s: blocked.details.retry_after },
        other => Response::Failed(other.to_string()),
    }
}

async fn serve(_request: Request) -> Result<Response, Infallible> {
    Ok(Response::Served { remaining: None })
}

#[test]
fn tower_redis_cell_limits_a_service_and_is_told_of_errors() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = Server::with_clock();
    server.connect().say("SET carol word");
    runtime.block_on(async {
        let config = RateLimitConfig::new(ByName, refuse).on_success(|allowed, response: &mut Response| {
            *response = Response::Served { remaining: Some(allowed.details.remaining) };
        });
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port())).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut service = RateLimitLayer::new(config, connection).layer(service_fn(serve));
        for (who, expected) in [
            ("alice", Response::Served { remaining: Some(2) }),
            ("alice", Response::Served { remaining: Some(1) }),
            ("bob", Response::Served { remaining: Some(2) }),
            ("alice", Response::Served { remaining: Some(0) }),
            ("alice", Response::Limited { retry_after_s: 1 }),
            ("health", Response::Served { remaining: None }),
        ] {
            assert_eq!(service.call(Request(who)).await.unwrap(), expected, "{who}");
        }
        server.clock().advance_ms(1000);
        let served = service.call(Request("alice")).await.unwrap();
        assert_eq!(served, Response::Served { remaining: Some(0) });
        let failed = service.call(Request("carol")).await.unwrap();
        assert!(matches!(&failed, Response::Failed(error) if error.contains("WRONGTYPE")), "{failed:?}");
    });
}
