use std::time::{Duration, Instant};

use tonic::transport::Channel;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::ServingStatus;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::ServerReflectionRequest;

use crate::gate::{request, wait_until, Gate, Setup, PATIENCE};
use crate::sentinel::Sentinel;
use crate::servers::{ask, Server};
use crate::TWO;

async fn grpc_health(gate: &Gate, service: &str) -> ServingStatus {
    let url = format!("http://127.0.0.1:{}", gate.grpc);
    let channel = Channel::from_shared(url).expect("a URL").connect().await.expect("a connection");
    let request = HealthCheckRequest { service: service.to_owned() };
    let reply = HealthClient::new(channel).check(request).await.expect("a reply").into_inner();
    if reply.status == ServingStatus::Serving as i32 {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
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
    let error = plain
        .client()
        .await
        .should_rate_limit(request("d", &[&[("key", "a")]]))
        .await
        .expect_err("no limits");
    assert_eq!((error.code(), error.message()), (tonic::Code::Unknown, "no rate limit configuration loaded"));
    waiting.write("two.yaml", TWO);
    waiting.wait_until_healthy();
    std::fs::remove_file(waiting.file("two.yaml")).expect("a file");
    wait_until("unhealthy", || waiting.http("GET", "/healthcheck", "").status == 500);
    assert_eq!(grpc_health(&waiting, "ratelimit").await, ServingStatus::NotServing);
}

/// SIGTERM ends it within seconds, also while clients stay connected, with exit code 0.
#[tokio::test(flavor = "multi_thread")]
async fn ends_on_signals() {
    let redis = Server::start();
    for signal in ["TERM", "INT"] {
        let mut gate = Setup::redis(&redis.url()).file("two.yaml", TWO).start();
        gate.wait_until_healthy();
        let mut client = gate.client().await;
        client.should_rate_limit(request("d", &[&[("key", signal)]])).await.expect("a reply");
        let _idle = std::net::TcpStream::connect(("127.0.0.1", gate.http)).expect("a connection");
        let asked_at = Instant::now();
        gate.signal(signal);
        assert_eq!(gate.wait_for_end().code(), Some(0));
        // 10 s, and some for a slow machine.
        assert!(asked_at.elapsed() < Duration::from_secs(15));
    }
}

/// As Sentinel says: also after a failover.
#[tokio::test(flavor = "multi_thread")]
async fn asks_the_master_that_sentinel_names() {
    let (master, replica) = (Server::start(), Server::start());
    let _: String = ask(&replica, &["REPLICAOF", "127.0.0.1", &master.port.to_string()]);
    let sentinel = Sentinel::of(&master);
    wait_until("the sentinel knows the replica", || sentinel.knows_a_replica());
    let gate = Setup::redis(&format!("mymaster,127.0.0.1:{}", sentinel.port))
        .set("REDIS_TYPE", "SENTINEL")
        .file("two.yaml", TWO)
        .start();
    gate.wait_until_healthy();
    master.kill();
    let mut client = gate.client().await;
    let began = Instant::now();
    while client.should_rate_limit(request("d", &[&[("key", "a")]])).await.is_err() {
        assert!(began.elapsed() < PATIENCE, "no decision after the failover");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(ask::<String>(&replica, &["INFO", "replication"]).contains("role:master"));
}

/// Clients such as grpcurl need no .proto files.
#[tokio::test(flavor = "multi_thread")]
async fn describes_its_services() {
    let redis = Server::start();
    let gate = Setup::redis(&redis.url()).start();
    let url = format!("http://127.0.0.1:{}", gate.grpc);
    let channel = Channel::from_shared(url).expect("a URL").connect().await.expect("a connection");
    let question =
        |question| ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let symbol = "envoy.service.ratelimit.v3.RateLimitService".to_owned();
    let questions = [
        question(MessageRequest::ListServices(String::new())),
        question(MessageRequest::FileContainingSymbol(symbol.clone())),
    ];
    let mut client = ServerReflectionClient::new(channel);
    let replies = client.server_reflection_info(tokio_stream::iter(questions)).await.expect("replies");
    let mut replies = replies.into_inner();
    let mut next = async || replies.message().await.expect("no error").expect("a reply").message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = next().await else { panic!("no list") };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    assert!(names.contains(&symbol) && names.contains(&"grpc.health.v1.Health".to_owned()), "{names:?}");
    assert!(matches!(next().await, Some(MessageResponse::FileDescriptorResponse(_))));
}

/// After SIGTERM the gate still answers the call that it is working on. Health says at once that no new calls should come.
#[tokio::test(flavor = "multi_thread")]
async fn answers_calls_that_run_at_its_end() {
    let redis = Server::start();
    let mut gate = Setup::redis(&redis.url()).file("two.yaml", TWO).set("REDIS_TIMEOUT", "8s").start();
    gate.wait_until_healthy();
    let mut client = gate.client().await;
    redis.signal("STOP");
    let call = tokio::spawn(async move { client.should_rate_limit(request("d", &[&[("key", "a")]])).await });
    // It runs once the socket of Redis has something to read.
    wait_until("a call", || waiting_bytes(redis.port) > 0);
    let first = waiting_bytes(redis.port);
    let json = {
        let (port, body) = (gate.http, crate::asks("b"));
        tokio::task::spawn_blocking(move || crate::gate::ask(port, "POST", "/json", &body))
    };
    wait_until("another call", || waiting_bytes(redis.port) > first);
    gate.signal("TERM");
    gate.wait_for_line("ends");
    wait_until("no new connections", || std::net::TcpStream::connect(("127.0.0.1", gate.http)).is_err());
    redis.signal("CONT");
    assert!(call.await.expect("no panic").is_ok());
    assert_eq!(json.await.expect("no panic").status, 200);
    assert_eq!(gate.wait_for_end().code(), Some(0));
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
