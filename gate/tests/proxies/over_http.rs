//! Caddy, nginx, HAProxy and Traefik, which ask over HTTP. All by the configurations of gate/examples.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::envoy::{self, SPELLINGS};
use crate::gate::ports::free_port;
use crate::gate::{ask, connect, get, wait_until, Gate, Reply};
use crate::http::FATAL;
use crate::program::{folder, program, Program};
use crate::servers;
use crate::world::{configured, statuses, World};

/// The keys of examples/limits/edge.yaml, with limits in which nothing comes back while a test runs.
pub const LIMITS: &str = "
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {unit: hour, requests_per_unit: 20}
  - key: route
    value: login
    descriptors:
      - key: remote_address
        rate_limit: {name: login, unit: hour, requests_per_unit: 3}
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2}
";

const WITH_HITS: (&str, &str) = ("from: header X-User}", "from: header X-User}\n        hits: header X-Cost");

/// Longer than any reply takes on a busy machine.
const PATIENT: &str = "30000ms";

/// Longer than a busy machine needs, and half of what HAProxy's client for Lua takes to connect.
const SOON: Duration = Duration::from_secs(10);

/// A gate with [`LIMITS`] and the rules of the example, changed so; and the folder that these are in.
fn checking(changed: &[(&str, &str)]) -> (World, Gate, tempfile::TempDir) {
    checking_by(LIMITS, changed)
}

fn checking_by(limits: &str, changed: &[(&str, &str)]) -> (World, Gate, tempfile::TempDir) {
    let (world, folder) =
        (World::new(limits), folder(&[("check.yaml", &configured("examples/check.yaml", changed))]));
    let gate = world.gate(&[("CHECK_FILE", &folder.path().join("check.yaml").display().to_string())]);
    (world, gate, folder)
}

/// A proxy whose configuration names the example's ports.
struct Setting<'a> {
    port: u16,
    /// The port of the gate.
    gate: u16,
    world: &'a World,
    /// How long a request waits for the gate; the examples have 300ms to connect, and for the reply.
    waits: &'a str,
}

impl Setting<'_> {
    fn configured(&self, path: &str, more: &[(&str, &str)]) -> String {
        let [proxy, gate, backend] =
            [self.port, self.gate, self.world.backend.port].map(|port| format!(":{port}"));
        let own = [(":8000", proxy.as_str()), (":8080", &gate), (":3000", &backend), ("300ms", self.waits)];
        configured(path, &[&own[..], more].concat())
    }
}

type Start = fn(&Setting) -> Program;

fn caddy(setting: &Setting) -> Program {
    let text = setting.configured("examples/caddy/Caddyfile", &[]);
    let caddy = program("CADDY", "caddy");
    Program::start(setting.port, folder(&[("Caddyfile", &text)]), &[&caddy, "run", "--config", "Caddyfile"])
}

fn nginx(setting: &Setting) -> Program {
    nginx_by(setting, &[])
}

fn nginx_by(setting: &Setting, changed: &[(&str, &str)]) -> Program {
    let text = setting.configured("examples/nginx/nginx.conf", changed);
    let folder = folder(&[("nginx.conf", &text)]);
    let prefix = folder.path().display().to_string() + "/";
    let nginx = program("NGINX", "/usr/sbin/nginx");
    let own = "daemon off; master_process off;";
    Program::start(
        setting.port,
        folder,
        &[&nginx, "-e", "stderr", "-p", &prefix, "-c", "nginx.conf", "-g", own],
    )
}

fn haproxy(setting: &Setting) -> Program {
    haproxy_by(setting, &[])
}

fn haproxy_by(setting: &Setting, changed: &[(&str, &str)]) -> Program {
    let before_gate = format!(":{}", free_port());
    let changed = [&[(":8082", before_gate.as_str())], changed].concat();
    let text = setting.configured("examples/haproxy/haproxy.cfg", &changed);
    let lua = configured("examples/haproxy/check.lua", &[]);
    let haproxy = program("HAPROXY", "/usr/sbin/haproxy");
    let folder = folder(&[("haproxy.cfg", &text), ("check.lua", &lua)]);
    // The most open files that a shell may have by default, in many places.
    let start = "ulimit -n 4096 && exec \"$0\" -db -f haproxy.cfg";
    Program::start(setting.port, folder, &["/bin/sh", "-c", start, &haproxy])
}

