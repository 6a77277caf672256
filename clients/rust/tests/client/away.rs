//! Servers that are away, hang, refuse or come back.

use std::time::{Duration, Instant};

use tokenbucket_client::{OnError, Options};

use crate::servers::{wait_for, Server};
use crate::{limit, limiter, logs, patient, STILL};

#[tokio::test]
async fn failing_open_lets_everybody_through_until_the_server_is_back() {
    outage(OnError::Open).await;
}

#[tokio::test]
async fn failing_closed_lets_nobody_through_until_the_server_is_back() {
    outage(OnError::Closed).await;
}

async fn outage(on_error: OnError) {
    logs::listen();
    let mut server = Server::start().await;
    let limiter = limiter(&server, limit(2, STILL), patient().on_error(on_error));
    assert!(limiter.take("a", 2).await.unwrap().allowed);
    assert!(!limiter.take("a", 1).await.unwrap().allowed);

    server.process.kill();
    let is_open = on_error == OnError::Open;
    for _ in 0..20 {
        let decision = limiter.take("a", 1).await.unwrap();
        assert_eq!((decision.allowed, decision.degraded), (is_open, true));
        assert_eq!(decision.retry_after_ms, if is_open { 0 } else { 500 });
    }
    let granted = limiter.take_up_to("a", 7).await.unwrap().granted;
    assert_eq!(granted, if is_open { 7 } else { 0 });

    server.restart().await;
    wait_for("limiting", Duration::from_secs(1), async || !limiter.take("a", 2).await.unwrap().degraded)
        .await;
    assert!(!limiter.take("a", 1).await.unwrap().allowed, "the server decides");
    let lines = logs::lines();
    assert_eq!(lines.len(), 2, "one when it goes and one when it returns: {lines:?}");
    assert!(lines[0].starts_with("cannot ask Redis for limits: "), "{lines:?}");
    assert_eq!(lines[1], "Redis is back, limiting again");
}

#[tokio::test]
async fn a_server_that_restarted_while_nobody_asked_was_never_away() {
    logs::listen();
    let mut server = Server::start().await;
    let limiter = limiter(&server, limit(2, STILL), patient());
    limiter.take("a", 1).await.unwrap();
    server.process.kill();
    server.restart().await;
    assert!(!limiter.take("a", 1).await.unwrap().degraded);
    assert_eq!(logs::lines(), [""; 0]);
}

#[tokio::test]
async fn a_server_that_hangs_costs_the_timeout_once() {
    logs::listen();
    let server = Server::start().await;
    let timeout = Duration::from_millis(200);
    let options = Options::new().timeout(timeout).retry_every(Duration::from_secs(3600));
    let limiter = limiter(&server, limit(2, STILL), options);
    // Connecting may take longer than that on a slow machine.
    wait_for("the connection", Duration::from_secs(1), async || limiter.peek("a", 1).await.unwrap().allowed)
        .await;
    logs::lines();

    server.process.signal("STOP");
    let began = Instant::now();
    assert!(limiter.take("a", 1).await.unwrap().degraded);
    assert!(began.elapsed() >= timeout);
    let began = Instant::now();
    for _ in 0..100 {
        assert!(limiter.take("a", 1).await.unwrap().degraded);
    }
    assert!(began.elapsed() < 50 * timeout, "nobody waits for it");
    assert_eq!(logs::lines(), ["cannot ask Redis for limits: no answer within 200 ms"]);
    server.process.signal("CONT");
}

#[tokio::test]
async fn a_limiter_starts_while_the_server_is_away() {
    let mut server = Server::new(&[], true);
    let limiter = limiter(&server, limit(1, STILL), patient());
    assert!(limiter.take("a", 1).await.unwrap().degraded);
    server.restart().await;
    wait_for("limiting", Duration::from_secs(1), async || !limiter.take("a", 1).await.unwrap().degraded)
        .await;
}

#[tokio::test]
async fn one_call_at_a_time_looks_whether_the_server_is_back() {
    let server = Server::start().await;
    let options = Options::new().timeout(Duration::from_secs(2)).retry_every(Duration::ZERO);
    let limiter = limiter(&server, limit(1, STILL), options);
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    server.process.signal("STOP");
    assert!(limiter.take("a", 1).await.unwrap().degraded);
    // The first asks and waits for the timeout, the second does not.
    let probe = limiter.take("a", 1);
    let other = async {
        tokio::task::yield_now().await;
        let began = Instant::now();
        assert!(limiter.take("a", 1).await.unwrap().degraded);
        began.elapsed()
    };
    let (probe, waited) = tokio::join!(probe, other);
    assert!(probe.unwrap().degraded);
    assert!(waited < Duration::from_secs(1), "{waited:?}");

    // A probe that is given up leaves its place to the next.
    let given_up = tokio::time::timeout(Duration::from_millis(50), limiter.take("a", 1)).await;
    assert!(given_up.is_err(), "{given_up:?}");
    server.process.signal("CONT");
    wait_for("limiting", Duration::from_secs(5), async || !limiter.take("a", 1).await.unwrap().degraded)
        .await;
}

#[tokio::test]
async fn a_server_that_refuses_writes_is_not_away() {
    logs::listen();
    let server = Server::start().await;
    let limiter = limiter(&server, limit(2, STILL), patient());
    let mut connection = server.connection();
    let mut config = |words: &[&str]| redis::Cmd::new().arg(words).exec(&mut connection).unwrap();
    config(&["CONFIG", "SET", "maxmemory", "1"]);
    for name in ["a", "b"] {
        assert!(limiter.take(name, 1).await.unwrap().degraded, "the policy decides");
        assert!(!limiter.peek(name, 1).await.unwrap().degraded, "reading goes on");
    }
    config(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(!limiter.take("a", 1).await.unwrap().degraded, "at once");
    let lines = logs::lines();
    assert!(lines.len() == 1 && lines[0].contains("OOM"), "{lines:?}");
}
