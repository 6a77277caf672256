//! Floods of requests that are never finished.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use futures_util::future::join_all;
use prost::Message;
use tokenbucket_gate::messages;

use crate::gate::{connect, memory_mib, request, wait_until, Gate, Setup, PATIENCE};
use crate::h2_client::{answered_at_once, status_of, watch, Client, Unfinished};
use crate::servers::Server;
use crate::{asks, TWO};

pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

const RESERVE: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Reserve";
const COMMIT: &str = "/kuadrant.service.ratelimit.v1.RateLimitService/Commit";

/// All that a flood may hold, with what the allocator adds.
const MOST_MIB: u64 = 200;

/// A server, and a gate with these limits before it.
fn start(limits: &str) -> (Server, Gate) {
    let redis = Server::start();
    // Floods keep the machine busy.
    let setup = Setup::redis(&redis.url()).set("REDIS_TIMEOUT", "10s").file("limits.yaml", limits);
    let gate = setup.start();
    gate.wait_until_healthy();
    (redis, gate)
}

async fn limits_as_ever(gate: &Gate) {
    tokio::time::timeout(PATIENCE, limits(gate)).await.expect("places that the flood leaves");
    let peak = memory_mib(gate, "VmHWM");
    assert!(peak < MOST_MIB, "{peak} MiB");
}

async fn limits(gate: &Gate) {
    let mut client = gate.client().await;
    for code in [1, 1, 2] {
        let reply = loop {
            match client.should_rate_limit(request("d", &[&[("key", "a")]])).await {
                // As long as calls of the flood wait for their refusal.
                Err(status) if status.code() == tonic::Code::ResourceExhausted => {
                    tokio::time::sleep(Duration::from_millis(10)).await
                }
                reply => break reply.expect("a reply"),
            }
        };
        assert_eq!(reply.into_inner().overall_code, code);
    }
    assert_eq!(gate.json(&asks("a")).status, 429);
}

/// Envoy learns how many calls a connection may have after it has sent all that waited for it, cancels those whose callers leave, and
/// passes on what callers send.
#[tokio::test(flavor = "multi_thread")]
async fn of_one_connection_is_answered_as_far_as_envoy_sends_it() {
    let (_redis, gate) = start(TWO);
    let message = request("d", &[&[("key", "a")]]).encode_to_vec();
    assert_eq!(answered_at_once(&gate, 0, 1000, &message), 1000);
    assert_eq!(answered_at_once(&gate, 1000, 5, &message), 5);
    let mut asked = tonic::Request::new(request("d", &[&[("key", "b")]]));
    asked.metadata_mut().insert("tracestate", "x".repeat(60_000).parse().expect("a header"));
    assert_eq!(
        gate.client().await.should_rate_limit(asked).await.expect("a reply").into_inner().overall_code,
        1
    );
}

/// Messages of 600 MB in all, of each of which the last bytes are missing; and calls that only announce a message.
#[tokio::test(flavor = "multi_thread")]
async fn of_unfinished_messages_share_a_bound() {
    for (connections, calls, size) in [(20, 30, 1_000_000), (80, 256, 0)] {
        let (_redis, gate) = start(TWO);
        let (_clients, begun) = begin(&gate, connections, calls, 0, size).await;
        limits_as_ever(&gate).await;
        assert!(!begun.is_empty(), "all were refused");
    }
}

/// Calls in flight with heads of 144 MB in all. Heads count once their calls begin.
#[tokio::test(flavor = "multi_thread")]
async fn of_large_heads_share_a_bound() {
    let (_redis, gate) = start(TWO);
    let (_clients, begun) = begin(&gate, 4, 300, 120_000, 0).await;
    tokio::time::timeout(PATIENCE, limits(&gate)).await.expect("places that the flood leaves");
    let have_memory = begun.into_iter().map(Unfinished::status).filter(Option::is_none).count();
    assert!((1..700).contains(&have_memory), "{have_memory} of 1,200");
}

