//! How long connections stay.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use futures_util::FutureExt;

use crate::gate::{connect, wait_until, PATIENCE};
use crate::h2_client::{watch, Client};
use crate::started;

/// At its age a connection is asked to end: what runs goes on, new calls go elsewhere. After the grace it is closed.
#[tokio::test(flavor = "multi_thread")]
async fn end_when_they_are_old() {
    const AGE: Duration = Duration::from_secs(1);
    const GRACE: Duration = Duration::from_secs(4);
    let (_redis, gate) =
        started(&[("GRPC_MAX_CONNECTION_AGE", "1s"), ("GRPC_MAX_CONNECTION_AGE_GRACE", "4s")]);
    let began = Instant::now();
    let client = Client::connect(&gate).await;
    let mut watched = watch(&client).await.into_body();
    watched.data().await.expect("the health").expect("a connection");

    // The gate asks: this client opens no more calls on the connection.
    while client.is_open().await {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(began.elapsed() >= AGE);
    assert!(watched.data().now_or_never().is_none(), "what runs was ended");

    let end = tokio::time::timeout(PATIENCE, watched.data()).await.expect("an end");
    assert!(!matches!(end, Some(Ok(_))), "{end:?}");
    assert!(began.elapsed() >= AGE + GRACE, "{:?}", began.elapsed());
}

/// Silent connections are closed; those of clients that ask, or answer pings, are not.
#[tokio::test(flavor = "multi_thread")]
async fn end_when_they_are_silent() {
    let (_redis, gate) = started(&[("CONNECTION_IDLE_TIMEOUT", "3s")]);
    let client = Client::connect(&gate).await;
    let mut asking = connect(gate.http);
    asking.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut ask = || {
        asking.write_all(b"GET /healthcheck HTTP/1.1\r\nhost: gate\r\n\r\n").expect("a connection");
        let mut reply = [0; 1024];
        let read = asking.read(&mut reply).expect("a connection");
        assert!(reply[..read].starts_with(b"HTTP/1.1 200 "), "{:?}", String::from_utf8_lossy(&reply[..read]));
    };
    let silent = [gate.grpc, gate.http, gate.debug].map(connect);
    silent.iter().for_each(|one| one.set_nonblocking(true).expect("a connection"));
    // The gate's first words over gRPC, then the end.
    let is_closed = |mut one: &TcpStream| loop {
        match one.read(&mut [0; 1024]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    wait_until("closed connections", || {
        ask();
        silent.iter().all(is_closed)
    });
    assert!(client.is_open().await);
}

/// A burst of connections waits for the gate. One too many would come in a second later, for which no proxy waits.
#[test]
fn wait_to_be_accepted() {
    const BURST: usize = 600;
    let (_redis, gate) = started(&[]);
    let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("Linux");
    let allowed: usize = allowed.trim().parse().expect("a number");
    assert!(allowed >= BURST, "net.core.somaxconn is {allowed}");
    gate.signal("STOP");
    for port in [gate.http, gate.grpc] {
        let address = ([127, 0, 0, 1], port).into();
        let burst: Result<Vec<_>, _> =
            (0..BURST).map(|_| TcpStream::connect_timeout(&address, PATIENCE)).collect();
        assert!(burst.is_ok(), "{burst:?}");
    }
    gate.signal("CONT");
    assert_eq!(gate.http("GET", "/healthcheck", "").status, 200);
}
