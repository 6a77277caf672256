//! Calls that wait in the server for their turn.

use std::future::pending;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokenbucket_client::{sync, Decision, Error, Limiter, OnError, Options, Part};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::{yield_now, JoinHandle, JoinSet};

use crate::replies::{serve, Reply};
use crate::servers::{ask, wait_for, Server};
use crate::{connect, id_of, limit, limiter, logs, patient, stat, until, while_silent, LONG};

/// Nothing flows in while a test runs.
const STILL: &str = "1/h";
/// A test that waits for longer has failed.
const SOON: Duration = Duration::from_secs(30);

/// One token, and no decision without the server.
fn limiter_of(server: &Server, rate: &str) -> Limiter {
    limiter(server, limit(1, rate), Options::new().on_error(OnError::Closed))
}

/// Until so many calls wait in the server.
async fn waiting(server: &Server, calls: u64) {
    wait_for("calls that wait", SOON, async || stat(server, "tokenbucket_waiting") == calls).await;
}

/// Takes the token of "a".
fn empty(server: &Server) {
    ask::<()>(server, &["TB.TAKE", "tb:a", "1", STILL, "1"]);
}

fn give(server: &Server) {
    ask::<()>(server, &["TB.GIVE", "tb:a", "1", STILL, "1"]);
}

/// A take of "a" that waits in the server by now.
pub async fn take(server: &Server, limiter: &Limiter) -> JoinHandle<Result<Decision, Error>> {
    let limiter = limiter.with_max_wait(LONG);
    let call = tokio::spawn(async move { limiter.take("a", 1).await });
    waiting(server, 1).await;
    call
}

#[tokio::test]
async fn shares_are_for_calls_of_one_bucket() {
    let server = Server::start();
    let limiter = limiter_of(&server, "0");
    let shared = limiter.with_share("a", 1).unwrap();
    shared.hold("a", 1, LONG).await.unwrap().settle().await.unwrap(); // without a wait, it has no effect
    let shared = shared.with_max_wait(LONG);
    let parts = ["a", "b"].map(|name| Part::new(name, limiter.limit(), 1));
    let several = shared.hold_all(&parts, LONG).await.map(drop);
    assert!(several.unwrap_err().to_string().contains("several buckets"));
    assert!(shared.take_all(&parts).await.is_err());
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
    let connections = stat(&server, "total_connections_received");
    assert!(limiter.take("d", 1).await.unwrap().allowed);
    assert_eq!(stat(&server, "total_connections_received"), connections + 1, "only that of this question");
}

#[tokio::test]
async fn a_wait_that_was_cut_off_goes_on() {
    let server = Server::start();
    let limiter = limiter_of(&server, STILL);
    empty(&server);
    for kills in 0..4 {
        let call = take(&server, &limiter).await;
        for _ in 0..kills.max(1) {
            let id = &id_of(&server, "tb.btake").expect("a client that waits");
            let gave_up = stat(&server, "tokenbucket_gave_up_waiting");
            let cut =
                if kills > 0 { ["CLIENT", "KILL", "ID", id] } else { ["CLIENT", "UNBLOCK", id, "ERROR"] };
            ask::<u64>(&server, &cut);
            wait_for("the cut", SOON, async || stat(&server, "tokenbucket_gave_up_waiting") > gave_up).await;
            waiting(&server, 1).await;
        }
        give(&server);
        let granted = call.await.unwrap().unwrap();
        assert!(granted.allowed && !granted.degraded, "{granted:?}");
    }
}

/// A box between here and a server, and what makes it forget connections that there are: those with these numbers.
pub async fn forgetful(server: &Server) -> (tokenbucket_client::Server, watch::Sender<Range<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let (to, forget) = (server.port, watch::Sender::new(0..0));
    let forgets = forget.clone();
    tokio::spawn(async move {
        for number in 0.. {
            let Ok((mut client, _)) = listener.accept().await else { return };
            let mut forgotten = forgets.subscribe();
            tokio::spawn(async move {
                let Ok(mut server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
                let is_forgotten = async {
                    while forgotten.changed().await.is_ok() && !forgotten.borrow().contains(&number) {}
                };
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut server) => {}
                    () = is_forgotten => pending().await,
                }
            });
        }
    });
    (tokenbucket_client::Server::connect(url).unwrap(), forget)
}

/// Tries it three times: on a busy machine a server may be silent for its timeout, and the policy decides on the wait.
async fn once_of_three(mut holds: impl AsyncFnMut() -> bool) {
    assert!(holds().await || holds().await || holds().await);
}

#[tokio::test]
async fn a_wait_that_is_forgotten_on_the_way_goes_on() {
    once_of_three(async || {
        let server = Server::start();
        let (connected, forget) = forgetful(&server).await;
        let limiter = Limiter::new(&connected, limit(1, STILL));
        empty(&server);
        let call = take(&server, &limiter).await;
        forget.send(0..usize::MAX).unwrap();
        wait_for("a connection anew", SOON, async || !limiter.peek("b", 0).await.unwrap().degraded).await;
        if tokio::time::timeout(Duration::from_secs(5), waiting(&server, 2)).await.is_err() {
            return false;
        }
        // The first is granted to the connection that is forgotten.
        for _ in 0..2 {
            give(&server);
        }
        let granted = call.await.unwrap().unwrap();
        granted.allowed && !granted.degraded
    })
    .await;
}

