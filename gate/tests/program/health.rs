use std::net::TcpStream;
use std::time::{Duration, Instant};

use tonic::transport::Channel;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::HealthCheckRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::ServerReflectionRequest;

use crate::gate::{ask, connect, request, wait_until, Gate, Setup};
use crate::servers::Server;
use crate::{asks, started, TWO};

async fn grpc_health(gate: &Gate, service: &str) -> ServingStatus {
    let url = format!("http://127.0.0.1:{}", gate.grpc);
    let channel = Channel::from_shared(url).expect("a URL").connect().await.expect("a connection");
    let request = HealthCheckRequest { service: service.to_owned() };
    HealthClient::new(channel).check(request).await.expect("a reply").into_inner().status()
}

/// A Redis that is late does not end the gate. It is healthy once Redis has answered, and no longer after SIGTERM.
#[tokio::test(flavor = "multi_thread")]
async fn waits_for_redis() {
    let mut redis = Server::away();
    let gate = Setup::redis(&redis.url()).file("two.yaml", TWO).start();
    assert_eq!(gate.http("GET", "/healthcheck", "").status, 500);
    assert_eq!(grpc_health(&gate, "ratelimit").await, ServingStatus::NotServing);
    assert_eq!(grpc_health(&gate, "").await, ServingStatus::Serving);
    let refusal = gate.client().await.should_rate_limit(request("d", &[&[("key", "a")]])).await;
    assert_eq!(refusal.expect_err("no Redis").code(), tonic::Code::Unavailable);

    redis.start_again();
    gate.wait_until_healthy();
    assert_eq!(gate.http("GET", "/healthcheck", "").body, "OK");
    assert_eq!(grpc_health(&gate, "ratelimit").await, ServingStatus::Serving);
}

/// Redis that is lost later makes it unhealthy only if that is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn watches_redis_if_told_so() {
    let mut redis = Server::start();
    let setup = Setup::redis(&redis.url()).file("two.yaml", TWO);
    let plain = setup.clone().start();
    let watching = setup.set("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true").start();
    plain.wait_until_healthy();
    watching.wait_until_healthy();
    redis.kill();
    wait_until("unhealthy", || watching.http("GET", "/healthcheck", "").status == 500);
    assert_eq!(plain.http("GET", "/healthcheck", "").status, 200);
    redis.start_again();
    watching.wait_until_healthy();
}

/// Healthy without limits, unless that is asked for; calls are errors until there are some.
#[tokio::test(flavor = "multi_thread")]
async fn waits_for_limits_if_told_so() {
    let redis = Server::start();
    let plain = Setup::redis(&redis.url()).start();
    let waiting = Setup::redis(&redis.url()).set("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true").start();
    plain.wait_until_healthy();
    waiting.wait_for_line("Redis answers");
    assert_eq!(waiting.http("GET", "/healthcheck", "").status, 500);
    let error = plain.client().await.should_rate_limit(request("d", &[&[("key", "a")]])).await;
    assert_eq!(error.expect_err("no limits").message(), "no rate limit configuration loaded");
    waiting.write("two.yaml", TWO);
    waiting.wait_until_healthy();
    std::fs::remove_file(waiting.file("two.yaml")).expect("a file");
    wait_until("unhealthy", || waiting.http("GET", "/healthcheck", "").status == 500);
    assert_eq!(grpc_health(&waiting, "ratelimit").await, ServingStatus::NotServing);
}

/// Clients such as grpcurl need no .proto files.
#[tokio::test(flavor = "multi_thread")]
async fn describes_its_services() {
    let (_redis, gate) = started(&[]);
    let url = format!("http://127.0.0.1:{}", gate.grpc);
    let channel = Channel::from_shared(url).expect("a URL").connect().await.expect("a connection");
    let services = [
        "envoy.service.ratelimit.v3.RateLimitService",
        "kuadrant.service.ratelimit.v1.RateLimitService",
        "grpc.health.v1.Health",
    ];
    let symbols = services.iter().chain(&["kuadrant.service.ratelimit.v1.CommitRequest"]);
    let asked = symbols.map(|symbol| MessageRequest::FileContainingSymbol((*symbol).to_owned()));
    let asked = asked.chain([MessageRequest::ListServices(String::new())]).map(Some);
    let asked = asked.map(|message_request| ServerReflectionRequest { host: String::new(), message_request });
    let mut client = ServerReflectionClient::new(channel);
    let replies = client.server_reflection_info(tokio_stream::iter(asked.collect::<Vec<_>>())).await;
    let mut replies = replies.expect("replies").into_inner();
    let mut next = async || replies.message().await.expect("no error").expect("a reply").message_response;
    for _ in 0..4 {
        assert!(matches!(next().await, Some(MessageResponse::FileDescriptorResponse(_))));
    }
    let Some(MessageResponse::ListServicesResponse(list)) = next().await else { panic!("no list") };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    assert!(services.iter().all(|service| names.iter().any(|name| name == service)), "{names:?}");
}

/// SIGTERM and SIGINT end it with exit code 0 within seconds, also while clients stay connected. It still answers the calls
/// that it is working on. Health says at once that no new calls should come.
#[tokio::test(flavor = "multi_thread")]
async fn answers_calls_that_run_at_its_end() {
    for signal in ["TERM", "INT"] {
        let (redis, mut gate) = started(&[("REDIS_TIMEOUT", "8s")]);
        let mut client = gate.client().await;
        let _idle = connect(gate.http);
        redis.signal("STOP");
        let call =
            tokio::spawn(async move { client.should_rate_limit(request("d", &[&[("key", "a")]])).await });
        // It runs once the socket of Redis has something to read.
        wait_until("a call", || waiting_bytes(redis.port) > 0);
        let first = waiting_bytes(redis.port);
        let port = gate.http;
        let json = tokio::task::spawn_blocking(move || ask(port, "POST", "/json", &[], &asks("b")));
        wait_until("another call", || waiting_bytes(redis.port) > first);
        let asked_at = Instant::now();
        gate.signal(signal);
        gate.wait_for_line("ends");
        wait_until("no new connections", || TcpStream::connect(("127.0.0.1", gate.http)).is_err());
        redis.signal("CONT");
        assert!(call.await.expect("no panic").is_ok());
        assert_eq!(json.await.expect("no panic").status, 200);
        assert_eq!(gate.wait_for_end().code(), Some(0));
        // 10 s, and some for a slow machine.
        assert!(asked_at.elapsed() < Duration::from_secs(15));
    }
}

/// What the sockets of a port have received and nobody has read, in bytes.
fn waiting_bytes(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    let rows = table.lines().skip(1).filter_map(|row| {
        let mut fields = row.split_whitespace().skip(1);
        let (local, queues) = (fields.next()?, fields.nth(2)?);
        let is_here = local.ends_with(&format!(":{port:04X}"));
        is_here.then(|| queues.split(':').nth(1).and_then(|bytes| u64::from_str_radix(bytes, 16).ok()))?
    });
    rows.sum()
}
