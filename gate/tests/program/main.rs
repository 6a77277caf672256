//! The program as its users meet it: settings, start and end, health, reload, TLS, and clients that mean no good.
//!
//! SERVER and MODULE say which server and which module.

#[path = "../control_plane.rs"]
mod control_plane;
#[path = "../descriptors.rs"]
mod descriptors;
#[path = "../gate.rs"]
mod gate;
#[path = "../../../clients/rust/tests/sentinel.rs"]
mod sentinel;
#[path = "../../../clients/rust/tests/servers.rs"]
mod servers;

mod access;
mod connections;
mod flood;
mod h2_client;
mod health;
mod hostile;
mod http;
mod kuadrant;
mod redis;
mod reload;
mod settings;
mod tls;
mod xds;

use gate::{Gate, Setup};
use servers::Server;

/// Two requests a minute for each value of `key`.
const TWO: &str = "domain: d
descriptors:
  - key: key
    rate_limit: {unit: minute, requests_per_unit: 2}
";

/// A server, and a gate before it that has [`TWO`] and is ready.
fn started(variables: &[(&str, &str)]) -> (Server, Gate) {
    let redis = Server::start();
    let gate = Setup::redis(&redis.url()).file("two.yaml", TWO).set_all(variables).start();
    gate.wait_until_healthy();
    (redis, gate)
}

/// A request under [`TWO`].
fn asks(value: &str) -> String {
    format!(r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"key","value":"{value}"}}]}}]}}"#)
}
