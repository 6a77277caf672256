//! Times of real calls, hooks, and what `tracing` hears.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokenbucket_client::fake::Fake;
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
    let (told, heard) = mpsc::channel();
    let options = Options::new().on_decision(move |name, limit, decision: &Decision, took| {
        assert!(limit.capacity() == "1" && took < Duration::from_secs(60));
        told.send((name.to_owned(), decision.allowed)).unwrap();
    });
    let limiter = limiter(&server, limit(1, STILL), options);
    for _ in 0..2 {
        limiter.take("a", 1).await.unwrap();
    }
    limiter.take_all(&[Part::new("b", &limit(1, STILL), 1)]).await.unwrap();
    let heard: Vec<_> = heard.try_iter().collect();
    assert_eq!(heard, [("a".to_owned(), true), ("a".to_owned(), false), ("b".to_owned(), true)]);
}

#[tokio::test]
async fn the_longest_times_and_largest_numbers_do_no_harm() {
    let server = Server::start();
    let long = Duration::MAX;
    let options = Options::new().remember_denials(usize::MAX).remember_denials_for(long);
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
    let batches = Limiter::with_options(&connected, limit(1, STILL), Options::new().batch(u64::MAX));
    assert!(batches.take("d", 1).await.unwrap().allowed);
    let threads = sync::Limiter::new(&connected, limit(1, STILL)).within(long);
    assert!(threads.take("c", 1).unwrap().allowed);
    assert!(matches!(threads.reserve("c", 1, long), Ok(_) | Err(Error::Refused { .. })));
}

#[test]
fn each_decision_is_an_event_in_the_span_of_whoever_asked() {
    let text = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_level(false);
    let text = text.without_time().with_ansi(false).with_target(false);
    let file = tempfile::NamedTempFile::new().unwrap();
    let written = || std::fs::read_to_string(file.path()).unwrap();
    tracing::subscriber::with_default(text.with_writer(file.reopen().unwrap()).finish(), || {
        let fake = Fake::new();
        let options = Options::new().prefix("login:");
        let limiter = sync::Limiter::with_options(&fake.server(), limit(1, "1/m"), options);
        // A test on another thread, which has no subscriber, may be the first that tracing asks about this event.
        while written().is_empty() {
            tracing::callsite::rebuild_interest_cache();
            limiter.take("first", 1).unwrap();
        }
        tracing::info_span!("request").in_scope(|| {
            limiter.take("alice", 1).unwrap();
            limiter.take("alice", 1).unwrap();
        });
        fake.set_away(true);
        limiter.take("alice", 1).unwrap();
    });
    let text = written();
    let lines = text.lines().filter(|line| !line.contains("login:first"));
    let told: Vec<&str> = lines.map(|line| line.split(" took=").next().unwrap()).collect();
    let alice = r#"decided key="login:alice" limit=1 1/m"#;
    assert_eq!(
        told,
        [
            format!("request: {alice} allowed=true shadowed=false remaining=0 retry_after_ms=0 degraded=false"),
            format!("request: {alice} allowed=false shadowed=false remaining=0 retry_after_ms=60000 degraded=false"),
            format!("{alice} allowed=true shadowed=false remaining=0 retry_after_ms=0 degraded=true"),
        ]
    );
}
