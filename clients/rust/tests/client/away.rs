//! Servers that are away, hang, refuse or come back.

use std::time::{Duration, Instant};

use tokenbucket_client::{Limiter, OnError, Options, ServerOptions};

use crate::servers::{ask, wait_for, Server};
use crate::{limit, limiter, limiter_with, logs, patient, STILL};

#[tokio::test]
async fn an_outage_is_logged_when_it_begins_and_when_it_is_over() {
    logs::listen();
    let mut server = Server::start();
    let limiter = limiter(&server, limit(2, STILL), Options::new().on_error(OnError::Open));
    assert!(limiter.take("a", 2).await.unwrap().allowed);
    server.kill();
    for _ in 0..20 {
        assert!(limiter.take("a", 1).await.unwrap().degraded);
    }
    assert_eq!(limiter.take_up_to("a", 7).await.unwrap().granted, 7);
    server.start_again();
    wait_for("limiting", Duration::from_secs(1), async || !limiter.take("a", 2).await.unwrap().degraded)
        .await;
    let (lines, address) = (logs::lines(&server), format!("127.0.0.1:{}", server.port));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with(&format!("cannot ask Redis for limits: {address}: ")), "{lines:?}");
    assert_eq!(lines[1], format!("Redis is back, limiting again: {address}"));
}

#[tokio::test]
async fn an_outage_is_over_when_the_server_decides_not_when_it_refuses() {
    logs::listen();
    let mut server = Server::start();
    let limiter = limiter(&server, limit(2, STILL), Options::new().on_error(OnError::Open));
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    server.kill();
    assert!(limiter.take("a", 1).await.unwrap().degraded);
    server.start_again();
    ask::<()>(&server, &["SET", "tb:a", "of another type"]);
    wait_for("the refusal", Duration::from_secs(1), async || limiter.take("a", 1).await.is_err()).await;
    let is_back = |line: &String| line.starts_with("Redis is back");
    assert!(!logs::lines(&server).iter().any(is_back), "nothing is limited");
    assert!(!limiter.take("b", 1).await.unwrap().degraded);
    assert!(logs::lines(&server).iter().any(is_back));
}

#[tokio::test]
async fn a_server_without_hello_shows_no_password() {
    let server = Server::started(&["--", "--rename-command", "HELLO", ""]);
    let url = format!("redis://ada:s3cret@127.0.0.1:{}", server.port);
    let limiter =
        Limiter::new(&tokenbucket_client::Server::connect_with(url, patient()).unwrap(), limit(1, "1/h"));
    let error = limiter.take("a", 1).await.unwrap_err();
    assert!(error.to_string().ends_with("the server lacks HELLO or AUTH - InvalidClientConfig"), "{error}");
    assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
}

#[tokio::test]
async fn a_server_that_hangs_costs_the_timeout_once() {
    logs::listen();
    let server = Server::start();
    let timeout = Duration::from_millis(200);
    let options = ServerOptions::new().timeout(timeout).retry_every(Duration::from_secs(3600));
    let limiter = limiter_with(&server, limit(2, STILL), Options::new(), options);
    // Connecting may take longer than that on a slow machine.
    wait_for("the connection", Duration::from_secs(1), async || limiter.peek("a", 1).await.unwrap().allowed)
        .await;
    logs::lines(&server);

    server.signal("STOP");
    let began = Instant::now();
    assert!(limiter.take("a", 1).await.unwrap().degraded);
    assert!(began.elapsed() >= timeout);
    let began = Instant::now();
    for _ in 0..100 {
        assert!(limiter.take("a", 1).await.unwrap().degraded);
    }
    assert!(began.elapsed() < 50 * timeout, "nobody waits for it");
    let lines = logs::lines(&server);
    assert!(lines.len() == 1 && lines[0].ends_with("no answer within 200 ms"), "{lines:?}");
    server.signal("CONT");
}

#[tokio::test]
async fn one_call_at_a_time_looks_whether_the_server_is_back() {
    let server = Server::start();
    let options = ServerOptions::new().timeout(Duration::from_secs(2)).retry_every(Duration::ZERO);
    let limiter = limiter_with(&server, limit(1, STILL), Options::new(), options);
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    server.signal("STOP");
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

    server.signal("CONT");
    wait_for("limiting", Duration::from_secs(5), async || !limiter.take("a", 1).await.unwrap().degraded)
        .await;
}

#[tokio::test]
async fn a_server_that_hangs_is_asked_no_more_often_than_wanted() {
    let server = Server::start();
    let [timeout, every] = [Duration::from_millis(100), Duration::from_secs(1)];
    let options = ServerOptions::new().timeout(timeout).retry_every(every);
    let limiter = limiter_with(&server, limit(2, STILL), Options::new(), options);
    wait_for("the connection", every, async || !limiter.take("a", 1).await.unwrap().degraded).await;
    server.signal("STOP");
    let (began, mut slow) = (Instant::now(), 0);
    while began.elapsed() < 4 * every {
        let call = Instant::now();
        assert!(limiter.take("a", 1).await.unwrap().degraded);
        slow += u32::from(call.elapsed() >= timeout);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!((2..=6).contains(&slow), "{slow} calls waited for it");
    server.signal("CONT");
}

#[tokio::test]
async fn a_server_that_refuses_writes_is_not_away() {
    logs::listen();
    let server = Server::start();
    let limiter = limiter(&server, limit(2, STILL), Options::new());
    ask::<()>(&server, &["CONFIG", "SET", "maxmemory", "1"]);
    for name in ["a", "b"] {
        assert!(limiter.take(name, 1).await.unwrap().degraded, "the policy decides");
        assert!(!limiter.peek(name, 1).await.unwrap().degraded, "reading goes on");
    }
    ask::<()>(&server, &["CONFIG", "SET", "maxmemory", "0"]);
    assert!(!limiter.take("a", 1).await.unwrap().degraded, "at once");
    let lines = logs::lines(&server);
    assert!(lines.len() == 1 && lines[0].contains("OOM"), "{lines:?}");
}

#[tokio::test]
async fn nothing_runs_in_the_runtime_of_a_caller() {
    let server = Server::start();
    let limiter = limiter(&server, limit(5, STILL), Options::new());
    limiter.take("a", 1).await.unwrap();
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}
