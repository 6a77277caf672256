//! Limiters on real servers.

#![allow(missing_docs)]

#[path = "../../../../tests/common/clock.rs"]
#[allow(dead_code)]
mod clock;
#[path = "../sentinel.rs"]
mod sentinel;
#[path = "../servers.rs"]
mod servers;

mod away;
mod cluster;
mod fake;
mod fallback;
mod holds;
mod http;
mod late;
mod limits;
mod logs;
mod memory;
mod operations;
mod sentinels;
mod threads;
mod traces;
mod turns;

use std::time::Duration;

use tokenbucket_client::{Limit, Limiter, Options, Server, ServerOptions};

/// One token in six minutes: nothing flows in while a test runs.
pub const STILL: &str = "10/h";

/// A slow machine is no outage, except to the tests that say when it is one.
pub fn patient() -> ServerOptions {
    ServerOptions::new().timeout(Duration::from_secs(10))
}

pub fn limit(capacity: u32, rate: &str) -> Limit {
    Limit::new(capacity, rate).expect("a limit")
}

pub fn limiter(server: &servers::Server, limit: Limit, options: Options) -> Limiter {
    limiter_with(server, limit, options, patient())
}

pub fn limiter_with(
    server: &servers::Server,
    limit: Limit,
    options: Options,
    server_options: ServerOptions,
) -> Limiter {
    let server = Server::connect_with(server.url(), server_options).expect("a URL");
    Limiter::with_options(&server, limit, options)
}
