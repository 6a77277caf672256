//! Limiters on real servers.

#![allow(missing_docs)]

#[path = "../sentinel.rs"]
mod sentinel;
#[path = "../servers.rs"]
mod servers;

mod away;
mod fake;
mod holds;
mod http;
mod late;
mod limits;
mod logs;
mod memory;
mod near;
mod operations;
mod replies;
mod rules;
mod topologies;
mod turns;

use std::future::Future;
use std::thread;
use std::time::{Duration, Instant};

use tokenbucket_client::{Limit, Limiter, Options, Server};

use crate::servers::ask;

/// One token in six minutes: nothing flows in while a test runs.
pub const STILL: &str = "10/h";
/// A test does not last as long.
pub const LONG: Duration = Duration::from_secs(3600);

pub fn connect(server: &servers::Server) -> Server {
    Server::connect(server.url()).expect("a URL")
}

/// A slow machine is no outage, except to the tests that say when it is one.
pub fn patient(server: &servers::Server) -> Server {
    connect(server).with_timeout(Duration::from_secs(10))
}

pub fn limit(capacity: u32, rate: &str) -> Limit {
    Limit::new(capacity, rate).expect("a limit")
}

pub fn limiter(server: &servers::Server, limit: Limit, options: Options) -> Limiter {
    Limiter::with_options(&patient(server), limit, options)
}

/// Waits for a condition on a thread without a runtime.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns what a call returns while the server is silent.
pub async fn while_silent<T>(server: &servers::Server, call: impl Future<Output = T>) -> T {
    server.signal("STOP");
    let done = call.await;
    server.signal("CONT");
    done
}

/// The number that the server's INFO has under this name.
pub fn stat(server: &servers::Server, name: &str) -> u64 {
    ask::<redis::InfoDict>(server, &["INFO", "everything"]).get(name).expect("a number")
}

/// The connection whose last command that is.
pub fn id_of(server: &servers::Server, command: &str) -> Option<String> {
    let clients: String = ask(server, &["CLIENT", "LIST"]);
    let is_it = |line: &&str| line.to_lowercase().contains(&format!("cmd={command}"));
    clients.lines().find(is_it)?.split(['=', ' ']).nth(1).map(str::to_owned)
}

/// How often the server was sent commands whose names begin so, refused ones included.
pub fn calls(server: &servers::Server, command: &str) -> u64 {
    let info = ask::<String>(server, &["INFO", "commandstats"]).to_lowercase();
    let lines = info.lines().filter(|line| line.starts_with(&format!("cmdstat_{command}")));
    let number = |line: &str, name| line.split(name).nth(1)?.split(',').next()?.parse::<u64>().ok();
    lines.flat_map(|line| [":calls=", "rejected_calls="].map(|name| number(line, name).unwrap_or(0))).sum()
}
