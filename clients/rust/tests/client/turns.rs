//! Calls that wait in the server for their turn.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokenbucket_client::fake::Fake;
use tokenbucket_client::{sync, Decision, Error, Fallback, JointLimiter, Limiter, OnError, Options, Part};
use tokio::task::JoinHandle;

use crate::servers::{ask, wait_for, Cluster, Server};
use crate::{limit, limiter_with, logs, patient};

const LONG: Duration = Duration::from_secs(3600);
/// Nothing flows in while a test runs.
const STILL: &str = "1/h";
/// A test that waits for longer has failed.
const SOON: Duration = Duration::from_secs(30);

/// One token, and no decision without the server.
fn limiter_of(server: &Server, rate: &str) -> Limiter {
    limiter_with(server, limit(1, rate), Options::new().on_error(OnError::Closed), patient())
}

fn stat(server: &Server, name: &str) -> u64 {
    let info: String = ask(server, &["INFO", "everything"]);
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
    value.expect("a number")
}

/// Until so many calls wait in the server.
async fn waiting(server: &Server, calls: u64) {
    wait_for("calls that wait", SOON, async || stat(server, "tokenbucket_waiting") == calls).await;
}

fn empty(server: &Server, name: &str) {
    redis::cmd("TB.TAKE")
        .arg(format!("tb:{name}"))
        .arg(&["1", STILL, "1"])
        .exec(&mut server.connection())
        .unwrap();
}

fn give(server: &Server, name: &str) {
    redis::cmd("TB.GIVE")
        .arg(format!("tb:{name}"))
        .arg(&["1", STILL, "1"])
        .exec(&mut server.connection())
        .unwrap();
}

/// A take that waits in the server by now.
async fn take(server: &Server, limiter: &Limiter) -> JoinHandle<Result<Decision, Error>> {
    let limiter = limiter.with_max_wait(LONG);
    let call = tokio::spawn(async move { limiter.take("a", 1).await });
    waiting(server, 1).await;
    call
}

async fn full(limiter: &Limiter) {
    wait_for("the token", SOON, async || limiter.peek("a", 0).await.unwrap().remaining == 1).await;
}

/// The order in which these callers are served, who begin to wait one after the other.
async fn order_of(server: &Server, callers: &[Limiter]) -> Vec<usize> {
    let first = callers[0].hold("a", 1, LONG).await.unwrap();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut calls = Vec::new();
    for (caller, limiter) in callers.iter().enumerate() {
        let (limiter, served) = (limiter.with_max_wait(LONG), served.clone());
        calls.push(tokio::spawn(async move {
            let hold = limiter.hold("a", 1, LONG).await.unwrap();
            assert!(!hold.decision().binding.degraded);
            served.lock().unwrap().push(caller);
            hold.settle().await.unwrap();
        }));
        waiting(server, caller as u64 + 1).await;
    }
    first.settle().await.unwrap();
    for call in calls {
        call.await.unwrap();
    }
    Arc::into_inner(served).unwrap().into_inner().unwrap()
}

