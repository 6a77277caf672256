//! A runtime that makes many calls carries them itself, on a connection of its own. So do threads, one at a time.

use std::cell::OnceCell;
use std::future::pending;
use std::thread;
use std::time::{Duration, Instant};

use pollster::block_on;
use tokenbucket_client::{sync, Error, Limiter, OnError, Options};
use tokio::runtime::{Builder, Runtime};

use crate::servers::{ask, wait_for, Server};
use crate::turns::forgetful;
use crate::{calls, connect, limit, limiter, logs, patient, until, while_silent, STILL};

const SOON: Duration = Duration::from_secs(30);
const MANY: u32 = 1_000_000;
/// A server that is not scheduled for so long is away.
const TIMEOUT: Duration = Duration::from_secs(1);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// On how many connections the last command was a take.
fn connections(server: &Server) -> usize {
    ask::<String>(server, &["CLIENT", "LIST"]).to_lowercase().matches("cmd=tb.take").count()
}

async fn take(limiter: &Limiter, count: usize) {
    for _ in 0..count {
        assert!(!limiter.take("a", 1).await.unwrap().degraded);
    }
}

/// Calls until the runtime has its own connection.
async fn earn(server: &Server, limiter: &Limiter) {
    wait_for("a connection of the runtime", SOON, async || {
        take(limiter, 10).await;
        connections(server) == 2
    })
    .await;
}

/// A limiter that has called until the runtime had its own connection.
async fn near(server: &Server) -> Limiter {
    let options = Options::new().on_error(OnError::Error);
    let limiter = Limiter::with_options(&connect(server).with_timeout(TIMEOUT), limit(MANY, STILL), options);
    wait_for("the connection", SOON, async || limiter.take("a", 1).await.is_ok()).await;
    earn(server, &limiter).await;
    limiter
}

#[test]
fn other_runtimes_call_while_it_lives_and_when_it_has_ended() {
    let server = Server::start();
    let limiter = limiter(&server, limit(MANY, STILL), Options::new());
    let (busy, other) = (runtime(), runtime());
    busy.block_on(earn(&server, &limiter));
    other.block_on(take(&limiter, 200));
    drop(busy);
    other.block_on(take(&limiter, 200));
    drop(other);
    runtime().block_on(take(&limiter, 200));
    assert!(!block_on(limiter.peek("a", 0)).unwrap().degraded, "outside of a runtime");
}

#[test]
fn a_call_that_blocks_its_runtime_is_decided_by_the_server() {
    let server = Server::start();
    runtime().block_on(async {
        let limiter = near(&server).await;
        for _ in 0..3 {
            // It keeps the thread, and so its runtime, from everything else.
            block_on(limiter.take("a", 1)).expect("no outage");
        }
        ask::<u64>(&server, &["CLIENT", "KILL", "TYPE", "normal"]);
        take(&limiter, 300).await;
        assert_eq!(connections(&server), 1, "it gets no connection again");
    });
}

/// A reply that is late, as in a pause of writes, says nothing about its runtime.
#[test]
fn a_late_reply_costs_no_runtime_its_connection() {
    let server = Server::start();
    let late_by = (TIMEOUT + TIMEOUT / 2).as_millis().to_string();
    let pause = || ask::<()>(&server, &["CLIENT", "PAUSE", &late_by, "WRITE"]);
    let end_connections = || ask::<u64>(&server, &["CLIENT", "KILL", "TYPE", "normal"]);
    runtime().block_on(async {
        let limiter = near(&server).await;
        pause();
        take(&limiter, 1).await;
        end_connections();
        earn(&server, &limiter).await;
    });
    until("they are closed", || connections(&server) == 0);
    let limiter = of_threads(&server);
    pause();
    limiter.take("a", 1).expect("no outage");
    end_connections();
    until("a connection of its own", || limiter.take("a", 1).is_ok() && connections(&server) == 2);
}

#[test]
fn threads_call_from_inside_of_a_runtime() {
    let server = Server::start();
    let connected = patient(&server);
    let limiter = sync::Limiter::new(&connected, limit(MANY, STILL));
    let began = Instant::now();
    runtime().block_on(async {
        for _ in 0..300 {
            assert!(!limiter.take("a", 1).unwrap().degraded);
        }
    });
    assert!(began.elapsed() < SOON, "no call waited for its timeout");
    assert_eq!(connections(&server), 1);
}

#[test]
fn a_runtime_without_io_calls_by_the_background() {
    let server = Server::start();
    let limiter = limiter(&server, limit(MANY, STILL), Options::new());
    Builder::new_current_thread().build().unwrap().block_on(take(&limiter, 300));
    assert_eq!(connections(&server), 1);
}

#[test]
fn it_notices_a_silent_server() {
    let server = Server::start();
    runtime().block_on(async {
        let limiter = near(&server).await;
        let began = Instant::now();
        let away = while_silent(&server, limiter.take("a", 1)).await;
        let took = began.elapsed();
        assert!(matches!(away, Err(Error::ServerAway(_))) && took < 2 * SOON, "{away:?} after {took:?}");
        wait_for("the server", SOON, async || limiter.take("a", 1).await.is_ok()).await;
        earn(&server, &limiter).await;
    });
}

