//! What is held while work lasts.

use std::time::Duration;

use tokenbucket_client::{Error, Hold, Limiter, Options, Part, ServerOptions};

use crate::clock::Clock;
use crate::servers::{ask, wait_for, Server};
use crate::{calls, limit, limiter, limiter_with, patient, STILL};

const LONG: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_secs(10);
const BRIEF: Duration = Duration::from_millis(300);

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
async fn a_renewal_without_an_answer_is_repeated_soon() {
    let (server, _clock) = start_with_clock();
    let options = ServerOptions::new().retry_every(Duration::from_millis(50));
    let limiter = limiter_with(&server, limit(1, "0"), Options::new(), options);
    wait_for("the connection", SOON, async || !limiter.peek("a", 0).await.unwrap().degraded).await;
    // Renewed every six seconds while the server answers.
    let hold = limiter.hold("a", 1, Duration::from_secs(18)).await.unwrap();
    assert!(!hold.decision().binding.degraded);
    server.signal("STOP");
    wait_for("a renewal in vain", SOON, async || hold.decision().binding.degraded).await;
    server.signal("CONT");
    let soon = Duration::from_secs(4);
    wait_for("a renewal", soon, async || !hold.decision().binding.degraded).await;
    hold.settle().await.unwrap();
}

/// On its server the time stands still: no hold expires before the test lets it.
fn start_with_clock() -> (Server, Clock) {
    let server = Server::started(&["--clock"]);
    let clock = Clock::new(&server.folder);
    (server, clock)
}

async fn is_renewed(server: &Server, command: &str) {
    let before = calls(server, command);
    wait_for("renewals", SOON, async || calls(server, command) >= before + 2).await;
}

async fn is_lost(hold: &Hold) {
    tokio::time::timeout(SOON, hold.lost()).await.expect("it is lost");
    assert!(hold.is_lost() && !hold.decision().allowed());
}

#[tokio::test]
async fn a_lost_hold_says_so_and_is_not_taken_anew() {
    let (server, clock) = start_with_clock();
    let limiter = limiter(&server, limit(1, "0"), Options::new());
    let hold = limiter.hold("a", 1, BRIEF).await.unwrap();
    is_renewed(&server, "tb.renew").await;
    assert!(!hold.is_lost());
    clock.advance_us(300_000);
    let other = limiter.hold("a", 1, LONG).await.unwrap();
    is_lost(&hold).await;
    other.settle().await.unwrap();
    assert!(!hold.settle().await.unwrap().allowed());
    assert_eq!((remaining(&limiter, "a").await, calls(&server, "tb.hold")), (1, 2));
}

#[tokio::test]
async fn a_hold_outlasts_an_outage() {
    let (server, _clock) = start_with_clock();
    let others = limiter(&server, limit(1, "0"), Options::new());
    let options = ServerOptions::new().timeout(Duration::from_secs(1)).retry_every(Duration::ZERO);
    let limiter = limiter_with(&server, limit(1, "0"), Options::new(), options);
    let hold = limiter.hold("a", 1, BRIEF).await.unwrap();
    assert!(!hold.decision().binding.degraded);
    server.signal("STOP");
    wait_for("the outage", SOON, async || hold.decision().binding.degraded).await;
    let Err(Error::Denied(denied)) = limiter.hold("a", 1, LONG).await else { panic!("it is in use here") };
    assert!(denied.binding.degraded);
    server.signal("CONT");
    wait_for("the server", SOON, async || !hold.decision().binding.degraded).await;
    assert!(!hold.is_lost() && hold.decision().allowed(), "no time has passed there");
    assert_eq!(remaining(&others, "a").await, 0);
    hold.settle().await.unwrap();
    wait_for("the slot", SOON, async || remaining(&others, "a").await == 1).await;
}

#[tokio::test]
async fn a_hold_of_nothing_in_one_of_its_limits_is_not_lost() {
    let (server, _clock) = start_with_clock();
    let limiter = limiter(&server, limit(10, STILL), Options::new());
    let of_both =
        |amount| [1, amount].map(|amount| Part::new(format!("{{a}}:{amount}"), limiter.limit(), amount));
    for (amount, command) in [(0, "tb.renew"), (2, "tb.mrenew")] {
        let hold = limiter.hold_all(&of_both(amount), BRIEF).await.unwrap();
        is_renewed(&server, command).await;
        assert!(!hold.is_lost() && hold.decision().allowed());
        hold.settle().await.unwrap();
    }
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
