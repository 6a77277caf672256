//! The same from threads.

use std::thread;
use std::time::{Duration, Instant};

use tokenbucket_client::sync::{Limiter, Server};
use tokenbucket_client::{Fallback, OnError, Options, Part};

use crate::servers::{self, wait_for};
use crate::{limit, logs, patient, STILL};

fn limiter(server: &servers::Server, capacity: u32, options: Options) -> Limiter {
    Limiter::with_options(&Server::connect(server.url()).unwrap(), limit(capacity, STILL), options)
}

#[tokio::test]
async fn every_operation() {
    let server = servers::Server::start().await;
    let limiter = limiter(&server, 10, patient());
    assert_eq!(limiter.take("a", 4).unwrap().remaining, 6);
    assert_eq!(limiter.peek("a", 1).unwrap().remaining, 5);
    assert_eq!(limiter.take_up_to("a", 2).unwrap().granted, 2);
    assert_eq!(limiter.charge("a", 5).unwrap().remaining, -1);
    assert_eq!(limiter.give("a", 6).unwrap().remaining, 5);
    assert!(limiter.take_all(&[Part::new("b", &limit(1, STILL), 1)]).unwrap().allowed());
    assert!(!limiter.reserve("a", 6, Duration::from_secs(1)).unwrap().allowed);
    let fast = limiter.with_limit(limit(1, "10/s"));
    let began = Instant::now();
    for _ in 0..3 {
        assert!(fast.reserve("c", 1, Duration::from_secs(5)).unwrap().allowed);
    }
    assert!(began.elapsed() >= Duration::from_millis(100));
    let hold = limiter.hold("a", 5, Duration::from_millis(900)).unwrap();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(limiter.peek("a", 0).unwrap().remaining, 0, "renewed");
    hold.set_used(2);
    hold.settle().unwrap();
    assert_eq!(limiter.peek("a", 0).unwrap().remaining, 3);
    assert!(limiter.take("a", -1).is_err());
    assert_eq!(limiter.peek("a", 0).unwrap().remaining, 3);
}

#[tokio::test]
async fn threads_get_no_more_than_there_is() {
    let server = servers::Server::start().await;
    for options in [patient(), patient().batch(7).remember_denials(10)] {
        let limiter = limiter(&server, 100, options.prefix(format!("{}", fastrand::u32(..))));
        let allowed: usize = thread::scope(|scope| {
            let takes = |_| scope.spawn(|| (0..50).filter(|_| limiter.take("a", 1).unwrap().allowed).count());
            let threads: Vec<_> = (0..8).map(takes).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(allowed, 100);
        limiter.close().unwrap();
    }
}

#[tokio::test]
async fn an_outage() {
    logs::listen();
    let mut server = servers::Server::start().await;
    let limiter = limiter(&server, 2, patient().on_error(OnError::Closed));
    assert!(limiter.take("a", 2).unwrap().allowed);
    server.process.kill();
    for _ in 0..20 {
        let decision = limiter.take("a", 1).unwrap();
        assert_eq!((decision.allowed, decision.degraded), (false, true));
    }
    server.restart().await;
    wait_for("limiting", Duration::from_secs(1), async || !limiter.take("a", 1).unwrap().degraded).await;
    assert_eq!(logs::lines().len(), 2);

    server.process.kill();
    server.restart().await;
    assert!(!limiter.take("a", 1).unwrap().degraded, "nobody asked while it was away");
    assert_eq!(logs::lines(), [""; 0]);
}

#[tokio::test]
async fn a_server_that_hangs_costs_the_timeout_once() {
    let server = servers::Server::start().await;
    let timeout = Duration::from_millis(200);
    let options = Options::new().timeout(timeout).retry_every(Duration::from_secs(3600));
    let limiter = limiter(&server, 2, options);
    server.process.signal("STOP");
    let began = Instant::now();
    for _ in 0..100 {
        assert!(limiter.take("a", 1).unwrap().degraded);
    }
    assert!((timeout..50 * timeout).contains(&began.elapsed()), "{:?}", began.elapsed());
    server.process.signal("CONT");
}

#[tokio::test]
async fn the_script_decides_until_there_is_the_module() {
    let mut server = servers::Server::start_without_module().await;
    let limiter = limiter(&server, 10, patient().fallback(Fallback::Script));
    assert_eq!(limiter.take("a", 4).unwrap().remaining, 6);
    server.process.kill();
    server.process.command.arg("--loadmodule").arg(servers::module());
    server.restart().await;
    assert_eq!(limiter.take("a", 1).unwrap().remaining, 9);
}
