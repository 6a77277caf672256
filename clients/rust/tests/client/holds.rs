//! What is held while work lasts.

use std::sync::mpsc;
use std::time::Duration;

use redis::Value;
use tokenbucket_client::fake::Fake;
use tokenbucket_client::{Decision, Error, Limit, Limiter, Options, Part};

use crate::servers::{ask, wait_for, Server};
use crate::{calls, connect, limit, limiter, patient, stat, while_silent, LONG, STILL};

const SOON: Duration = Duration::from_secs(10);
const BRIEF: Duration = Duration::from_millis(300);

async fn remaining(limiter: &Limiter, name: &str) -> i64 {
    limiter.peek(name, 0).await.unwrap().remaining
}

async fn is_renewed(server: &Server, command: &str) {
    let before = calls(server, command);
    wait_for("renewals", SOON, async || calls(server, command) >= before + 2).await;
}

#[tokio::test]
async fn a_hold_that_the_server_refuses_to_renew_is_lost() {
    let server = Server::start();
    let limiter = limiter(&server, limit(1, "0"), Options::new());
    let hold = limiter.hold("a", 1, BRIEF).await.unwrap();
    ask::<()>(&server, &["SET", "tb:a", "of another type"]);
    tokio::time::timeout(SOON, hold.lost()).await.expect("it is lost");
    assert!(hold.is_lost() && hold.settle().await.is_err());
}

#[tokio::test]
async fn a_hold_of_nothing_in_one_of_its_limits_is_not_lost() {
    // Its time stands still: no hold expires.
    let server = Server::started(&["--clock"]);
    let limiter = limiter(&server, limit(10, STILL), Options::new());
    let of_both =
        |amount| [1.0, amount].map(|amount| Part::new(format!("{{a}}:{amount}"), limiter.limit(), amount));
    for (amount, command) in
        [(0.0, "tb.renew"), (1e-12, "tb.renew"), (2e-12, "tb.mrenew"), (2.0, "tb.mrenew")]
    {
        let hold = limiter.hold_all(&of_both(amount), BRIEF).await.unwrap();
        is_renewed(&server, command).await;
        assert!(!hold.is_lost() && hold.decision().allowed());
        hold.settle().await.unwrap();
    }
}

#[tokio::test]
async fn work_that_was_let_through_is_charged_when_the_server_is_back() {
    let mut server = Server::away();
    let limiter = Limiter::new(&patient(&server).with_retry_every(LONG), limit(10, STILL));
    let hold = limiter.hold("a", 8, LONG).await.unwrap();
    assert!(hold.decision().binding.degraded);
    server.start_again();
    hold.set_used(3).unwrap();
    hold.settle().await.unwrap();
    assert_eq!(remaining(&limiter, "a").await, 7, "and is no longer thought to be away");
}

#[tokio::test]
async fn a_charge_that_the_server_refuses_keeps_no_other() {
    let server = Server::start();
    let limiter = limiter(&server, limit(10, STILL), Options::new());
    let hold =
        limiter.hold_all(&["a", "b"].map(|name| Part::new(name, limiter.limit(), 1)), LONG).await.unwrap();
    ask::<()>(&server, &["DEL", "tb:a", "tb:b"]);
    ask::<()>(&server, &["ACL", "SETUSER", "default", "-tb.charge"]);
    assert!(matches!(hold.settle().await, Err(Error::Refused { .. })));
    assert_eq!(calls(&server, "tb.charge"), 2);
}

/// Also what this process held meanwhile.
#[tokio::test]
async fn a_hold_that_the_server_took_on_ends_here_as_well() {
    let server = Server::start();
    let limiter = Limiter::new(&connect(&server), limit(1, "0"));
    wait_for("the connection", SOON, async || !limiter.peek("a", 0).await.unwrap().degraded).await;
    let hold = while_silent(&server, limiter.hold("a", 1, 10 * BRIEF)).await.unwrap();
    assert!(hold.decision().binding.degraded);
    wait_for("a renewal", SOON, async || !hold.decision().binding.degraded).await;
    hold.settle().await.unwrap();
    let again = while_silent(&server, limiter.hold("a", 1, LONG)).await.unwrap();
    assert!(again.decision().binding.degraded);
}

#[tokio::test]
async fn a_hold_by_id_that_this_process_has_ends_by_the_settlement_on_the_server() {
    let fake = Fake::new();
    let limiter = Limiter::new(&fake.server(), limit(1, "0"));
    let parts = |amount| [Part::new("a", limiter.limit(), amount)];
    fake.set_away(true);
    assert!(limiter.hold_as("id", &parts(1), LONG).await.unwrap().allowed());
    fake.set_away(false);
    fake.advance(SOON);
    assert!(!limiter.settle_as("id", &parts(0)).await.unwrap().binding.degraded);
    fake.set_away(true);
    let again = limiter.hold_as("other", &parts(1), LONG).await.unwrap();
    assert!(again.binding.degraded && again.allowed());
}

