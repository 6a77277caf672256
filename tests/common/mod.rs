//! Real servers for the tests: started on free ports in temporary folders, ended by their own process id.
//!
//! Which server is said by two environment variables, that the Makefile sets:
//! `SERVER`, the executable (default: `redis-server` on the path), and `MODULE`, the module to load (default: what
//! `cargo build --release` makes). `SERVER_CC` is a C compiler for a server that is not for this machine.

pub mod calls;
pub mod clock;
pub mod engine;
pub mod judged_calls;
#[path = "../../core/tests/model/mod.rs"]
pub mod model;
pub mod payload;
pub mod random;
pub mod reply;
pub mod script;
pub mod server;
pub mod stored;
#[path = "../../core/tests/pure/strategies.rs"]
pub mod strategies;
pub mod wait;

pub use clock::Clock;
pub use engine::{is_before, Engine};
pub use random::Random;
pub use reply::{
    array, decided, decision, integer, multi_decision, shown, tell, text, texts, unix_us, Decision,
};
pub use server::{Connection, Server, ServerBuilder};
pub use wait::{timeout, wait_until};

pub const HOUR_MS: i64 = 3_600_000;

/// A whole number that the environment may say.
pub fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name}={value}")))
}
