//! Real proxies before a backend, asking a real gate over real HTTP and gRPC.
//!
//! SERVER and MODULE name a server and the module; ENVOY, CADDY, TRAEFIK, NGINX and HAPROXY the proxies.

#[path = "../../../tests/common/clock.rs"]
#[allow(dead_code)]
mod clock;
#[path = "../control_plane.rs"]
mod control_plane;
#[path = "../descriptors.rs"]
mod descriptors;
#[path = "../gate.rs"]
mod gate;
#[path = "../../../clients/rust/tests/servers.rs"]
mod servers;

mod envoy;
mod gateway;
mod http;
mod over_http;
mod program;
mod world;