/// Its waits that connect at that moment hold up none of others.
#[test]
fn a_runtime_that_stops_keeps_no_other_from_waiting() {
    let server = Server::start();
    let limiter = limiter_of(&server, STILL).with_max_wait(LONG);
    empty(&server);
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let stopped = runtime();
    for _ in 0..200 {
        let limiter = limiter.clone();
        stopped.spawn(async move { limiter.take("a", 1).await });
    }
    let mut waits = 0;
    until("one waits, and others connect", || {
        stopped.block_on(yield_now());
        waits = stat(&server, "tokenbucket_waiting");
        waits > 0
    });
    runtime().block_on(async {
        let call = tokio::spawn(async move { limiter.take("a", 1).await });
        wait_for("the wait of another", SOON, async || stat(&server, "tokenbucket_waiting") > waits).await;
        call.abort();
    });
}

#[tokio::test]
async fn a_wait_leaves_an_idle_connection_that_is_forgotten() {
    let server = Server::start();
    let (connected, forget) = forgetful(&server).await;
    let limiter = Limiter::new(&connected.with_timeout(Duration::from_secs(1)), limit(1, STILL));
    empty(&server);
    for _ in 0..2 {
        let call = take(&server, &limiter).await;
        give(&server);
        assert!(call.await.unwrap().unwrap().allowed);
        // That of the wait, which the next one finds.
        forget.send(1..2).unwrap();
    }
}

#[tokio::test]
async fn a_wait_keeps_its_turn_when_another_connection_fails() {
    for is_slow in [false, true] {
        once_of_three(async || {
            let server = Server::start();
            // Less than the time between two looks.
            let timeout = Duration::from_millis(300);
            let limiter = Limiter::new(&connect(&server).with_timeout(timeout), limit(1, STILL));
            let is_there = async || !limiter.peek("b", 0).await.unwrap().degraded;
            wait_for("the connection", SOON, is_there).await;
            empty(&server);
            let call = take(&server, &limiter).await;
            let waits = id_of(&server, "tb.btake");
            wait_for("the connection", SOON, is_there).await;
            if is_slow {
                assert!(!while_silent(&server, is_there()).await);
            } else {
                ask::<u64>(&server, &["CLIENT", "KILL", "ID", &id_of(&server, "tb.peek").unwrap()]);
            }
            // More than two looks.
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(1500) {
                is_there().await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let keeps = id_of(&server, "tb.btake") == waits;
            give(&server);
            call.await.unwrap().unwrap().allowed && keeps
        })
        .await;
    }
}

#[tokio::test]
async fn a_wait_without_a_connection_says_nothing_about_the_server() {
    logs::listen();
    let server = Server::start();
    let limiter = limiter_of(&server, STILL);
    assert!(limiter.take("a", 1).await.unwrap().allowed);
    let mut other = server.connection();
    let mut set =
        |clients: u32| redis::cmd("CONFIG").arg(&["SET", "maxclients"]).arg(clients).exec(&mut other);
    set(2).unwrap();
    let denied = limiter.with_max_wait(Duration::from_millis(300)).take("a", 1).await.unwrap();
    assert!(!denied.allowed && !denied.degraded, "{denied:?}");
    assert!(!limiter.take("b", 1).await.unwrap().degraded);
    assert_eq!(logs::lines(&server), Vec::<String>::new());
    set(100).unwrap();
    let denied = limiter.with_max_wait(Duration::from_millis(1)).take("a", 1).await.unwrap();
    assert!(!denied.allowed && !denied.degraded, "{denied:?}");
}

/// What does not answer of a server that denies all.
#[derive(Clone, Copy, PartialEq)]
enum Hung {
    /// Any but the first.
    Connections,
    /// Any but the first, which are closed.
    Closed,
    Waits,
}

#[tokio::test]
async fn a_wait_that_nothing_answers_ends_in_the_denial_of_that_moment() {
    for (hung, calls) in [(Hung::Waits, 1), (Hung::Connections, 200), (Hung::Closed, 1)] {
        // Takes, which may be allowed in a millisecond.
        let takes = Arc::new(AtomicU32::new(0));
        let counted = takes.clone();
        let url = serve(move |connection, command| {
            counted.fetch_add(u32::from(command == "TB.TAKE"), Ordering::Relaxed);
            match (hung, command) {
                (Hung::Connections, _) if connection > 0 => Reply::Never,
                (Hung::Closed, _) if connection > 0 => Reply::Cut,
                (Hung::Waits, "TB.BTAKE") => Reply::Never,
                (_, "TB.BTAKE" | "TB.TAKE") => Reply::Text("*4\r\n:0\r\n:0\r\n:1\r\n:1\r\n".to_owned()),
                _ => Reply::Text("+OK\r\n".to_owned()),
            }
        })
        .await;
        let server = tokenbucket_client::Server::connect(url).unwrap().with_timeout(Duration::from_secs(1));
        let limiter = Limiter::new(&server, limit(1, STILL)).with_max_wait(Duration::from_millis(300));
        let began = Instant::now();
        let mut asking = JoinSet::new();
        for _ in 0..calls {
            let limiter = limiter.clone();
            asking.spawn(async move { limiter.take("a", 1).await.unwrap() });
        }
        for denied in asking.join_all().await {
            assert!(!denied.allowed && !denied.degraded, "{denied:?}");
        }
        // In a busy process a call may wait for its reply for ten timeouts.
        let took = began.elapsed();
        assert!(hung == Hung::Waits || took < Duration::from_secs(4), "{took:?}");
        let takes = takes.load(Ordering::Relaxed);
        assert!(takes <= 2 * calls, "{takes} takes of {calls} calls within less than the pulse");
    }
}

#[tokio::test]
async fn a_thread_leaves_the_queue_at_its_deadline() {
    let server = Server::start();
    let connected = patient(&server);
    let limiter = sync::Limiter::new(&connected, limit(1, STILL));
    empty(&server);
    let hurried = limiter.with_max_wait(LONG).within(Duration::from_millis(20)).take("a", 1);
    assert!(matches!(hurried, Err(Error::DeadlinePassed)), "{hurried:?}");
    waiting(&server, 0).await;
}
