use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tonic::Code;

use crate::flood::SHOULD_RATE_LIMIT;
use crate::gate::{connect, memory_mib, request, wait_until, Gate, Setup};
use crate::h2_client::{status_of, Client};
use crate::servers::Server;
use crate::{asks, started, TWO};

async fn still_answers(gate: &Gate) {
    let reply = gate.client().await.should_rate_limit(request("d", &[&[("other", "")]])).await;
    assert_eq!(reply.expect("a reply").into_inner().statuses.len(), 1);
    assert_eq!(gate.http("GET", "/healthcheck", "").status, 200);
}

/// Requests that are empty, huge or broken are answered by errors.
#[tokio::test(flavor = "multi_thread")]
async fn refuses_what_is_too_large() {
    let (_redis, gate) = started(&[]);
    let mut client = gate.client().await;
    let mut code = async |request| {
        client.should_rate_limit(request).await.map_or_else(|error| error.code(), |_| Code::Ok)
    };
    assert_eq!(code(request("d", &[])).await, Code::Unknown);
    assert_eq!(code(request("", &[&[("key", "a")]])).await, Code::Unknown);
    assert_eq!(code(request("d", &[&[]])).await, Code::Ok);
    let megabyte = "x".repeat(1 << 20);
    assert_eq!(code(request("d", &[&[("key", &megabyte)]])).await, Code::OutOfRange);
    // Below the limit of a message: a value of this size is a name like any other.
    assert_eq!(code(request("d", &[&[("key", &megabyte[..500_000])]])).await, Code::Ok);
    let values: Vec<String> = (0..1_001).map(|n| n.to_string()).collect();
    let entries: Vec<[(&str, &str); 1]> = values.iter().map(|value| [("key", value.as_str())]).collect();
    let descriptors: Vec<&[(&str, &str)]> = entries.iter().map(|entry| entry.as_slice()).collect();
    assert_eq!(code(request("d", &descriptors[1..])).await, Code::Ok);
    assert_eq!(code(request("d", &descriptors)).await, Code::Unknown);

    // More entries than a request may have, empty though they are.
    let empty = vec![("", ""); 10_001];
    assert_eq!(code(request("d", &[&empty[1..]])).await, Code::Ok);
    assert_eq!(code(request("d", &[&empty])).await, Code::Unknown);
    assert_eq!(code(request("d", &[&empty[..6_000], &empty[..6_000]])).await, Code::Unknown);

    assert_eq!(gate.json(&asks(&megabyte)).status, 413);
    assert_eq!(gate.json("\u{0}\u{1}{").status, 400);
    assert_eq!(gate.json(&"[".repeat(100_000)).status, 400);
    still_answers(&gate).await;
}

/// Large values do not stay: not in names of buckets, of metrics or of remembered denials.
#[tokio::test(flavor = "multi_thread")]
async fn keeps_no_large_values() {
    let redis = Server::start();
    let file = "domain: d\ndescriptors:\n- key: key\n  detailed_metric: true\n  rate_limit: {unit: day, requests_per_unit: 0}\n";
    let setup = Setup::redis(&redis.url()).file("none.yaml", file);
    // A busy machine may be slower than the default.
    let gate = setup.set("LOCAL_CACHE_SIZE_IN_BYTES", 1 << 20).set("REDIS_TIMEOUT", "10s").start();
    gate.wait_until_healthy();
    let mut client = gate.client().await;
    let mut before = 0;
    for n in 0..100 {
        let value = format!("{n}{}", "x".repeat(500_000));
        client.should_rate_limit(request("d", &[&[("key", &value)]])).await.expect("a reply");
        if n == 20 {
            before = memory_mib(&gate, "VmRSS");
        }
    }
    let grown = memory_mib(&gate, "VmRSS").saturating_sub(before);
    assert!(grown < 16, "{grown} MiB after 40 MB of values");
    still_answers(&gate).await;
}