fn alternatives<const EACH: usize>(of: [[(&str, f64); EACH]; 2]) -> [Vec<Part>; 2] {
    let slot = limit(1, "0");
    of.map(|parts| parts.map(|(which, amount)| Part::new(format!("{{x}}:{which}"), &slot, amount)).to_vec())
}

#[tokio::test]
async fn a_hold_of_an_alternative_that_wants_nothing_is_settled() {
    let server = Server::start();
    let limiter = limiter(&server, limit(1, "0"), Options::new());
    let hold = limiter.hold_any(&alternatives([[("a", 0.0)], [("b", 1.0)]]), LONG).await.unwrap();
    assert_eq!(hold.decision().binding.granted, 1);
    assert!(hold.settle().await.unwrap().allowed());
}

#[tokio::test]
async fn a_renewal_keeps_the_number_of_the_alternative() {
    // Its time stands still: no hold expires.
    let server = Server::started(&["--clock"]);
    let limiter = limiter(&server, limit(1, "0"), Options::new());
    let hold = limiter.hold_any(&alternatives([[("a", 2.0)], [("b", 1.0)]]), BRIEF).await.unwrap();
    is_renewed(&server, "tb.renew").await;
    assert_eq!(hold.decision().binding.granted, 2);
    hold.settle().await.unwrap();
}

/// The server grants the second alternative and is too late: the policy grants the first. A limit that fills up the one may be held
/// by the other.
#[tokio::test]
async fn an_alternative_that_the_server_grants_late_ends() {
    let server = Server::start();
    let quick = connect(&server);
    let limiter = Limiter::new(&quick, limit(1, "0"));
    wait_for("the connection", SOON, async || !limiter.peek("a", 0).await.unwrap().degraded).await;
    ask::<Value>(&server, &["TB.HOLD", "tb:{x}:a", "1", "0", "1", "3600000", "other"]);
    let mut either = alternatives([[("common", 0.0), ("a", 1.0)], [("common", 1.0), ("b", 1.0)]]);
    for (at, parts) in either.iter_mut().enumerate() {
        parts[0] = Part::new("{x}:common", &limit(9, STILL), at);
    }
    let hold = while_silent(&server, limiter.hold_any(&either, LONG)).await.unwrap();
    assert_eq!((hold.decision().binding.granted, hold.decision().binding.degraded), (1, true));
    wait_for("the late call", SOON, async || calls(&server, "tb.holdany") >= 1).await;
    for key in ["tb:{x}:b", "tb:{x}:common"] {
        wait_for(key, 2 * SOON, async || ask::<Vec<Value>>(&server, &["TB.HOLDS", key]).is_empty()).await;
    }
    // What fills it up, the work may use too.
    hold.set_used_of(0, 2).unwrap();
    hold.settle().await.unwrap();
    wait_for("the settlement of all", SOON, async || calls(&server, "tb.msettle") >= 4).await;
    assert_eq!(stat(&server, "tokenbucket_errors"), 0);
}

#[tokio::test]
async fn a_denial_of_alternatives_is_reported_of_each_bucket_once() {
    let server = Server::start();
    for shadow in [false, true] {
        let (reports, reported) = mpsc::channel();
        let hook =
            move |name: &str, _: &Limit, _: &Decision, _: Duration| reports.send(name.to_owned()).unwrap();
        let limiter = limiter(&server, limit(10, STILL), Options::new().shadow(shadow).on_decision(hook));
        let part = |which: &str, cost: i32| Part::new(format!("{{x}}:{which}"), limiter.limit(), cost);
        let either = [("a", 11), ("b", 12)].map(|(which, cost)| vec![part("common", 1), part(which, cost)]);
        let decision = limiter.take_any(&either).await.unwrap();
        assert_eq!((decision.allowed(), decision.binding.shadowed), (shadow, shadow), "{decision:?}");
        assert_eq!(decision.each, [], "of which alternative, the reply does not say");
        let mut names: Vec<String> = (0..3).map(|_| reported.recv_timeout(SOON).expect("a report")).collect();
        names.sort();
        assert_eq!(names, ["{x}:a", "{x}:b", "{x}:common"]);
        assert_eq!(reported.try_recv(), Err(mpsc::TryRecvError::Empty));
    }
}
