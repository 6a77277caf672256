//! The program on logs: exact, hostile, as real programs write them; and its reports.
//!
//! SERVER and MODULE name a server and the module; GATE the gate; ENVOY, CADDY, NGINX and HAPROXY other programs.

#[path = "../../../tests/common/clock.rs"]
#[allow(dead_code)]
mod clock;
#[path = "../../../gate/tests/ports.rs"]
mod ports;
#[path = "../../../gate/tests/proxies/program.rs"]
mod program;
#[path = "../../../clients/rust/tests/servers.rs"]
mod servers;

mod client;
mod exact;
mod formats;
mod gate;
mod hostile;
mod module;
mod pages;
mod programs;
mod run;
