//! Denials remembered, and tokens fetched in batches.

use std::future::Future;
use std::task::{Context, Waker};
use std::time::Duration;

use tokenbucket_client::fake::Fake;
use tokenbucket_client::{Error, Limit, Limiter, Options, Part};

use crate::servers::{ask, wait_for, Server};
use crate::{calls, connect, id_of, limit, limiter, LONG, STILL};

fn faked(limit: Limit, options: Options) -> (Fake, Limiter) {
    let fake = Fake::new();
    let limiter = Limiter::with_options(&fake.server(), limit, options);
    (fake, limiter)
}

#[tokio::test]
async fn one_denial_refuses_all_of_a_joint_take() {
    let server = Server::start();
    let limiter = limiter(&server, limit(5, STILL), Options::new().remember_denials(100));
    let parts = |a: u32| [Part::new("a", limiter.limit(), a), Part::new("b", limiter.limit(), 1)];
    assert!(limiter.take_all(&parts(3)).await.unwrap().allowed());
    assert_eq!(limiter.remembered("a", 3), None);
    assert_eq!(limiter.take_all(&parts(3)).await.unwrap().each.len(), 2);
    let before = calls(&server, "tb.");
    let refused = limiter.take_all(&parts(4)).await.unwrap();
    assert!(!refused.allowed() && refused.binding.remembered && refused.each.is_empty());
    assert!(limiter.remembered("a", 3).is_some() && limiter.remembered("b", 1).is_none());
    assert_eq!(calls(&server, "tb."), before);
    assert!(limiter.take_all(&parts(2)).await.unwrap().allowed());
    assert_eq!(limiter.take("b", 3).await.unwrap().remaining, 0);
}

#[tokio::test]
async fn nobody_is_refused_longer_than_the_server_said() {
    let (fake, limiter) = faked(limit(1, "1/s"), Options::new().remember_denials(1));
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    assert_eq!(limiter.take("a", 1).await.unwrap().retry_after_ms, 1000);
    fake.advance(Duration::from_millis(400));
    assert_eq!(limiter.take("a", 1).await.unwrap().retry_after_ms, 600);
    fake.advance(Duration::from_micros(599_999));
    assert!(!limiter.take("a", 1).await.unwrap().allowed);
    fake.advance(Duration::from_micros(1));
    assert!(limiter.take("a", 1).await.unwrap().allowed);
}

#[tokio::test]
async fn a_denial_is_remembered_no_longer_than_wanted() {
    let options = Options::new().remember_denials(1).remember_denials_for(Duration::from_secs(5));
    let (fake, limiter) = faked(limit(1, "1/h"), options);
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    assert!(!limiter.take("a", 1).await.unwrap().allowed);
    Limiter::new(&fake.server(), limit(1, "1/h")).reset("a").await.unwrap();
    fake.advance(Duration::from_micros(4_999_999));
    assert!(limiter.take("a", 1).await.unwrap().remembered);
    fake.advance(Duration::from_micros(1));
    assert!(limiter.take("a", 1).await.unwrap().allowed);
}

#[tokio::test]
async fn an_idle_process_does_not_spend_a_stale_batch() {
    let (fake, limiter) = faked(limit(100, "10/s"), Options::new().batch(100));
    assert!(limiter.take("a", 50).await.unwrap().allowed);
    fake.advance(Duration::from_millis(9_999));
    assert_eq!(limiter.take("a", 50).await.unwrap().remaining, 0, "50 were left");
    fake.advance(Duration::from_millis(10_001));
    assert!(limiter.take("a", 50).await.unwrap().allowed, "of a batch of its own");
    fake.advance(Duration::from_secs(10));
    let all = limiter.take("a", 100).await.unwrap();
    assert_eq!(all.remaining, 0, "the bucket is full, and nothing beside it");
}