async fn begin(
    gate: &Gate,
    connections: usize,
    calls: usize,
    head: usize,
    size: usize,
) -> (Vec<Client>, Vec<Unfinished>) {
    let clients = join_all((0..connections).map(|_| Client::connect(gate))).await;
    let begin = |one| (0..calls).map(move |_| Client::begin(one, SHOULD_RATE_LIMIT, head, size));
    let begun = join_all(clients.iter().flat_map(begin)).await;
    (clients, begun.into_iter().flatten().collect())
}

/// Messages that are finished, and many times larger once they are decoded: an empty entry has two bytes.
#[tokio::test(flavor = "multi_thread")]
async fn of_empty_entries_share_a_bound() {
    let (_redis, gate) = start(TWO);
    // A domain, and a descriptor of 500,000 entries: its length as a number of protobuf.
    let message = [&b"\x0a\x01d\x12\xc0\x84\x3d"[..], &[10, 0].repeat(500_000)].concat();
    let clients = join_all((0..24).map(|_| Client::connect(&gate))).await;
    for path in [SHOULD_RATE_LIMIT, RESERVE, COMMIT] {
        let replies = join_all(clients.iter().map(|one| status_of(one, path, &message))).await;
        // UNKNOWN: more entries than a request may have.
        assert!(replies.iter().all(|status| status.as_deref() == Some("2")), "{replies:?}");
    }
    let body = format!(r#"{{"domain":"d","descriptors":[{{"entries":[{}{{}}]}}]}}"#, "{},".repeat(40_000));
    assert_eq!(gate.json(&body).status, 400);
    limits_as_ever(&gate).await;
}

/// Replies that have no end: those who watch the health.
#[tokio::test(flavor = "multi_thread")]
async fn of_watchers_share_a_bound() {
    let (_redis, gate) = start(TWO);
    let clients = join_all((0..30).map(|_| Client::connect(&gate))).await;
    let replies = join_all(clients.iter().flat_map(|one| (0..50).map(move |_| watch(one)))).await;
    let refused =
        replies.iter().filter(|reply| reply.headers().get("grpc-status").is_some_and(|code| code == "8"));
    assert_eq!(refused.count(), 500);
    limits_as_ever(&gate).await;
    // Their places are free when they are gone.
    drop((replies, clients));
    let runtime = tokio::runtime::Handle::current();
    let has_place =
        async || watch(&Client::connect(&gate).await).await.headers().get("grpc-status").is_none();
    tokio::task::block_in_place(|| wait_until("a place", || runtime.block_on(has_place())));
}

/// Bounds the memory of requests over HTTP too, with bodies of 200 MB in all.
#[tokio::test(flavor = "multi_thread")]
async fn of_large_bodies_share_a_bound() {
    let (_redis, gate) = start(TWO);
    let head = "POST /json HTTP/1.1\r\nhost: gate\r\ncontent-length: 100001\r\n\r\n";
    let unfinished = [head.as_bytes(), &[b'x'; 100_000]].concat();
    let mut connections: Vec<TcpStream> = (0..2_000).map(|_| connect(gate.http)).collect();
    for connection in &mut connections {
        // Refused before the end, if it is one too many.
        let _ = connection.write_all(&unfinished);
    }
    limits_as_ever(&gate).await;
    let is_refused = |connection: &mut TcpStream| {
        let mut reply = Vec::new();
        let _ = connection.read_to_end(&mut reply);
        reply.starts_with(b"HTTP/1.1 503 ")
    };
    assert!(connections.iter_mut().any(is_refused));
}

/// Heads of requests over HTTP, 144 MB in all, that have no end, or no body after it. A connection that waits for a request is no flood.
#[tokio::test(flavor = "multi_thread")]
async fn of_unfinished_heads_share_a_bound() {
    let large = "x".repeat(60_000);
    let heads = [
        format!("POST /json HTTP/1.1\r\nhost: gate\r\nx: {large}"),
        format!("{large} /json HTTP/1.1\r\nhost: gate\r\ncontent-length: 9\r\n\r\n"),
    ];
    for unfinished in heads {
        let (_redis, gate) = start(TWO);
        let mut waiting = connect(gate.http);
        let mut connections: Vec<TcpStream> = (0..2_400).map(|_| connect(gate.http)).collect();
        for connection in &mut connections {
            // Closed before the end, if it is one too many.
            let _ = connection.write_all(unfinished.as_bytes());
        }
        limits_as_ever(&gate).await;
        waiting.write_all(b"GET /healthcheck HTTP/1.1\r\nhost: gate\r\n\r\n").expect("a connection");
        waiting.peek(&mut [0]).expect("a reply");
        let peak = memory_mib(&gate, "VmHWM");
        assert!(peak < 150, "{peak} MiB");
        // The memory is free when they are gone, and large heads are read as ever.
        drop(connections);
        let large = format!("GET /healthcheck HTTP/1.1\r\nhost: gate\r\nx: {large}\r\n\r\n");
        wait_until("a reply", || {
            let mut connection = connect(gate.http);
            let mut reply = [0; 12];
            connection.write_all(large.as_bytes()).is_ok()
                && connection.read_exact(&mut reply).is_ok()
                && &reply == b"HTTP/1.1 200"
        });
    }
}

/// Limits whose metrics name each value.
const DETAILED: &str = "domain: d
descriptors:
  - {key: key, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 2}}
