//! The gate where Envoy Gateway starts envoyproxy/ratelimit: limits by xDS, requests by Envoy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::time::Instant;

use tokenbucket_gate::limits::config_messages::RateLimitConfig;
use tokenbucket_gate::messages::Unit;

use crate::control_plane::ControlPlane;
use crate::descriptors::{config, descriptor, limited};
use crate::envoy;
use crate::gate::{get, wait_until, Gate, Reply};
use crate::http::Backend;
use crate::program::Program;
use crate::servers::Server;
use crate::world::statuses;

const CALLERS: u32 = 4;

struct Gateway {
    control_plane: ControlPlane,
    gate: Gate,
    envoy: Program,
    _others: (Server, Backend),
}

impl Gateway {
    fn start() -> Self {
        let (redis, control_plane) = (Server::start(), ControlPlane::start());
        let gate = control_plane.follower().set("REDIS_URL", redis.url()).set("REDIS_TIMEOUT", "10s").start();
        gate.wait_until_healthy();
        let backend = Backend::start();
        let envoy = envoy::before(&backend, &[&gate], true);
        Self { control_plane, gate, envoy, _others: (redis, backend) }
    }

    fn get(&self, path: &str, user: &str) -> Reply {
        get(self.envoy.port, path, &[("x-user-id", user)])
    }

    fn set(&self, version: &str, configs: &[RateLimitConfig]) {
        self.control_plane.set(version, configs);
        self.control_plane.wait_for_acceptance(version);
    }
}

/// Both rules of the policy, and a budget of tokens for each user.
fn policy(requests: u32, tokens: u32) -> RateLimitConfig {
    let route = "httproute/default/backend/rule/0/match/0/www_example_com";
    let llm = "httproute/default/llm/rule/0/match/0/www_example_com";
    let header = limited("rule-0-match-0", "rule-0-match-0", requests, Unit::Hour);
    let address = descriptor(
        "masked_remote_address",
        "127.0.0.0/8",
        vec![limited("remote_address", "", requests, Unit::Hour)],
    );
    let routes = vec![
        descriptor(route, route, vec![header, address]),
        descriptor(llm, llm, vec![limited("rule-0-match-0", "", tokens, Unit::Hour)]),
    ];
    config("default/eg/http", routes)
}

/// Limits of requests and of tokens work through Envoy; a policy that is gone limits nothing.
#[test]
fn limits_as_policies_say() {
    let gateway = Gateway::start();
    // Without limits the gate replies with an error, and Envoy denies then.
    assert_eq!(gateway.get("/gateway", "one").status, 500);
    gateway.set("1", &[policy(2, 100_000)]);
    assert_eq!(statuses(3, || gateway.get("/gateway", "one")), [200, 200, 429]);
    // The backend reports 60,000 tokens for each answer.
    let answer = || envoy::get_and_report(&gateway.gate, 60_000, || gateway.get("/llm", "one")).status;
    assert_eq!([answer(), answer()], [200, 200]);
    assert_eq!((gateway.get("/llm", "one").status, gateway.get("/llm", "two").status), (429, 200));
    gateway.set("2", &[]);
    assert_eq!(statuses(3, || gateway.get("/gateway", "one")), [200; 3]);
}

/// What one call saw: when it began, and the limits that decided it.
type Seen = (Instant, Vec<u32>);

/// Calls until `stop`, and asserts that each call is decided.
fn call(port: u16, stop: &AtomicBool, seen: &Mutex<Vec<Seen>>) {
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let reply = get(port, "/gateway", &[("x-user-id", "one")]);
        assert_eq!(reply.status, 200, "{reply:?}");
        // `7, 7;w=3600, 7;w=3600`: the nearest limit, and each.
        let limits = reply.header("x-ratelimit-limit").expect("a decision");
        let number = |limit: &str| limit.trim().split(';').next()?.parse().ok();
        seen.lock().expect("no panic").push((began, limits.split(',').filter_map(number).collect()));
    }
}

/// Under load, no call is undecided, none is decided by two configurations, and each is decided by the newest that was in use
/// before it began.
#[test]
fn configurations_change_under_load() {
    let gateway = Gateway::start();
    let many = 1_000_000;
    gateway.set("0", &[policy(many, 1)]);
    let (stop, seen, port) = (AtomicBool::new(false), Mutex::new(Vec::new()), gateway.envoy.port);
    let mut accepted = vec![Instant::now()];
    std::thread::scope(|scope| {
        for _ in 0..CALLERS {
            scope.spawn(|| call(port, &stop, &seen));
        }
        for version in 1..=10 {
            let count = seen.lock().expect("no panic").len();
            wait_until("calls", || seen.lock().expect("no panic").len() > count + 300);
            gateway.set(&version.to_string(), &[policy(many + version, 1)]);
            accepted.push(Instant::now());
        }
        stop.store(true, Ordering::Relaxed);
    });
    let seen = seen.into_inner().expect("no panic");
    for (began, limits) in &seen {
        let [first, second, third] = limits[..] else { panic!("{limits:?}") };
        assert!(first == second && second == third, "a mixture: {limits:?}");
        let oldest = accepted.iter().rposition(|accepted| accepted <= began).unwrap_or(0);
        assert!(first as usize >= many as usize + oldest, "{limits:?} is older than version {oldest}");
    }
}
