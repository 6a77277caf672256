//! What the fake is, beside a server whose time tests set. The arithmetic of both is the core's.

use std::time::{Duration, SystemTime};

use tokenbucket_client::fake::Fake;
use tokenbucket_client::sync::Limiter;
use tokenbucket_client::Error;

use crate::servers::Server;
use crate::{limit, patient};

#[tokio::test]
async fn a_wait_advances_the_time_of_the_fake() {
    let fake = Fake::new();
    let limiter = tokenbucket_client::Limiter::new(&fake.server(), limit(1, "1/m"));
    let in_turn = limiter.with_max_wait(Duration::from_secs(61));
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    for _ in 0..3 {
        assert!(limiter.wait("a", 1, Duration::from_secs(60)).await.unwrap().allowed);
        assert!(in_turn.take("a", 1).await.unwrap().allowed);
    }
    let hurried = in_turn.with_max_wait(Duration::from_secs(1));
    assert_eq!(hurried.take("a", 1).await.unwrap().retry_after_ms, 59_000);
}

#[test]
fn holds_of_the_fake_are_settled_or_expire() {
    let fake = Fake::new();
    let limiter = Limiter::new(&fake.server(), limit(10, "0"));
    let ttl = Duration::from_secs(30);
    let first = limiter.hold("jobs", 6, ttl).unwrap();
    fake.advance(Duration::from_secs(10));
    let Err(Error::Denied(denied)) = limiter.hold("jobs", 5, ttl) else { panic!("denied") };
    assert_eq!(denied.binding.retry_after_ms, 20_000);
    drop(first);
    assert_eq!(limiter.peek("jobs", 10).unwrap().remaining, 0, "settled when it was dropped");
    std::mem::forget(limiter.hold("jobs", 6, ttl).unwrap());
    fake.advance(ttl);
    assert!(limiter.peek("jobs", 10).unwrap().allowed);
}

#[test]
fn limiters_for_threads_have_every_method() {
    let [tasks, threads] =
        [include_str!("../../src/api/limiter.rs"), include_str!("../../src/adapters/sync.rs")];
    let of_tasks = tasks.lines().filter_map(|line| {
        let line = line.trim().strip_prefix("pub ")?.trim_start_matches("async ").strip_prefix("fn ")?;
        line.split('(').next()
    });
    let missing: Vec<_> = of_tasks.filter(|name| !threads.contains(&format!(" {name}("))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_fake_refuses_as_the_server_does() {
    let server = Server::start();
    let real = patient(&server);
    let [ours, expected] = [Fake::new().server(), real].map(|server| {
        match Limiter::new(&server, limit(10, "0")).take("jobs", 1) {
            Err(Error::Refused { error, .. }) => (error.kind(), error.to_string()),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(ours, expected);
}

#[test]
fn the_fake_may_be_away() {
    let fake = Fake::new();
    let limiter = Limiter::new(&fake.server(), limit(1, "1/m"));
    fake.set_away(true);
    assert!(limiter.take("a", 5).unwrap().degraded);
    fake.set_away(false);
    assert!(limiter.take("a", 1).unwrap().degraded, "until it is time to look");
    fake.advance(Duration::from_millis(500));
    assert!(!limiter.take("a", 1).unwrap().degraded);
}

#[test]
fn the_fake_begins_at_a_time_of_its_own() {
    let fake = Fake::at(SystemTime::UNIX_EPOCH + Duration::from_millis(1));
    let limiter = Limiter::new(&fake.server(), limit(1, "1@d"));
    assert_eq!(limiter.take("a", 1).unwrap().reset_after_ms, 86_399_999);
}
