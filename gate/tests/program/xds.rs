//! Limits from a control plane that behaves as Envoy Gateway's.

use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::google::protobuf::value::Kind;
use tokenbucket_gate::limits::config_messages::RateLimitConfig;
use tokenbucket_gate::messages::Unit;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::asks;
use crate::control_plane::{any, ControlPlane};
use crate::descriptors::{config, descriptor, limited};
use crate::gate::ports::free_port;
use crate::gate::{request, wait_until, Gate, Setup};
use crate::servers::Server;
use crate::tls::openssl;

const SUCCESS: &str = "ratelimit_service_config_load_success ";
const ERROR: &str = "ratelimit_service_config_load_error ";

/// So many requests an hour for each value of `key`.
fn per_hour(domain: &str, requests: u32) -> RateLimitConfig {
    config(domain, vec![limited("key", "", requests, Unit::Hour)])
}

fn wait_for(gate: &Gate, domain: &str) {
    wait_until(domain, || gate.rlconfig().contains(&format!("{domain}.key")));
}

/// No response, one without configurations and one without a version are three things, and none is a mistake. Domains that
/// are not sent any more are gone. Health says so if it depends on limits.
#[test]
fn uses_what_is_sent_and_nothing_else() {
    let redis = Server::start();
    let control_plane = ControlPlane::start();
    let follower = || control_plane.follower().set("REDIS_URL", redis.url());
    let needing = follower().set("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    let (gate, needing) = (follower().start(), needing.start());
    gate.wait_until_healthy();
    let health = || needing.http("GET", "/healthcheck", "").status;
    assert_eq!((gate.json(&asks("a")).status, health()), (400, 500));
    assert!(gate.json(&asks("a")).body.contains("no rate limit configuration loaded"));

    control_plane.set("1", &[per_hour("d", 2), per_hour("e", 1)]);
    needing.wait_until_healthy();
    wait_for(&gate, "e");
    let statuses = [0; 3].map(|_| gate.json(&asks("a")).status);
    assert_eq!(statuses, [200, 200, 429]);

    control_plane.set("2", &[per_hour("d", 2)]);
    wait_until("the domain is gone", || !gate.rlconfig().contains("e.key"));
    assert_eq!(gate.json(&asks("a")).status, 429);

    control_plane.set("3", &[]);
    wait_until("no limits", || gate.rlconfig().is_empty() && health() == 500);
    assert_eq!((gate.json(&asks("a")).status, gate.http("GET", "/healthcheck", "").status), (200, 200));
    control_plane.set("4", &[per_hour("d", 2)]);
    needing.wait_until_healthy();
    control_plane.set("", &[]);
    wait_until("no limits", || health() == 500);
    control_plane.set("1", &[per_hour("d", 2)]);
    needing.wait_until_healthy();
    wait_for(&gate, "d");
    assert_eq!((gate.metric(SUCCESS), gate.metric(ERROR)), (6, 0));
}

/// Unless told otherwise, nothing listens before the first configuration; a signal ends it all the same.
#[test]
fn serves_once_there_are_limits() {
    let control_plane = ControlPlane::start();
    let port = free_port();
    let setup = control_plane.follower().set("PORT", port);
    let setup = setup.set("FORCE_START_WITHOUT_INITIAL_CONFIG", "false");
    let starting = std::thread::spawn(move || setup.start());
    wait_until("a request", || !control_plane.requests().is_empty());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    control_plane.set("1", &[per_hour("d", 1)]);
    let gate = starting.join().expect("it starts");
    assert!(gate.rlconfig().contains("d.key"));
}

/// A mistake rejects all configurations, is counted once, and what was in use stays. A control plane that sends the same again
/// at once is not asked in a loop, and hears which configuration and descriptor is wrong. What mends it is used.
#[test]
fn refuses_mistakes() {
    let control_plane = ControlPlane::start();
    let gate = control_plane.follower().start();
    control_plane.set("1", &[per_hour("d", 1)]);
    control_plane.wait_for_acceptance("1");
    let mut wrong = per_hour("gw", 1);
    wrong.descriptors[0].rate_limit.as_mut().expect("a limit").unit = 42;
    control_plane.set("2", &[per_hour("f", 1), wrong]);
    let (refusal, message) = control_plane.wait_for_refusal();
    assert_eq!(message, "config 'gw', descriptor 'key': invalid rate limit unit '42'");
    assert_eq!((refusal.version_info.as_str(), refusal.response_nonce.as_str()), ("1", "2"));
    let line = gate.wait_for_line("invalid rate limit unit");
    assert!(
        line.ends_with(
            "xDS: config 'gw', descriptor 'key': invalid rate limit unit '42'; the limits in use stay"
        ),
        "{line}"
    );
    let refused_at = Instant::now();
    let refusals =
        || control_plane.requests().iter().filter(|request| request.error_detail.is_some()).count();
    wait_until("two more refusals", || refusals() >= 3);
    // After pauses of 2 s.
    assert!(refused_at.elapsed() >= Duration::from_millis(3500), "{:?}", refused_at.elapsed());
    assert_eq!(
        (gate.metric(ERROR), gate.rlconfig().contains("d.key"), gate.rlconfig().contains("f.key")),
        (1, true, false)
    );

    control_plane.set("3", &[per_hour("f", 1)]);
    wait_for(&gate, "f");
    control_plane.set_resources("4", vec![any("type.googleapis.com/google.protobuf.Any", Vec::new())]);
    gate.wait_for_line("a resource is of type 'type.googleapis.com/google.protobuf.Any', not");
    control_plane.set_resources("5", vec![any(tokenbucket_gate::xds::TYPE_URL, vec![0x0a, 0xff])]);
    gate.wait_for_line("a resource cannot be decoded: ");
    control_plane.set("6", &[per_hour("g", 1)]);
    wait_for(&gate, "g");
    assert_eq!((gate.metric(SUCCESS), gate.metric(ERROR)), (3, 3));
}

/// A control plane that was restarted counts from 1 again: an equal number may mean something else.
#[test]
fn asks_for_everything_after_a_restart() {
    let mut control_plane = ControlPlane::start();
    let gate = control_plane.follower().start();
    control_plane.set("1", &[per_hour("d", 1)]);
    wait_for(&gate, "d");
    control_plane.stop();
    gate.wait_for_line("connects again in 1s");
    assert!(gate.rlconfig().contains("d.key"), "the limits in use stay");
    let before = control_plane.requests().len();
    control_plane.set("1", &[per_hour("e", 1)]);
    control_plane.start_again();
    wait_for(&gate, "e");
    let first = &control_plane.requests()[before];
    assert_eq!((first.version_info.as_str(), first.response_nonce.as_str()), ("", ""));
}

/// An unknown node id gets nothing, for ever: the log says which id was sent. Metadata and headers are sent too.
#[test]
fn says_which_id_it_sends() {
    let control_plane = ControlPlane::start();
    control_plane.set("1", &[per_hour("d", 1)]);
    let setup = control_plane.follower().set("CONFIG_GRPC_XDS_NODE_ID", "test");
    let setup = setup.set("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a,skipped,team=b=c");
    let setup = setup.set("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "authorization:Bearer x,X-Other:y");
    let gate = setup.start();
    gate.wait_for_line("has sent nothing for 10s: it has no limits, or does not know the node id 'test' (CONFIG_GRPC_XDS_NODE_ID)");
    let node = control_plane.requests().remove(0).node.expect("a node");
    let metadata = node.metadata.expect("metadata").fields;
    let value = |name: &str| metadata.get(name).and_then(|value| value.kind.clone());
    let text = |text: &str| Some(Kind::StringValue(text.to_owned()));
    assert_eq!((node.id.as_str(), metadata.len()), ("test", 2));
    assert_eq!((value("zone"), value("team")), (text("a"), text("b=c")));
    let headers = control_plane.headers();
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!((header("authorization"), header("x-other")), (Some("Bearer x"), Some("y")));
    assert_eq!(gate.rlconfig(), "");
}

/// A message may have 4 MiB, or what the variable says.
#[test]
fn bounds_the_size_of_messages() {
    let control_plane = ControlPlane::start();
    let small = control_plane.follower().start();
    let large = control_plane.follower().set("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", 8 << 20).start();
    control_plane.set("1", &[per_hour("d", 1)]);
    wait_for(&small, "d");
    let route = |n: usize| {
        descriptor(&format!("{n}{}", "r".repeat(1000)), "", vec![limited("key", "", 1, Unit::Hour)])
    };
    let five_mb = config("e", (0..5000).map(route).chain([limited("key", "", 1, Unit::Hour)]).collect());
    control_plane.set("2", &[five_mb]);
    wait_for(&large, "e");
    let line = small.wait_for_line("message length too large");
    assert!(line.contains("(XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES)"), "{line}");
    assert!(small.rlconfig().contains("d.key"));
}

/// What Envoy Gateway's certgen makes: an authority, RSA keys in PKCS#1, no extended key usage. Envoy verifies no name of the
/// gate, but the client of this test does.
fn certificates(folder: &Path) {
    openssl(
        folder,
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=envoy-gateway",
    );
    for (name, host) in
        [("server", "envoy-gateway"), ("tls", "*.envoy-gateway-system,DNS:a-name-for-this-test")]
    {
        std::fs::write(folder.join("ext"), format!("subjectAltName=DNS:{host}\n")).expect("a file");
        openssl(folder, &format!("genrsa -traditional -out {name}.key 2048"));
        openssl(folder, &format!("req -new -key {name}.key -out csr -subj /CN=envoy"));
        openssl(folder, &format!("x509 -req -in csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out {name}.crt -extfile ext"));
    }
    let key = std::fs::read_to_string(folder.join("tls.key")).expect("a key");
    assert!(key.starts_with("-----BEGIN RSA PRIVATE KEY-----"), "{key}");
}

/// The environment of Envoy Gateway's Deployment as the page has it, with the certificates of a folder.
fn deployment(certificates: &Path) -> Setup {
    let certificates = format!("{}/", certificates.display());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/how-to/envoy-gateway.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let (_, block) = page.split_once("<!-- environment of the Deployment -->\n```sh\n").expect("the mark");
    let lines = block.lines().take_while(|line| !line.starts_with("```"));
    let variables = lines.filter_map(|line| line.split_once('='));
    variables
        .fold(Setup::new(), |setup, (name, value)| setup.set(name, value.replace("/certs/", &certificates)))
}

/// With the environment and the certificates of Envoy Gateway; clients are asked for no certificate. A control plane of another
/// name is not trusted. New certificates of both sides are used for the next connection.
#[test]
fn starts_as_the_deployment_of_envoy_gateway() {
    let redis = Server::start();
    let folder = tempfile::tempdir().expect("a folder");
    certificates(folder.path());
    let mut control_plane = ControlPlane::with_tls(folder.path());
    control_plane.set("1", &[per_hour("d", 2)]);
    let setup = deployment(folder.path()).set("REDIS_URL", format!("127.0.0.1:{}", redis.port));
    let setup = setup.set("PROMETHEUS_ADDR", "127.0.0.1:0");
    // Its name is in no DNS here: that of the certificate is verified instead of the host.
    let setup = setup.set("CONFIG_GRPC_XDS_SERVER_URL", format!("127.0.0.1:{}", control_plane.port));
    let named = |name: &str| setup.clone().set("CONFIG_GRPC_XDS_SERVER_TLS_SAN", name).start();
    let line = named("other").wait_for_line("cannot connect: ");
    assert!(line.contains("certificate") && control_plane.requests().is_empty(), "{line}");
    let gate = named("envoy-gateway");
    wait_for(&gate, "d");
    gate.wait_until_healthy();
    let log = gate.wait_for_line("without meaning here");
    assert!(log.contains("GRPC_SERVER_TLS_CA_CERT"), "{log}");
    let authority = folder.path().join("ca.crt");
    let tls = Certificate::from_pem(std::fs::read(&authority).expect("a file"));
    let tls = ClientTlsConfig::new().ca_certificate(tls).domain_name("a-name-for-this-test");
    let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", gate.grpc)).expect("a URL");
    let decision = async {
        let channel = endpoint.tls_config(tls).expect("TLS").connect().await.expect("a connection");
        RateLimitServiceClient::new(channel).should_rate_limit(request("d", &[&[("key", "a")]])).await
    };
    tokio::runtime::Runtime::new().expect("threads").block_on(decision).expect("a decision");

    std::fs::remove_file(&authority).expect("a file");
    control_plane.stop();
    gate.wait_for_line("ca.crt: No such file");
    certificates(folder.path());
    control_plane.set("1", &[per_hour("e", 2)]);
    control_plane.start_again();
    wait_for(&gate, "e");
}