#[tokio::test]
async fn calls_are_served_in_the_order_in_which_they_came() {
    let server = Server::start();
    let limiter = limiter_of(&server, "0");
    let served = order_of(&server, &vec![limiter; 50]).await;
    assert_eq!(served, (0..50).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_tenant_with_many_waiting_calls_does_not_hold_up_another() {
    let server = Server::start();
    let limiter = limiter_of(&server, "0");
    let [loud, quiet] = ["loud", "quiet"].map(|tenant| limiter.with_share(tenant, 1).unwrap());
    let mut callers = vec![loud; 20];
    callers.push(quiet);
    assert_eq!(order_of(&server, &callers).await[..3], [0, 20, 1]);
}

#[tokio::test]
async fn a_tenant_of_twice_the_weight_is_served_twice_as_often() {
    let server = Server::start();
    let limiter = limiter_of(&server, "0");
    let (heavy, light) = (limiter.with_share("heavy", 1).unwrap(), limiter.with_share("light", 0.5).unwrap());
    let callers = [&light, &light, &light, &heavy, &heavy, &heavy, &heavy].map(Clone::clone);
    assert_eq!(order_of(&server, &callers).await, [0, 3, 4, 1, 5, 6, 2]);
}

#[tokio::test]
async fn takes_have_shares_too() {
    let server = Server::start();
    let limiter = limiter_of(&server, STILL).with_share("acme", 0.125).unwrap();
    empty(&server, "a");
    take(&server, &limiter).await.abort();
    waiting(&server, 0).await;
    let call = take(&server, &limiter).await;
    give(&server, "a");
    assert!(call.await.unwrap().unwrap().allowed);
    assert!(limiter.take("b", 1).await.unwrap().allowed, "without a wait");
}

#[tokio::test]
async fn shares_that_cannot_be_are_errors() {
    let server = Server::start();
    let limiter = limiter_of(&server, "0");
    let long = "a".repeat(128);
    for (tenant, weight) in [("a", 0.001), (&long, 999.999), ("a", 1000.0)] {
        let one = limiter.with_share(tenant, weight).unwrap().with_max_wait(LONG);
        one.hold(&format!("{weight}"), 1, LONG).await.unwrap().settle().await.unwrap();
    }
    let longer = "a".repeat(129);
    for (tenant, weight) in
        [("", 1.0), (&longer, 1.0), ("a", 0.0), ("a", 0.0005), ("a", 1000.001), ("a", f64::NAN)]
    {
        let shared = limiter.with_share(tenant, weight);
        assert!(matches!(shared, Err(Error::BadArgument(_))), "{tenant} {weight}");
    }
    let shared = limiter.with_share("a", 1).unwrap().with_max_wait(LONG);
    let parts = ["a", "b"].map(|name| Part::new(name, limiter.limit(), 1));
    let several = shared.hold_all(&parts, LONG).await.map(drop);
    assert!(several.unwrap_err().to_string().contains("several buckets"));
    assert!(shared.take_all(&parts).await.is_err());
}

#[tokio::test]
async fn a_wait_that_is_over_is_a_denial_and_no_silence() {
    logs::listen();
    let server = Server::start();
    let options = patient().timeout(Duration::from_millis(100));
    let limiter = limiter_with(&server, limit(1, STILL), Options::new(), options);
    empty(&server, "a");
    let (began, max_wait) = (Instant::now(), Duration::from_millis(1500));
    let denied = limiter.with_max_wait(max_wait).take("a", 1).await.unwrap();
    assert!(!denied.allowed && !denied.degraded && denied.retry_after_ms > 3_000_000, "{denied:?}");
    assert!(began.elapsed() >= max_wait, "{:?}", began.elapsed());
    assert_eq!(logs::lines(&server), [""; 0]);
}

#[tokio::test]
async fn what_needs_no_wait_or_cannot_be_helped_by_one_is_decided_at_once() {
    let server = Server::start();
    let limiter = limiter_of(&server, STILL).with_max_wait(LONG);
    for name in ["a", "b", "c"] {
        assert!(limiter.take(name, 1).await.unwrap().allowed);
    }
    let never = limiter.take("a", 2).await.unwrap();
    assert!(!never.allowed && never.retry_after_ms == -1, "{never:?}");
    let too_long = limiter.with_max_wait(1000 * LONG).take("a", 1).await;
    assert!(matches!(too_long, Err(Error::Refused { .. })), "{too_long:?}");
    let connections = stat(&server, "total_connections_received");
    assert!(limiter.take("d", 1).await.unwrap().allowed);
    assert_eq!(stat(&server, "total_connections_received"), connections + 1, "only that of this question");
}

#[tokio::test]
async fn joint_calls_wait_too() {
    let server = Server::start();
    let limits = [("jobs", limit(1, "0")), ("tokens", limit(1, STILL))];
    let url = tokenbucket_client::Server::connect_with(server.url(), patient()).unwrap();
    let limiter = JointLimiter::new(&url, limits);
    let first = limiter.hold("a", &[("jobs", 1)], LONG).await.unwrap();
    let patient = limiter.with_max_wait(LONG);
    let held = tokio::spawn(async move {
        let hold = patient.hold("a", &[("jobs", 1), ("tokens", 1)], LONG).await.unwrap();
        hold.settle().await.unwrap();
    });
    waiting(&server, 1).await;
    first.settle().await.unwrap();
    held.await.unwrap();

    empty(&server, "{a}:tokens");
    let patient = limiter.with_max_wait(LONG);
    let taken = tokio::spawn(async move { patient.take_all("a", &[("tokens", 1)]).await.unwrap() });
    waiting(&server, 1).await;
    give(&server, "{a}:tokens");
    assert!(taken.await.unwrap().allowed());
}

#[tokio::test]
async fn other_calls_go_on_meanwhile() {
    let server = Server::start();
    let limiter = limiter_of(&server, STILL);
    empty(&server, "a");
    let call = take(&server, &limiter).await;
    for _ in 0..100 {
        assert!(!limiter.take("a", 1).await.unwrap().degraded);
    }
    limiter.give("a", 1).await.unwrap();
    assert!(call.await.unwrap().unwrap().allowed);
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_the_queue_and_takes_nothing() {
    let server = Server::start();
    let limiter = limiter_of(&server, STILL);
    for _ in 0..30 {
        empty(&server, "a");
        let call = take(&server, &limiter).await;
        call.abort();
        waiting(&server, 0).await;
        give(&server, "a");
        full(&limiter).await;
    }
    let clients: String = ask(&server, &["CLIENT", "LIST"]);
    assert!(clients.lines().count() < 10, "{clients}");
}

#[tokio::test]
async fn a_grant_that_comes_when_its_caller_leaves_is_given_back() {
    let server = Server::start();
    let (takes, holds) = (limiter_of(&server, STILL), limiter_of(&server, "0"));
    for _ in 0..30 {
        empty(&server, "a");
        let call = take(&server, &takes).await;
        give(&server, "a");
        call.abort();
        if let Ok(taken) = call.await {
            assert!(taken.unwrap().allowed);
            give(&server, "a");
        }
        full(&takes).await;
    }
    ask::<u64>(&server, &["DEL", "tb:a"]);
    for _ in 0..30 {
        let first = holds.hold("a", 1, LONG).await.unwrap();
        let waits = holds.with_max_wait(LONG);
        let call = tokio::spawn(async move { waits.hold("a", 1, LONG).await.map(drop) });
        waiting(&server, 1).await;
        let settling = tokio::spawn(async move { first.settle().await });
        call.abort();
        settling.await.unwrap().unwrap();
        full(&holds).await;
    }
}

#[tokio::test]
async fn a_user_who_may_not_end_waits_of_clients_closes_the_connection() {
    let server = Server::start();
    ask::<String>(&server, &["ACL", "SETUSER", "bob", "on", "nopass", "~*", "+@all", "-client"]);
    let url = server.url().replace("redis://", "redis://bob:x@");
    let connected = tokenbucket_client::Server::connect_with(url, patient()).unwrap();
    let limiter = Limiter::new(&connected, limit(1, STILL));
    empty(&server, "a");
    take(&server, &limiter).await.abort();
    waiting(&server, 0).await;
}

#[tokio::test]
async fn a_wait_that_was_cut_off_goes_on() {
    let server = Server::start();
    let limiter = limiter_of(&server, STILL);
    empty(&server, "a");
    for cut in [["UNBLOCK", "ERROR"], ["KILL", "ID"]] {
        let call = take(&server, &limiter).await;
        let clients: String = ask(&server, &["CLIENT", "LIST"]);
        let blocked = clients.lines().find(|line| line.to_lowercase().contains("cmd=tb.btake"));
        let id = blocked
            .and_then(|line| line.strip_prefix("id=")?.split(' ').next())
            .expect("a client that waits");
        let gave_up = stat(&server, "tokenbucket_gave_up_waiting");
        match cut {
            ["KILL", _] => ask::<u64>(&server, &["CLIENT", "KILL", "ID", id]),
            _ => ask::<u64>(&server, &["CLIENT", "UNBLOCK", id, "ERROR"]),
        };
        wait_for("the cut", SOON, async || stat(&server, "tokenbucket_gave_up_waiting") > gave_up).await;
        waiting(&server, 1).await;
        give(&server, "a");
        let granted = call.await.unwrap().unwrap();
        assert!(granted.allowed && !granted.degraded, "{granted:?}");
    }
}

#[tokio::test]
async fn the_policy_decides_when_the_server_goes_while_calls_wait() {
    let mut server = Server::start();
    let limiter = limiter_of(&server, STILL);
    empty(&server, "a");
    let call = take(&server, &limiter).await;
    ask::<String>(&server, &["REPLICAOF", "127.0.0.1", "1"]);
    assert!(call.await.unwrap().unwrap().degraded, "it is no master any more");
    ask::<String>(&server, &["REPLICAOF", "NO", "ONE"]);

    let call = take(&server, &limiter).await;
    server.kill();
    assert!(call.await.unwrap().unwrap().degraded, "it was killed");
    let waits = limiter.with_max_wait(LONG);
    assert!(waits.take("a", 1).await.unwrap().degraded, "it is away");
    server.start_again();
    wait_for("limiting", SOON, async || !waits.take("a", 1).await.unwrap().degraded).await;
}

#[tokio::test]
async fn a_server_that_falls_silent_is_noticed_by_calls_that_wait() {
    let server = Server::start();
    let options = Options::new().on_error(OnError::Closed);
    let limiter = limiter_with(&server, limit(1, STILL), options, patient().timeout(Duration::from_secs(1)));
    empty(&server, "a");
    let call = take(&server, &limiter).await;
    server.signal("STOP");
    assert!(call.await.unwrap().unwrap().degraded);
    server.signal("CONT");
}

#[tokio::test]
async fn without_the_module_the_client_asks_again() {
    let server = Server::start_without_module();
    let options = patient().fallback(Fallback::Script);
    let limiter = limiter_with(&server, limit(1, "10/s"), Options::new(), options).with_max_wait(LONG);
    let began = Instant::now();
    for _ in 0..4 {
        assert!(limiter.take("a", 1).await.unwrap().allowed);
        assert!(limiter.take_all(&[Part::new("b", limiter.limit(), 1)]).await.unwrap().allowed());
    }
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    let hold = limiter.hold("a", 1, LONG).await;
    assert!(matches!(hold, Err(Error::ModuleMissing(_))));
    let slow = limiter.with_limit(limit(1, STILL)).with_max_wait(Duration::from_millis(50));
    assert!(slow.take("c", 1).await.unwrap().allowed);
    let denied = slow.take("c", 1).await.unwrap();
    assert!(!denied.allowed && denied.retry_after_ms > 3_000_000, "{denied:?}");
}

#[tokio::test]
async fn a_fake_waits_by_advancing_its_time() {
    let fake = Fake::new();
    let limiter = Limiter::new(&fake.server(), limit(1, "1/m")).with_max_wait(Duration::from_secs(61));
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    let hurried = limiter.with_max_wait(Duration::from_secs(1));
    assert_eq!(hurried.take("a", 1).await.unwrap().retry_after_ms, 59_000);
}

#[tokio::test]
async fn threads_wait() {
    let server = Server::start();
    let connected = sync::Server::connect_with(server.url(), patient()).unwrap();
    let limiter = sync::Limiter::new(&connected, limit(1, STILL));
    empty(&server, "a");
    let waits = limiter.with_max_wait(LONG);
    let call = std::thread::spawn(move || waits.take("a", 1).unwrap());
    waiting(&server, 1).await;
    limiter.give("a", 1).unwrap();
    assert!(call.join().unwrap().allowed);

    let hurried = limiter.with_max_wait(LONG).within(Duration::from_millis(20)).take("a", 1);
    assert!(matches!(hurried, Err(Error::DeadlinePassed)), "{hurried:?}");
    waiting(&server, 0).await;
}

#[tokio::test]
async fn a_slot_that_moved_is_followed_with_the_time_that_is_left() {
    let cluster = Cluster::start();
    let urls = cluster.urls();
    let server = tokenbucket_client::Server::cluster_with(urls.split(','), patient()).unwrap();
    let limiter = Limiter::with_options(&server, limit(1, STILL), Options::new().on_error(OnError::Closed));
    assert!(limiter.peek("a", 0).await.unwrap().allowed, "it learns where the slots are");
    let to = (cluster.node_of("tb:a") + 1) % 3;
    cluster.move_slot_of("tb:a", to);
    empty(&cluster.nodes[to], "a");
    let call = take(&cluster.nodes[to], &limiter).await;
    give(&cluster.nodes[to], "a");
    let granted = call.await.unwrap().unwrap();
    assert!(granted.allowed && !granted.degraded, "{granted:?}");
}
