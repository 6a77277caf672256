//! Envoy, which asks by gRPC.

use crate::clock::Clock;
use crate::gate::ports::free_port;
use crate::gate::{ask, get, wait_until, Gate, Reply};
use crate::http::Backend;
use crate::over_http::LIMITS;
use crate::program::{folder, program, Program};
use crate::servers::Server;
use crate::world::{configured, statuses, World};

/// Longer than any reply takes on a busy machine, so that Envoy lets nothing pass in between.
pub const PATIENT: &str = "30s";

/// Envoy by the configuration of the tests, before a backend.
pub fn before(backend: &Backend, gates: &[&Gate], failure_mode_deny: bool) -> Program {
    let port = free_port();
    let endpoint = |gate: &&Gate| {
        let port = gate.grpc;
        format!("{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}")
    };
    let gates: Vec<_> = gates.iter().map(endpoint).collect();
    let replaced = [
        ("ENVOY_PORT", &*port.to_string()),
        ("BACKEND_PORT", &backend.port.to_string()),
        ("TIMEOUT", PATIENT),
        ("FAILURE_MODE_DENY", &failure_mode_deny.to_string()),
        ("GATES", &gates.join(", ")),
    ];
    start(port, &configured("tests/proxies/envoy.yaml", &replaced))
}

fn start(port: u16, text: &str) -> Program {
    let envoy = program("ENVOY", "envoy");
    let options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"];
    let command = [&[envoy.as_str(), "-c", "envoy.yaml"][..], &options[..]].concat();
    Program::start(port, folder(&[("envoy.yaml", text)]), &command)
}

/// A world whose time stands still until the test moves it.
pub fn world_with_clock(limits: &str) -> (World, Clock) {
    let redis = Server::started(&["--clock"]);
    let clock = Clock::new(&redis.folder);
    (World::with(redis, limits), clock)
}

/// Envoy by the example, with more replaced than ports.
pub fn example(world: &World, gate: &Gate, replaced: &[(&str, &str)]) -> Program {
    let port = free_port();
    let own = [
        ("port_value: 8000", &*format!("port_value: {port}")),
        ("port_value: 8081", &format!("port_value: {}", gate.grpc)),
        ("port_value: 3000", &format!("port_value: {}", world.backend.port)),
        ("timeout: 0.3s", &format!("timeout: {PATIENT}")),
    ];
    start(port, &configured("examples/envoy/envoy.yaml", &[&own, replaced].concat()))
}