fn traefik(setting: &Setting) -> Program {
    let port = format!(":{}", setting.port);
    let own = configured("examples/traefik/traefik.yaml", &[(":8000", port.as_str())]);
    let [gate, backend] = [setting.gate, setting.world.backend.port].map(|port| format!(":{port}"));
    let rules = configured("examples/traefik/edge.yaml", &[(":8080", gate.as_str()), (":3000", &backend)]);
    let traefik = program("TRAEFIK", "traefik");
    let folder = folder(&[("traefik.yaml", &own), ("edge.yaml", &rules)]);
    let program = Program::start(setting.port, folder, &[&traefik, "--configFile=traefik.yaml"]);
    // It listens before it has read the rules.
    wait_until("routes", || get(setting.port, "/", &[]).status == 200);
    program
}

fn login(port: u16, path: &str, headers: &[(&str, &str)]) -> Reply {
    ask(port, "POST", path, headers, "name=ann")
}

/// What every proxy does by its example. Returns the replies to the first login and to another request at the end.
fn limits(port: u16, world: &World) -> (Reply, Reply) {
    let before = world.backend.requests();
    let login = |path: &str, headers: &[(&str, &str)]| login(port, path, headers);
    let first = login("/login", &[]);
    assert_eq!((first.status, first.body.as_str()), (200, "from the backend name=ann"));

    // No headers of the caller's own evade the limit.
    let forged = [
        ("X-Forwarded-For", "198.51.100.7"),
        ("X-Forwarded-Uri", "/"),
        ("X-Forwarded-Method", "GET"),
        ("Connection", "X-Forwarded-For, X-Forwarded-Uri, X-Forwarded-Method"),
    ];
    assert_eq!(statuses(2, || login("/login", &forged)), [200, 200]);
    let denied = login("/login", &forged);
    assert_eq!(denied.status, 429, "{denied:?}");
    let wait = denied.number("retry-after").expect("seconds");
    assert!((1100..=1200).contains(&wait), "{wait}");
    assert!(denied.header("ratelimit").expect("a header").starts_with(r#""login";r=0;t="#), "{denied:?}");
    // Nor does another spelling of the path.
    let passed: Vec<_> = SPELLINGS.iter().filter(|path| login(path, &[]).status == 200).collect();
    assert!(passed.is_empty(), "{passed:?}");
    // To proxies and the gate this is another path: the page says what to do.
    assert_eq!(login("/login;a", &[]).status, 200);
    // Nor do more headers than a server reads.
    for count in (90..=100).chain([80, 150, 1_000, 3_000]) {
        let names: Vec<String> = (0..count).map(|n| format!("a{n}")).collect();
        let headers: Vec<_> = names.iter().map(|name| (name.as_str(), "b")).collect();
        let status = login("/login", &headers).status;
        assert!((400..500).contains(&status), "{status} with {count} headers");
    }
    assert_eq!(login("/login", &[("X-User", "ann"); 90]).status, 429);
    assert_eq!(world.backend.requests() - before, 4, "a denied request reached the backend");

    // Other limits: of a header, and of the address, which the denied login cost nothing.
    let user = [("X-User", "ann")];
    assert_eq!(statuses(3, || get(port, "/api/list", &user)), [200, 200, 429]);
    (first, get(port, "/", &[]))
}

/// What every proxy but Traefik does by its example.
fn limits_and_says_so(start: fn(&Setting) -> Program) {
    let (world, mut gate, _rules) = checking(&[]);
    let port = free_port();
    let proxy = start(&Setting { port, gate: gate.http, world: &world, waits: PATIENT });

    let (first, other) = limits(port, &world);
    let told = first.header("ratelimit").expect("a header");
    assert!(told.starts_with(r#""login";r=2;t="#), "{told}");
    assert_eq!(first.header("ratelimit-policy"), Some(r#""login";q=3;w=3600"#));
    let told = other.header("ratelimit").expect("a header");
    // 20 - 4 - 2 - 1.
    assert!(told.starts_with(r#""remote_address";r=13;"#), "{other:?}");

    // While the gate is away, requests pass.
    gate.kill();
    assert_eq!(login(port, "/login", &[]).body, "from the backend name=ann");
    gate.start_again();
    wait_until("the gate is asked again", || login(port, "/login", &[]).status == 429);
    // While Redis is away, too: the gate replies 503.
    world.redis.kill();
    let passed = login(port, "/login", &[]);
    assert_eq!((passed.status, passed.body.as_str()), (200, "from the backend name=ann"));
    assert_eq!(passed.header("ratelimit"), None);
    drop(proxy);
}

/// Traefik hands headers to allowed callers only by way of the backend, and refuses all while the gate is away.
#[test]
fn traefik_limits() {
    let (world, mut gate, _rules) = checking(&[]);
    let port = free_port();
    let _proxy = traefik(&Setting { port, gate: gate.http, world: &world, waits: PATIENT });
    let (first, other) = limits(port, &world);
    assert_eq!((first.header("ratelimit"), other.status), (None, 200));
    gate.kill();
    assert_eq!(login(port, "/login", &[]).status, 500);
    gate.start_again();
    wait_until("the gate is asked again", || login(port, "/login", &[]).status == 429);
    world.redis.kill();
    assert_eq!(login(port, "/login", &[]).status, 503);
}

#[test]
fn caddy_limits_and_says_so() {
    limits_and_says_so(caddy);
}

#[test]
fn nginx_limits_and_says_so() {
    limits_and_says_so(nginx);
}

/// nginx asks the next gate, and knows the statuses of both: `502, 429`.
#[test]
fn nginx_limits_while_one_of_two_gates_is_down() {
    let (world, gate, _rules) = checking(&[]);
    let port = free_port();
    let down = format!("server 127.0.0.1:{} max_fails=0;\n        keepalive 16;", free_port());
    let setting = Setting { port, gate: gate.http, world: &world, waits: PATIENT };
    let _proxy = nginx_by(&setting, &[("keepalive 16;", &down)]);
    limits(port, &world);
    // A header that the gate refuses, and the backend too: nginx asks it no more.
    for _ in 0..2 {
        let refused = login(port, "/login", &[("X-User", "\u{1}")]);
        assert!(refused.status == 400 && refused.body.contains("nginx"), "{refused:?}");
    }
}

/// nginx waits for the silent one first every other time: `504, 429`.
#[test]
fn nginx_limits_while_one_of_two_gates_is_silent() {
    let (world, gate, _rules) = checking(&[]);
    let (silent, _listener, _waiting) = silent_port();
    let silent = format!("server 127.0.0.1:{silent} max_fails=0;\n        keepalive 16;");
    let setting = Setting { port: free_port(), gate: gate.http, world: &world, waits: "2000ms" };
    let proxy = nginx_by(&setting, &[("keepalive 16;", &silent)]);
    let statuses = statuses(5, || login(setting.port, "/login", &[]));
    assert_eq!(statuses, [200, 200, 200, 429, 429], "{}", proxy.log());
}

#[test]
fn haproxy_limits_and_says_so() {
    limits_and_says_so(haproxy);
}

/// HAProxy's question to the gate needs a connection of its own, in `listen gate`.
#[test]
fn callers_that_take_all_connections_of_haproxy_are_limited() {
    let (world, gate, _rules) = checking(&[]);
    let setting = Setting { port: free_port(), gate: gate.http, world: &world, waits: PATIENT };
    let few = [("maxconn 2000", "maxconn 30"), ("maxconn 1000", "maxconn 20")];
    let proxy = haproxy_by(&setting, &few);
    let mut callers: Vec<TcpStream> = (0..35).map(|_| connect(setting.port)).collect();
    callers[0].write_all(b"GET / HTTP/1.1\r\nHost: edge.example\r\n\r\n").expect("a connection");
    callers[0].set_read_timeout(Some(SOON)).expect("a timeout");
    let mut reply = [0; 1024];
    let length = callers[0].read(&mut reply).unwrap_or_else(|error| panic!("{error}: {}", proxy.log()));
    let reply = String::from_utf8_lossy(&reply[..length]);
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("ratelimit: "), "{reply}");
}

/// A port whose host does not answer: it drops connections, since one waits already.
fn silent_port() -> (u16, TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind(("127.0.0.1", free_port())).expect("a port");
    rustix::net::listen(&listener, 0).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let waiting =
        std::iter::from_fn(|| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok());
    let waiting = waiting.collect();
    (address.port(), listener, waiting)
}

#[test]
fn requests_pass_soon_while_the_gate_is_away() {
    let (world, gate, _rules) = checking(&[]);
    gate.signal("STOP");
    let (silent, _listener, _waiting) = silent_port();
    // HAProxy's longer, so that four tries, as it has them by default, would not be soon.
    let proxies: [(Start, _); 3] = [(caddy, "100ms"), (nginx, "100ms"), (haproxy, "3000ms")];
    for (start, waits) in proxies {
        for (what, gate) in [("stopped", gate.http), ("silent", silent), ("down", free_port())] {
            let port = free_port();
            let proxy = start(&Setting { port, gate, world: &world, waits });
            let began = Instant::now();
            let reply = ask(port, "POST", "/login", &[], "name=ann");
            let took = began.elapsed();
            let passed = (reply.status, reply.body.as_str(), took < SOON);
            let why = format!("{what}: {took:?}\n{}", proxy.log());
            assert_eq!(passed, (200, "from the backend name=ann", true), "{why}");
            assert_eq!(reply.header("ratelimit").filter(|value| !value.is_empty()), None);
        }
    }
}

/// The proxy must wait longer for the gate than the gate for a silent Redis: here ten times as long as by the examples, since
/// a busy gate takes up to a second to tell 100 ms of silence.
#[test]
fn on_error_denies_while_redis_is_silent() {
    let (world, rules) =
        (World::new(LIMITS), folder(&[("check.yaml", &configured("examples/check.yaml", &[]))]));
    let rules = rules.path().join("check.yaml").display().to_string();
    let settings = [("CHECK_FILE", rules.as_str()), ("ON_ERROR", "deny"), ("REDIS_TIMEOUT", "100ms")];
    // A gate that knows that Redis is away waits no more: each proxy has its own.
    let started = [caddy, nginx, haproxy].map(|start| {
        let gate = world.gate(&settings);
        let setting = Setting { port: free_port(), gate: gate.http, world: &world, waits: "3000ms" };
        (start(&setting), gate)
    });
    let gate = world.gate(&settings);
    let envoy = envoy::example(&world, &gate, &[(envoy::PATIENT, "3s")]);
    world.redis.signal("STOP");
    let proxies = started.iter().map(|(proxy, _)| proxy).chain([&envoy]);
    let statuses: Vec<_> = proxies.map(|proxy| login(proxy.port, "/login", &[]).status).collect();
    assert_eq!(statuses, [429; 4]);
}

/// An error of the backend is no error of the gate: the request must not be sent again.
#[test]
fn a_request_reaches_a_failing_backend_once() {
    let (world, gate, _rules) = checking(&[]);
    for start in [caddy, nginx, haproxy, traefik] {
        let port = free_port();
        let proxy = start(&Setting { port, gate: gate.http, world: &world, waits: PATIENT });
        let before = world.backend.requests();
        let reply = ask(port, "POST", FATAL, &[], "");
        assert_eq!((reply.status, world.backend.requests() - before), (502, 1), "{}", proxy.log());
    }
}

#[test]
fn a_denial_by_403_says_what_one_by_429_does() {
    for start in [caddy, nginx, haproxy, traefik] {
        let (world, gate, _rules) = checking(&[("domain: edge", "domain: edge\ndeny_with: 403")]);
        let proxy = start(&Setting { port: free_port(), gate: gate.http, world: &world, waits: PATIENT });
        assert_eq!(statuses(3, || login(proxy.port, "/login", &[])), [200; 3]);
        let denied = login(proxy.port, "/login", &[]);
        assert_eq!((denied.status, denied.number("retry-after").is_some()), (403, true), "{denied:?}");
        let left = denied.header("ratelimit").is_some_and(|value| value.starts_with(r#""login";r=0;t="#));
        assert!(left && denied.header("ratelimit-policy").is_some(), "{denied:?}");
    }
}

#[test]
fn new_rules_hold_from_the_next_request_on() {
    let (_world, gate, folder) = checking(&[]);
    let check = |uri: &str| {
        let forwarded =
            [("X-Forwarded-For", "192.0.2.1"), ("X-Forwarded-Uri", uri), ("X-Forwarded-Method", "POST")];
        get(gate.http, "/check", &forwarded)
    };
    assert_eq!(statuses(4, || check("/login")), [200, 200, 200, 429]);
    let rules = configured("examples/check.yaml", &[("/login", "/signin")]);
    std::fs::write(folder.path().join("check.yaml"), rules).expect("a file");
    wait_until("the new rules hold", || check("/login").status == 200);
    assert_eq!(check("/signin").status, 429);
}

#[test]
fn while_redis_is_away_on_error_decides() {
    let world = World::new(LIMITS);
    let rules = folder(&[("check.yaml", &configured("examples/check.yaml", &[]))]);
    let file = rules.path().join("check.yaml").display().to_string();
    let gates = ["error", "allow", "deny"]
        .map(|on_error| world.gate(&[("CHECK_FILE", file.as_str()), ("ON_ERROR", on_error)]));
    let check = |at: usize| get(gates[at].http, "/check", &[("X-Forwarded-For", "192.0.2.1")]);
    let statuses = || [0, 1, 2].map(|at| check(at).status);
    assert_eq!(statuses(), [200; 3]);
    // A mistake is no outage.
    let _: String =
        servers::ask(&world.redis, &["SET", "edge|{remote_address=192.0.2.1}", "of another type"]);
    assert_eq!(statuses(), [503; 3]);
    world.redis.kill();
    assert_eq!(statuses(), [503, 200, 429]);
    assert_eq!(gates[1].metric("ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"}"), 2);
    assert_eq!(check(0).body, "no decision on the rate limit\n");
    // What is left is unknown, and when Redis is asked again is not.
    let denied = check(2);
    assert_eq!((denied.header("ratelimit"), denied.number("retry-after")), (None, Some(1)));
}

#[test]
fn a_request_that_costs_more_than_its_limit_is_not_told_to_wait() {
    let (_world, gate, _rules) = checking(&[WITH_HITS]);
    let check = |cost: &str| {
        let headers = [("X-Forwarded-Uri", "/api/x"), ("X-User", "ann"), ("X-Cost", cost)];
        get(gate.http, "/check", &headers)
    };
    let never = check("3");
    assert_eq!((never.status, never.header("retry-after")), (429, None), "{never:?}");
    assert_eq!(check("2").status, 200);
    let later = check("2");
    assert_eq!((later.status, later.number("retry-after").is_some()), (429, true), "{later:?}");
}

/// What the page says about looking at a bucket, and about limits that change.
#[test]
fn an_operator_can_look_at_a_bucket_refund_and_reset_it() {
    let (world, gate, _rules) = checking(&[]);
    let check = || get(gate.http, "/check", &[("X-Forwarded-Uri", "/api/x"), ("X-User", "dan")]).status;
    let key = "edge|{user=dan}";
    assert_eq!([check(), check(), check()], [200, 200, 429]);
    let left: Vec<i64> = servers::ask(&world.redis, &["TB.PEEK", key, "2", "2/h", "0"]);
    assert_eq!(left[1], 0);
    let _: Vec<i64> = servers::ask(&world.redis, &["TB.GIVE", key, "2", "2/h", "1"]);
    assert_eq!([check(), check()], [200, 429]);
    let _: i64 = servers::ask(&world.redis, &["DEL", key]);
    assert_eq!([check(), check(), check()], [200, 200, 429]);

    // A bucket keeps its level when its limit is raised.
    let old = gate.metric("ratelimit_service_config_load_success ");
    gate.write("limits.yaml", &LIMITS.replace("requests_per_unit: 2}", "requests_per_unit: 5}"));
    wait_until("a reload", || gate.metric("ratelimit_service_config_load_success ") > old);
    assert_eq!(check(), 429);
    let _: i64 = servers::ask(&world.redis, &["DEL", key]);
    assert_eq!([(); 6].map(|()| check()), [200, 200, 200, 200, 200, 429]);
}

/// A caller that chooses its cost can use up the limit, and not more.
#[test]
fn no_cost_of_a_request_is_a_report() {
    let limits = LIMITS.replace("key: user", "key: user\n    paid_afterwards: true");
    let (_world, gate, _rules) = checking_by(&limits, &[WITH_HITS]);
    let check = |user: &str, cost: &str| {
        let headers = [("X-Forwarded-Uri", "/api/x"), ("X-User", user), ("X-Cost", cost)];
        get(gate.http, "/check", &headers).status
    };
    assert_eq!(["0", "1000000000", "2", "1", "0"].map(|cost| check("ann", cost)), [200, 429, 200, 429, 200]);
}
