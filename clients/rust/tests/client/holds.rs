//! What is held while work lasts.

use std::time::Duration;

use tokenbucket_client::{Error, Limiter, Options, Part};

use crate::servers::{ask, wait_for, Server};
use crate::{limit, limiter, limiter_with, patient, STILL};

const LONG: Duration = Duration::from_secs(3600);

async fn remaining(limiter: &Limiter, name: &str) -> i64 {
    limiter.peek(name, 0).await.unwrap().remaining
}

#[tokio::test]
async fn what_was_used_beyond_a_hold_is_charged() {
    let server = Server::start();
    let limiter = limiter(&server, limit(10_000, "1/h"), Options::new());
    let hold = limiter.hold("a", 200, LONG).await.unwrap();
    assert_eq!(hold.decision().binding.remaining, 9800);
    hold.set_used(700.5).unwrap();
    hold.settle().await.unwrap();
    assert_eq!(remaining(&limiter, "a").await, 9299);
}

#[tokio::test]
async fn a_hold_without_room_is_denied() {
    let server = Server::start();
    let limiter = limiter(&server, limit(10, STILL), Options::new());
    let first = limiter.hold("a", 8, LONG).await.unwrap();
    let Err(Error::Denied(decision)) = limiter.hold("a", 3, LONG).await else { panic!("denied") };
    assert_eq!(decision.binding.retry_after_s(), Some(360));
    let Err(Error::Denied(never)) = limiter.hold("a", 11, LONG).await else { panic!("denied") };
    assert_eq!(never.binding.retry_after(), None);
    // What is not reported counts as used, and a wrong report loses no hold.
    let wrong = [first.set_used(-1), first.set_used(f64::NAN), first.set_used_of(1, 1)];
    assert!(wrong.iter().all(|error| matches!(error, Err(Error::BadArgument(_)))), "{wrong:?}");
    first.settle().await.unwrap();
    assert_eq!(remaining(&limiter, "a").await, 2);
}

#[tokio::test]
async fn a_hold_renews_itself_as_long_as_it_lives() {
    let server = Server::start();
    let ttl = Duration::from_secs(1);
    let limiter = limiter(&server, limit(10, "1/d"), Options::new());
    let hold = limiter.hold("a", 8, ttl).await.unwrap();
    tokio::time::sleep(3 * ttl).await;
    assert_eq!(remaining(&limiter, "a").await, 2);
    assert!(hold.settle().await.unwrap().allowed(), "it was there all the time");
}

#[tokio::test]
async fn a_hold_whose_runtime_ends_is_settled() {
    let server = Server::start();
    let limiter = limiter(&server, limit(10, "1/d"), Options::new());
    // A runtime that ends in the middle of the work settles it in the background; long before the ttl is over.
    let url = server.url();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = tokenbucket_client::Server::connect(url).unwrap();
            let limiter = Limiter::new(&server, limit(10, "1/d"));
            let hold = limiter.hold("a", 8, LONG).await.unwrap();
            hold.set_used(0).unwrap();
            tokio::spawn(async move {
                let _hold = hold;
                std::future::pending::<()>().await;
            });
            tokio::task::yield_now().await;
        });
    })
    .join()
    .unwrap();
    wait_for("the tokens", Duration::from_secs(10), async || remaining(&limiter, "a").await == 10).await;
}

#[tokio::test]
async fn a_hold_that_died_is_charged_what_was_used() {
    let server = Server::start();
    let limiter = limiter(&server, limit(10, STILL), Options::new());
    let hold = limiter.hold("a", 8, LONG).await.unwrap();
    ask::<()>(&server, &["DEL", "tb:a"]);
    hold.set_used(3).unwrap();
    assert!(!hold.settle().await.unwrap().allowed());
    assert_eq!(remaining(&limiter, "a").await, 7);
}

#[tokio::test]
async fn work_that_was_let_through_is_charged_when_the_server_is_back() {
    let mut server = Server::away();
    let options = patient().retry_every(Duration::from_secs(3600));
    let limiter = limiter_with(&server, limit(10, STILL), Options::new(), options);
    let hold = limiter.hold("a", 8, LONG).await.unwrap();
    assert!(hold.decision().binding.degraded);
    server.start_again();
    hold.set_used(3).unwrap();
    hold.settle().await.unwrap();
    assert_eq!(remaining(&limiter, "a").await, 7, "and is no longer thought to be away");
}

#[tokio::test]
async fn holds_all_or_none() {
    let server = Server::start();
    let requests = limit(10, STILL);
    let slots = limit(2, "0");
    let limiter = limiter(&server, requests.clone(), Options::new());
    let in_flight = limiter.with_limit(slots.clone());
    let parts = [Part::new("{a}:requests", &requests, 1), Part::new("{a}:in-flight", &slots, 1)];
    let first = limiter.hold_all(&parts, LONG).await.unwrap();
    let second = limiter.hold_all(&parts, LONG).await.unwrap();
    let Err(Error::Denied(denied)) = limiter.hold_all(&parts, LONG).await else { panic!("denied") };
    assert_eq!(denied.each.iter().map(|one| one.allowed).collect::<Vec<_>>(), [true, false]);
    first.set_used(1).unwrap();
    first.settle().await.unwrap();
    assert_eq!(remaining(&limiter, "{a}:requests").await, 8, "one used, one held");
    assert_eq!(remaining(&in_flight, "{a}:in-flight").await, 1, "slots come back");
    second.set_used_of(0, 1).unwrap();
    second.settle().await.unwrap();
    assert_eq!(remaining(&in_flight, "{a}:in-flight").await, 2);
}