#[test]
fn the_example_limits_logins_and_says_what_is_left() {
    let (world, clock) = world_with_clock(&configured("examples/limits/edge.yaml", &[]));
    let gate = world.gate(&[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")]);
    let envoy = example(&world, &gate, &[]);
    let port = envoy.port;

    for left in (0..5).rev() {
        let login = ask(port, "POST", "/login", &[], "name=ann");
        assert_eq!((login.status, login.number("x-ratelimit-remaining")), (200, Some(left)), "{login:?}");
        assert_eq!(login.body, "from the backend name=ann");
    }
    let denied = ask(port, "POST", "/login", &[], "name=ann");
    assert_eq!((denied.status, denied.number("retry-after")), (429, Some(12)), "{denied:?}");
    let limits = denied.header("x-ratelimit-limit").expect("a header");
    assert!(limits.starts_with("5, ") && limits.contains(r#"5;w=60;name="login""#), "{limits}");

    // The denied login took nothing of the caller's other limit: 50 - 5 - 1.
    let other = get(port, "/", &[]);
    assert_eq!((other.status, other.number("x-ratelimit-remaining")), (200, Some(44)), "{other:?}");

    clock.advance_ms(11_999);
    assert_eq!(ask(port, "POST", "/login", &[], "").status, 429);
    clock.advance_ms(1);
    assert_eq!(ask(port, "POST", "/login", &[], "").status, 200);
}

/// Other paths that backends take for `/login`, or that a proxy redirects to it.
pub const SPELLINGS: [&str; 8] = [
    "/login?next=%2F",
    "/login/",
    "//login",
    "/./login",
    "/x/../login",
    "/%6cogin",
    "/%2flogin",
    "/x/%2e%2e/login",
];

#[test]
fn no_spelling_of_its_path_evades_the_limit_of_logins() {
    let world = World::new(LIMITS);
    let gate = world.gate(&[]);
    let envoy = example(&world, &gate, &[]);
    let login = |path: &str| ask(envoy.port, "POST", path, &[], "").status;
    assert_eq!(statuses(4, || ask(envoy.port, "POST", "/login", &[], "")), [200, 200, 200, 429]);
    let passed: Vec<_> = SPELLINGS.iter().filter(|path| login(path) == 200).collect();
    assert!(passed.is_empty(), "{passed:?}");
    assert_eq!(world.backend.requests(), 3);
    // To Envoy this is another path: the page says what to do.
    assert_eq!(login("/login;a"), 200);
}

/// Envoy hands on header values as they are, in fields that must be UTF-8. An error there would let the request pass.
#[test]
fn bytes_that_are_not_utf8_evade_no_limit() {
    let world =
        World::new(&format!("{LIMITS}  - key: key\n    rate_limit: {{unit: hour, requests_per_unit: 2}}\n"));
    let gate = world.gate(&[]);
    let example = example(&world, &gate, &[]);
    let user = [("X-User", "\u{ff}")];
    assert_eq!(statuses(4, || get(example.port, "/api/", &user)), [200, 200, 429, 429]);
    drop(example);

    let world = World { limits: HOURLY.to_owned(), ..world };
    let gate = world.gate(&[]);
    let envoy = before(&world.backend, &[&gate], false);
    for (path, bytes) in [("/key", "\u{ff}"), ("/key", "a\u{c3}\u{28}"), ("/format", "\u{f0}")] {
        let key = [("key", bytes), ("from", bytes)];
        assert_eq!(statuses(4, || get(envoy.port, path, &key)), [200, 200, 200, 429], "{path} {bytes:?}");
    }
    assert_eq!(gate.metric("ratelimit_service_should_rate_limit_error{err_type=\"service_error\"}"), 0);
}

pub const HOURLY: &str = "
domain: rl
descriptors:
  - key: key
    rate_limit: {unit: hour, requests_per_unit: 3}
";

/// What is limited so hardly fills up in the time of a test.
fn yearly(requests: usize) -> String {
    HOURLY.replace("unit: hour, requests_per_unit: 3", &format!("unit: year, requests_per_unit: {requests}"))
}

/// As many callers as there are requests at a time.
#[test]
fn four_envoys_and_three_gates_grant_no_more_than_one() {
    const LIMIT: usize = 400;
    let world = World::new(&yearly(LIMIT));
    let gates = [(); 3].map(|()| world.gate(&[]));
    let envoys = [(); 4].map(|()| before(&world.backend, &gates.each_ref(), true));
    wait_until("all gates are asked", || {
        envoys.iter().for_each(|envoy| drop(get(envoy.port, "/key", &[("key", "warm")])));
        gates.iter().all(|gate| total_hits(gate) > 0)
    });
    let replies: Vec<u16> = std::thread::scope(|scope| {
        let call = |envoy: &'_ Program| statuses(10, || get(envoy.port, "/key", &[("key", "a")]));
        let callers = envoys.iter().cycle().take(64).map(|envoy| scope.spawn(move || call(envoy)));
        let callers: Vec<_> = callers.collect();
        callers.into_iter().flat_map(|caller| caller.join().expect("no panic")).collect()
    });
    assert_eq!(replies.iter().filter(|status| **status == 200).count(), LIMIT);
    assert!(replies.iter().all(|status| [200, 429].contains(status)), "{replies:?}");
}

/// The hits of all limits, as the metrics have them.
pub fn total_hits(gate: &Gate) -> u64 {
    let metrics = get(gate.http, "/metrics", &[]).body;
    let of_limits =
        metrics.lines().filter(|line| line.starts_with("ratelimit_service_rate_limit_total_hits{"));
    of_limits.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// Asks, and waits until the gate has heard what Envoy reports when the request is done.
pub fn get_and_report(gate: &Gate, hits: u64, get: impl FnOnce() -> Reply) -> Reply {
    let before = total_hits(gate);
    let reply = get();
    wait_until("the report", || total_hits(gate) >= before + hits);
    reply
}

#[test]
fn the_example_charges_tokens_when_a_response_reports_them() {
    let (world, clock) = world_with_clock(&configured("examples/limits/edge.yaml", &[]));
    let gate = world.gate(&[]);
    let envoy = example(&world, &gate, &[]);
    let user = [("X-User", "ann")];
    let generate = || get_and_report(&gate, 60_000, || get(envoy.port, "/generate", &user)).status;
    assert_eq!([generate(), generate()], [200, 200]);
    // 90000 - 2 * 60000.
    assert_eq!(statuses(3, || get(envoy.port, "/generate", &user)), [429; 3]);
    clock.advance_ms(20_000);
    assert_eq!(get(envoy.port, "/generate", &user).status, 200);
}
