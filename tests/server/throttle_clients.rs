//! `CL.THROTTLE` as a published client of redis-cell calls it, which knows nothing of this module: tower-redis-cell, by
//! way of redis-cell-rs.

use crate::common::Server;
use std::convert::Infallible;
use tower::{service_fn, Layer, Service};
use tower_redis_cell::redis_cell::Policy;
use tower_redis_cell::{Error, ProvideRule, ProvideRuleResult, RateLimitConfig, RateLimitLayer, Rule};

/// What goes through the layer: the name of who asks; and what comes back.
struct Request(&'static str);

#[derive(Debug, PartialEq)]
enum Response {
    /// Nobody was asked.
    Served,
    /// Total, remaining and when it is whole again, in seconds.
    Allowed([u64; 3]),
    /// The same, and when to retry.
    Limited([u64; 4]),
    Failed(String),
}

#[derive(Clone)]
struct ByName;

impl ProvideRule<Request> for ByName {
    fn provide<'a>(&self, request: &'a Request) -> ProvideRuleResult<'a> {
        const SIXTEEN_AT_ONCE: Policy = Policy::new(15, 30, std::time::Duration::from_secs(60), 1);
        let policy = if request.0 == "bob" {
            SIXTEEN_AT_ONCE.apply_tokens(16)
        } else {
            SIXTEEN_AT_ONCE.apply_tokens(8)
        };
        Ok((request.0 != "health").then(|| Rule::new(request.0, policy)))
    }
}

fn refuse(error: Error, _request: &Request) -> Response {
    match error {
        Error::RateLimit(blocked) => {
            let told = blocked.details;
            Response::Limited([told.total as u64, told.remaining as u64, told.reset_after, told.retry_after])
        }
        other => Response::Failed(other.to_string()),
    }
}

async fn serve(_request: Request) -> Result<Response, Infallible> {
    Ok(Response::Served)
}

#[test]
fn tower_redis_cell_limits_a_service_and_is_told_of_errors() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = Server::with_clock();
    server.connect().say("SET carol word");
    runtime.block_on(async {
        let config = RateLimitConfig::new(ByName, refuse).on_success(|allowed, response: &mut Response| {
            let told = &allowed.details;
            *response = Response::Allowed([told.total as u64, told.remaining as u64, told.reset_after]);
        });
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", server.port())).unwrap();
        let connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut service = RateLimitLayer::new(config, connection).layer(service_fn(serve));
        for (who, expected) in [
            ("alice", Response::Allowed([16, 8, 16])),
            ("bob", Response::Allowed([16, 0, 32])),
            ("alice", Response::Allowed([16, 0, 32])),
            ("alice", Response::Limited([16, 0, 32, 16])),
            ("health", Response::Served),
        ] {
            assert_eq!(service.call(Request(who)).await.unwrap(), expected, "{who}");
        }
        server.clock().advance_ms(16_000);
        assert_eq!(service.call(Request("alice")).await.unwrap(), Response::Allowed([16, 0, 32]));
        let failed = service.call(Request("carol")).await.unwrap();
        assert!(matches!(&failed, Response::Failed(error) if error.contains("WRONGTYPE")), "{failed:?}");
    });
}