";

/// Sends a request with a descriptor for each value.
async fn ask_with(gate: &Gate, values: impl Iterator<Item = String>) {
    let values: Vec<String> = values.collect();
    let entries: Vec<_> = values.iter().map(|value| [("key", value.as_str())]).collect();
    let descriptors: Vec<_> = entries.iter().map(|entry| &entry[..]).collect();
    gate.client().await.should_rate_limit(request("d", &descriptors)).await.expect("a reply");
}

/// Names that callers make up are in no metrics, or few of them: the page stays readable.
#[tokio::test(flavor = "multi_thread")]
async fn of_names_leaves_metrics_readable() {
    let (_redis, gate) = start(DETAILED);
    ask_with(&gate, (0..1_000).map(|n| format!("{n}-{}", "\"".repeat(950)))).await;
    let mut client = gate.client().await;
    let page = gate.http("GET", "/metrics", "");
    assert!(page.status == 200 && page.body.len() < 100_000, "{} bytes", page.body.len());
    let commits = Client::connect(&gate).await;
    for n in 0..300 {
        let domain = format!("{n}-{}", "x".repeat(900));
        client.should_rate_limit(request(&domain, &[&[("key", "a")]])).await.expect("a reply");
        let messages::Request { descriptors, .. } = request("", &[&[("key", "a")]]);
        let reservation_id = format!("{n:064x}");
        let commit = messages::CommitRequest { domain, descriptors, reservation_id, actual_amount: 1 };
        // The status of a success is not in the head.
        assert_eq!(status_of(&commits, COMMIT, &commit.encode_to_vec()).await, None);
    }
    let page = gate.http("GET", "/metrics", "");
    assert!(page.status == 200 && page.body.len() < 200_000, "{} bytes", page.body.len());
    assert!(page.body.contains("domain_not_found{domain=\"7-xxx") && !page.body.contains("_tokens{domain"));
}

/// Replies of megabytes that nobody reads.
#[tokio::test(flavor = "multi_thread")]
async fn of_unread_replies_share_a_bound() {
    let (_redis, gate) = start(DETAILED);
    for n in 0..10 {
        ask_with(&gate, (0..1_000).map(|m| format!("{n}-{m}-{}", "x".repeat(850)))).await;
    }
    let mut connections: Vec<TcpStream> = (0..12).map(|_| connect(gate.http)).collect();
    for connection in &mut connections {
        connection.write_all(b"GET /metrics HTTP/1.1\r\nhost: gate\r\n\r\n").expect("a connection");
    }
    for connection in &connections {
        connection.peek(&mut [0]).expect("a reply");
    }
    limits_as_ever(&gate).await;
}