/// A name that is mistyped limits nothing: the log says so once for each, and the metrics count them.
#[tokio::test(flavor = "multi_thread")]
async fn says_that_a_name_has_no_limit() {
    let (_redis, gate) = started(&[]);
    let mut client = gate.client().await;
    for _ in 0..3 {
        for (domain, key) in [("d", "key"), ("d", "kye"), ("dd", "key")] {
            for value in ["a", "b"] {
                client.should_rate_limit(request(domain, &[&[(key, value)]])).await.expect("a reply");
            }
        }
    }
    let count = |text: &str| gate.log().iter().filter(|line| line.contains(text)).count();
    gate.wait_for_line("no file has the domain 'dd': its requests pass");
    assert_eq!((count("no limit for a descriptor of 'kye'"), count("domain 'dd'"), count("key'")), (1, 1, 0));
    let counted = |name: &str| gate.metric(&format!("ratelimit_service_rate_limit_{name}"));
    assert_eq!(counted("domain_not_found{domain=\"dd\"}"), 6);
    assert_eq!(counted("descriptor_not_found{domain=\"d\"}"), 6);
    // A client that makes up names does not fill the log.
    for number in 0..300 {
        client
            .should_rate_limit(request(&format!("made up {number}"), &[&[("key", "a")]]))
            .await
            .expect("a reply");
    }
    assert!(count("made up") < 100, "{}", count("made up"));
}

/// Bytes that are no HTTP/2, no protobuf, or no HTTP end their connection, not the gate.
#[tokio::test(flavor = "multi_thread")]
async fn survives_broken_protocols() {
    let (_redis, gate) = started(&[]);
    for port in [gate.grpc, gate.http, gate.debug] {
        for bytes in [
            &b"\x00\x01\x02\xff\xfe"[..],
            b"GET",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ] {
            let mut connection = connect(port);
            let _ = connection.write_all(bytes);
            let _ = connection.shutdown(std::net::Shutdown::Write);
            connection.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
            let _ = connection.read_to_end(&mut Vec::new());
        }
    }
    // A descriptor that is no message.
    let client = Client::connect(&gate).await;
    let status = status_of(&client, SHOULD_RATE_LIMIT, b"\x12\x03two").await;
    assert_eq!(status.as_deref(), Some("13"), "INTERNAL");
    still_answers(&gate).await;
}

/// A body that does not arrive ends its request.
#[tokio::test(flavor = "multi_thread")]
async fn ends_slow_requests() {
    let (_redis, gate) = started(&[]);
    let mut connection = connect(gate.http);
    connection.set_read_timeout(Some(crate::gate::PATIENCE)).expect("a timeout");
    connection
        .write_all(b"POST /json HTTP/1.1\r\nhost: gate\r\ncontent-length: 10\r\n\r\n{")
        .expect("a connection");
    let mut reply = String::new();
    connection.read_to_string(&mut reply).expect("an end of the connection");
    assert!(reply.starts_with("HTTP/1.1 408 "), "{reply}");
}

/// More connections than it has files for: those beyond are closed, the other listener and Redis are not concerned, and all is
/// well when they are gone.
#[tokio::test(flavor = "multi_thread")]
async fn closes_connections_beyond_its_files() {
    let redis = Server::start();
    let gate = Setup::redis(&redis.url()).file("two.yaml", TWO).most_open_files(400).start();
    gate.wait_until_healthy();
    let connections: Vec<TcpStream> = (0..300).map(|_| connect(gate.grpc)).collect();
    wait_until("200 closed connections", || connections.iter().filter(|one| is_closed(one)).count() >= 200);
    assert_eq!(gate.json(&asks("a")).status, 200);
    gate.write("more.yaml", &TWO.replace("domain: d", "domain: e"));
    wait_until("a reload", || gate.metric("ratelimit_service_config_load_success ") == 2);
    drop(connections);
    wait_until("room", || {
        let connection = connect(gate.grpc);
        std::thread::sleep(Duration::from_millis(20));
        !is_closed(&connection)
    });
    still_answers(&gate).await;
}

fn is_closed(connection: &TcpStream) -> bool {
    connection.set_nonblocking(true).expect("a connection");
    match connection.peek(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}