/// Whatever its turns look like: each may be a process that was suspended.
#[test]
fn a_busy_runtime_notices_a_silent_server() {
    let server = Server::start();
    let timeout = Duration::from_millis(20);
    for turn in [Duration::from_millis(250), Duration::from_millis(1200)] {
        let limiter = Limiter::new(&connect(&server).with_timeout(timeout), limit(MANY, STILL));
        runtime().block_on(async {
            wait_for("the connection", SOON, async || !limiter.take("a", 1).await.unwrap().degraded).await;
            server.signal("STOP");
            let began = Instant::now();
            let busy = tokio::spawn(async move {
                while began.elapsed() < SOON / 3 {
                    thread::sleep(turn);
                    tokio::task::yield_now().await;
                }
            });
            let decision = limiter.take("a", 1).await.unwrap();
            let took = began.elapsed();
            server.signal("CONT");
            busy.abort();
            assert!(decision.degraded && took < SOON / 4, "{took:?} in turns of {turn:?}");
        });
    }
}

#[tokio::test]
async fn calls_that_leave_early_find_out_that_their_connection_is_forgotten() {
    // A call by a runtime that has no reply at its timeout asks for a few milliseconds whether the server is there.
    let late = |ms| (true, TIMEOUT + Duration::from_millis(ms));
    // The connection of the thread is made first.
    for (by_runtime, within) in [(false, TIMEOUT / 2), (true, TIMEOUT / 2), late(2), late(3), late(4)] {
        let server = Server::start();
        let (connected, forget) = forgetful(&server).await;
        let limiter = Limiter::new(&connected.with_timeout(TIMEOUT), limit(MANY, STILL));
        let is_decided = async |by_runtime| {
            let call = if by_runtime { limiter.take("a", 1).await } else { limiter.give("a", 1).await };
            !call.unwrap().degraded
        };
        earn(&server, &limiter).await;
        forget.send(usize::from(by_runtime)..1 + usize::from(by_runtime)).unwrap();
        let others = async {
            if within > TIMEOUT {
                // What they hear would keep a call from its timeout.
                pending::<()>().await;
            }
            loop {
                assert!(is_decided(!by_runtime).await, "the server is there");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let in_time = async || tokio::time::timeout(within, is_decided(by_runtime)).await == Ok(true);
        tokio::select! {
            () = others => {}
            () = wait_for("a connection anew", SOON / 4, in_time) => {}
        }
        ask::<u64>(&server, &["CLIENT", "KILL", "TYPE", "normal"]);
        earn(&server, &limiter).await;
    }
}

/// Answers none of the takes that are sent now before it is late by half a timeout, and each once.
fn is_slow(server: &Server, takes: impl FnOnce()) {
    let before = calls(server, "tb.take");
    server.signal("STOP");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(TIMEOUT + TIMEOUT / 2);
            server.signal("CONT");
        });
        takes();
    });
    assert_eq!(calls(server, "tb.take"), before + 1);
}

#[test]
fn a_server_that_is_slow_is_asked_once() {
    let server = Server::start();
    let runtime = runtime();
    let limiter = runtime.block_on(near(&server));
    is_slow(&server, || {
        runtime.block_on(async {
            drop(limiter.take("a", 1).await);
            wait_for("the server", SOON, async || limiter.peek("a", 0).await.is_ok()).await;
        });
    });
}

/// A limiter for threads, which have called until they had a connection of their own.
fn of_threads(server: &Server) -> sync::Limiter {
    let connected = connect(server).with_timeout(TIMEOUT);
    let options = Options::new().on_error(OnError::Error);
    let limiter = sync::Limiter::with_options(&connected, limit(MANY, STILL), options);
    until("a connection of its own", || limiter.take("a", 1).is_ok() && connections(server) == 2);
    limiter
}

#[test]
fn many_threads_have_one_connection_more_while_their_server_lives_and_wait_for_a_slow_one() {
    let server = Server::start();
    let limiter = of_threads(&server);
    thread::scope(|scope| {
        for _ in 0..200 {
            scope.spawn(|| (0..20).for_each(|_| assert!(limiter.take("a", 1).unwrap().allowed)));
        }
    });
    assert_eq!(connections(&server), 2);
    is_slow(&server, || assert!(limiter.take("a", 1).is_ok()));
    ask::<u64>(&server, &["CLIENT", "KILL", "TYPE", "normal"]);
    limiter.take("a", 1).expect("a connection anew");
    drop(limiter);
    until("they are closed", || connections(&server) == 0);
}

#[test]
fn a_thread_notices_a_silent_server_and_its_deadline() {
    let server = Server::start();
    let limiter = of_threads(&server);
    logs::listen();
    logs::RUNS_A_RUNTIME.set(true);
    server.signal("STOP");
    let away = limiter.take("a", 1);
    server.signal("CONT");
    assert!(matches!(away, Err(Error::ServerAway(_))), "{away:?}");
    until("it is asked", || limiter.take("a", 1).is_ok());
    server.signal("STOP");
    let began = Instant::now();
    let hurried = limiter.within(TIMEOUT / 100).take("a", 1);
    let took = began.elapsed();
    server.signal("CONT");
    assert!(matches!(hurried, Err(Error::DeadlinePassed)) && took < TIMEOUT, "{hurried:?} after {took:?}");
}

#[test]
fn a_thread_calls_when_it_ends() {
    struct Late(sync::Limiter);
    impl Drop for Late {
        fn drop(&mut self) {
            self.0.take("late", 1).unwrap();
            self.0.within(SOON).take("late", 1).unwrap();
            drop(self.0.hold("late", 1, SOON).unwrap());
        }
    }
    thread_local! { static LATE: OnceCell<Late> = const { OnceCell::new() } }
    let server = Server::start();
    let limiter = of_threads(&server);
    thread::scope(|scope| {
        scope.spawn(|| {
            // What a thread made first, it drops last: after what the calls made.
            LATE.with(|late| drop(late.set(Late(limiter.clone()))));
            limiter.take("late", 1).unwrap();
        });
    });
    let left = || limiter.peek("late", 0).unwrap().remaining;
    until("the last calls", || left() == i64::from(MANY) - 4);
}
