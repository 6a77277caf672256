//! Times of real calls, and hooks.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokenbucket_client::{sync, Decision, Error, Limiter, Options, Part};

use crate::servers::Server;
use crate::{connect, limit, limiter, STILL};

/// By the real time, although this test has stopped tokio's, and set it forward.
#[tokio::test(start_paused = true)]
async fn a_reservation_sleeps_until_its_turn() {
    tokio::time::advance(Duration::from_secs(3600)).await;
    let server = Server::start();
    let limiter = limiter(&server, limit(1, "10/s"), Options::new());
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    let began = Instant::now();
    let decision = limiter.wait("a", 1, Duration::from_secs(5)).await.unwrap();
    assert!(decision.allowed);
    assert!(began.elapsed() >= decision.retry_after().unwrap(), "{decision:?}");
}

#[tokio::test]
async fn the_hook_hears_of_every_decision() {
    let server = Server::start();
    let heard: Arc<Mutex<Vec<(String, bool)>>> = Arc::default();
    let hears = heard.clone();
    let options = Options::new().on_decision(move |name, limit, decision: &Decision, took| {
        assert!(limit.capacity() == "1" && took < Duration::from_secs(60));
        hears.lock().unwrap().push((name.to_owned(), decision.allowed));
    });
    let limiter = limiter(&server, limit(1, STILL), options);
    for _ in 0..2 {
        limiter.take("a", 1).await.unwrap();
    }
    limiter.take_all(&[Part::new("b", &limit(1, STILL), 1)]).await.unwrap();
    let heard = heard.lock().unwrap().clone();
    assert_eq!(heard, [("a".to_owned(), true), ("a".to_owned(), false), ("b".to_owned(), true)]);
}

#[tokio::test]
async fn the_longest_times_do_no_harm() {
    let server = Server::start();
    let long = Duration::MAX;
    let options = Options::new().remember_denials(1).remember_denials_for(long);
    let connected = connect(&server).with_timeout(long).with_retry_every(long);
    let limiter = Limiter::with_options(&connected, limit(1, STILL), options);
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    let denied = limiter.take("a", 1).await.unwrap();
    assert!(!denied.allowed && !denied.degraded);
    assert!(!denied.headers(limiter.limit(), "a").is_empty());
    assert!(limiter.take("a", 1).await.unwrap().remembered);
    assert!(matches!(limiter.with_max_wait(long).take("b", 1).await, Err(Error::BadArgument(_))));
    for ttl in [long, Duration::ZERO] {
        assert!(matches!(limiter.hold("b", 1, ttl).await.map(drop), Err(Error::BadArgument(_))));
    }
    let threads = sync::Limiter::new(&connected, limit(1, STILL)).within(long);
    assert!(threads.take("c", 1).unwrap().allowed);
    assert!(matches!(threads.reserve("c", 1, long), Ok(_) | Err(Error::Refused { .. })));
}