#[tokio::test]
async fn a_fetch_whose_caller_is_not_run_holds_up_no_other_call() {
    let server = Server::start();
    let connected = connect(&server).with_timeout(Duration::from_secs(1));
    let limiter = Limiter::with_options(&connected, limit(100, STILL), Options::new().batch(10));
    assert!(limiter.take("b", 1).await.unwrap().allowed);
    let (name, aside) = (0..)
        .find_map(|at: usize| {
            let (limiter, name) = (limiter.clone(), at.to_string());
            let mut call = Box::pin({
                let name = name.clone();
                async move { limiter.take(&name, 1).await }
            });
            // The reply may be there at once.
            let is_ready = call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
            (!is_ready).then_some((name, call))
        })
        .unwrap();
    for _ in 0..3 {
        let taken = tokio::time::timeout(Duration::from_secs(30), limiter.take(&name, 1)).await;
        let decision = taken.expect("a decision").unwrap();
        assert!(decision.allowed && !decision.degraded, "{decision:?}");
    }
    assert!(aside.await.unwrap().allowed);
}

#[tokio::test]
async fn a_batch_goes_on_while_the_server_is_away() {
    let (fake, limiter) = faked(limit(20, "1/h"), Options::new().batch(10));
    limiter.take("a", 1).await.unwrap();
    fake.set_away(true);
    for _ in 0..9 {
        assert!(!limiter.take("a", 1).await.unwrap().degraded);
    }
    assert!(limiter.take("a", 1).await.unwrap().degraded);
}

#[tokio::test]
async fn a_batch_that_cannot_go_back_keeps_no_other() {
    let server = Server::start();
    let limiter = limiter(&server, limit(20, STILL), Options::new().batch(10));
    for name in ["a", "b"] {
        assert!(limiter.take(name, 1).await.unwrap().allowed);
    }
    ask::<()>(&server, &["SET", "tb:a", "no bucket"]);
    assert!(matches!(limiter.close().await, Err(Error::Refused { .. })));
    assert_eq!(limiter.peek("b", 0).await.unwrap().remaining, 19);
}

#[tokio::test]
async fn calls_whose_callers_left_end_a_remembered_denial() {
    let server = Server::start();
    let limiter = limiter(&server, limit(10, STILL), Options::new().remember_denials(1));
    assert_eq!(limiter.take("a", 1).await.unwrap().remaining, 9);
    let waiting = limiter.clone();
    let call = tokio::spawn(async move { waiting.wait("a", 10, LONG).await });
    let soon = Duration::from_secs(10);
    wait_for("a denial", soon, async || {
        limiter.peek("a", 0).await.unwrap().remaining < 0 && !limiter.take("a", 5).await.unwrap().allowed
    })
    .await;
    call.abort();
    wait_for("its tokens", soon, async || limiter.take("a", 5).await.unwrap().allowed).await;

    for command in ["tb.give", "del", "tb.settle"] {
        let parts = |amount| [Part::new(command, limiter.limit(), amount)];
        let is_denied = async || !limiter.take(command, 1).await.unwrap().allowed;
        let held = limiter.hold_as(command, &parts(10u32), Duration::from_secs(3600)).await;
        assert!(held.unwrap().allowed() && is_denied().await && limiter.remembered(command, 1).is_some());
        let call = async {
            match command {
                "tb.give" => drop(limiter.give(command, 10).await),
                "del" => drop(limiter.reset(command).await),
                _ => drop(limiter.settle_as(command, &parts(0u32)).await),
            }
        };
        ask::<()>(&server, &["CLIENT", "PAUSE", "60000", "WRITE"]);
        tokio::select! {
            () = call => panic!("{command}: nobody left"),
            () = wait_for(command, soon, async || id_of(&server, command).is_some()) => {}
        }
        ask::<()>(&server, &["CLIENT", "UNPAUSE"]);
        assert!(!is_denied().await, "{command}");
    }
}

#[tokio::test]
async fn a_reset_and_a_settlement_by_id_end_a_remembered_denial() {
    let (_, limiter) = faked(limit(1, "1/h"), Options::new().remember_denials(10));
    let is_denied = async || !limiter.take("a", 1).await.unwrap().allowed;
    let parts = |amount| [Part::new("a", limiter.limit(), amount)];
    assert!(limiter.hold_as("id", &parts(1), Duration::from_secs(3600)).await.unwrap().allowed());
    assert!(is_denied().await && limiter.remembered("a", 1).is_some());
    assert!(limiter.with_limit(limit(2, "1/h")).remembered("a", 1).is_none(), "of another limit");
    limiter.settle_as("id", &parts(0)).await.unwrap();
    assert!(!is_denied().await && is_denied().await);
    limiter.reset("a").await.unwrap();
    assert!(!is_denied().await);
}
