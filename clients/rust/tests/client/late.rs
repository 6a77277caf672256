//! Holds that come when their callers no longer wait, calls from many runtimes, and hooks that wait or panic.

use std::future::{pending, Future};
use std::sync::{mpsc, Mutex};
use std::thread;
use std::time::Duration;

use redis::Value;
use tokenbucket_client::{sync, Error, Limiter, OnError, Options, Part};
use tokio::runtime::Handle;

use crate::replies::{serve, Reply};
use crate::servers::{ask, wait_for, Server};
use crate::{calls, connect, limit, limiter, logs, patient, while_silent, LONG, STILL};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn work_that_was_let_through_keeps_its_late_grant() {
    let server = Server::start();
    let limiter = Limiter::new(&connect(&server), limit(1, "0"));
    wait_for("the connection", SOON, async || !limiter.peek("a", 0).await.unwrap().degraded).await;
    let hold = while_silent(&server, limiter.hold("a", 1, LONG)).await.unwrap();
    assert!(hold.decision().binding.degraded);
    wait_for("the late call", SOON, async || calls(&server, "tb.hold") >= 1).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let left = || ask::<Vec<i64>>(&server, &["TB.PEEK", "tb:a", "1", "0", "0"])[1];
    assert_eq!(left(), 0, "it is still at work");
    wait_for("the server", SOON, async || !limiter.peek("a", 0).await.unwrap().degraded).await;
    hold.settle().await.unwrap();
    wait_for("the grant to be given back", SOON, async || left() == 1).await;
}

/// A server that fails the first call of that name, which it may execute later, and replies to all others that they are allowed,
/// or denied. Reports what they are, and when a connection was reset.
async fn failing(
    call: &'static str,
    failure: Reply,
    allowed: u8,
) -> (tokenbucket_client::Server, mpsc::Receiver<String>) {
    let (told, asked) = mpsc::channel();
    let mut failure = Some(failure);
    let url = serve(move |_, command| {
        failure.take_if(|_| command == call).unwrap_or_else(|| {
            let _ = told.send(command.to_owned());
            Reply::Text(match command.starts_with("TB.") {
                true => format!("*4\r\n:{allowed}\r\n:0\r\n:600000\r\n:600000\r\n"),
                false => "+OK\r\n".to_owned(),
            })
        })
    });
    (tokenbucket_client::Server::connect(url.await).unwrap(), asked)
}

#[tokio::test]
async fn a_hold_that_is_denied_when_it_is_sent_again_ends() {
    for is_any in [false, true] {
        let name = if is_any { "TB.HOLDANY" } else { "TB.HOLD" };
        let (server, asked) = failing(name, Reply::Cut, 0).await;
        let limiter = Limiter::new(&server.with_timeout(SOON), limit(1, "0"));
        let either = [1, 2].map(|amount| vec![Part::new("a", limiter.limit(), amount)]);
        let held = match is_any {
            true => limiter.hold_any(&either, LONG).await,
            false => limiter.hold("a", 1, LONG).await,
        };
        assert!(matches!(held, Err(Error::Denied(_))));
        wait_for("its end", SOON, async || asked.try_iter().any(|command| command == "TB.SETTLE")).await;
    }
}

/// Its first call may come after the settlement.
#[tokio::test]
async fn a_hold_in_doubt_is_settled_again() {
    for (is_silent, failure, allowed) in [(false, Reply::Cut, 1), (true, Reply::Text(String::new()), 0)] {
        let (server, asked) = failing("TB.HOLD", failure, allowed).await;
        let timeout = if is_silent { Duration::from_millis(100) } else { SOON };
        let server = server.with_timeout(timeout).with_retry_every(Duration::from_millis(1));
        let limiter = Limiter::new(&server, limit(1, "0"));
        let hold = limiter.hold("a", 1, LONG).await.unwrap();
        assert_eq!(hold.decision().binding.degraded, is_silent);
        wait_for("the server", SOON, async || !limiter.peek("a", 0).await.unwrap().degraded).await;
        hold.settle().await.unwrap();
        let mut settled = 0;
        wait_for("another settlement", SOON, async || {
            settled += asked.try_iter().filter(|command| command == "TB.SETTLE").count();
            settled >= 2
        })
        .await;
    }
}

/// Sends a call, and leaves before its reply.
async fn leave<T>(call: impl Future<Output = T>) {
    tokio::select! {
        biased;
        _ = call => {}
        () = tokio::task::yield_now() => {}
    }
}

fn holds(server: &Server, key: &str) -> usize {
    ask::<Vec<Value>>(server, &["TB.HOLDS", key]).len()
}

#[tokio::test]
async fn a_hold_that_is_made_again_under_its_id_stays() {
    let server = Server::start();
    // None: no outage, and the caller leaves.
    let outages = [None, Some(OnError::Local), Some(OnError::Closed), Some(OnError::Error)];
    for (name, outage) in ["a", "b", "c", "d"].into_iter().zip(outages) {
        let options = Options::new().on_error(outage.unwrap_or_default());
        let limiter = Limiter::with_options(&connect(&server), limit(1, "0"), options);
        let parts = [Part::new(name, limiter.limit(), 1)];
        let is_held = async || {
            let held = limiter.hold_as("id", &parts, LONG).await;
            held.is_ok_and(|held| held.allowed() && !held.binding.degraded)
        };
        wait_for("the connection", SOON, async || {
            limiter.peek(name, 0).await.is_ok_and(|peek| !peek.degraded)
        })
        .await;
        if outage.is_some() {
            assert!(!while_silent(&server, is_held()).await);
        } else {
            leave(is_held()).await;
        }
        wait_for("the hold", SOON, is_held).await;
    }
    // Twice as long as it takes until a hold in doubt has been settled twice.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for name in ["a", "b", "c", "d"] {
        assert_eq!(holds(&server, &format!("tb:{name}")), 1, "{name}");
    }
}

#[tokio::test]
async fn a_hold_that_no_call_of_its_id_gets_ends() {
    let server = Server::start();
    let limiter = Limiter::new(&connect(&server), limit(1, "0"));
    let parts = [Part::new("a", limiter.limit(), 1)];
    let hold = || limiter.hold_as("id", &parts, LONG);
    wait_for("the connection", SOON, async || !limiter.peek("a", 0).await.unwrap().degraded).await;
    server.signal("STOP");
    // The first is sent, and the second waits for the settlement that is under way.
    for _ in 0..2 {
        drop(tokio::time::timeout(Duration::from_millis(30), hold()).await);
    }
    server.signal("CONT");
    let is_settled = async || calls(&server, "tb.hold:") >= 1 && holds(&server, "tb:a") == 0;
    wait_for("the settlement", SOON, is_settled).await;

    // Denied, and the first call may still come.
    let (server, asked) = failing("TB.HOLD", Reply::Text(String::new()), 0).await;
    let limiter = Limiter::new(&server.with_retry_every(Duration::from_millis(1)), limit(1, "0"));
    let is_denied = async || !limiter.hold_as("id", &parts, LONG).await.unwrap().binding.degraded;
    assert!(!is_denied().await);
    wait_for("a denial", SOON, is_denied).await;
    asked.try_iter().for_each(drop);
    wait_for("its end", SOON, async || asked.try_iter().any(|command| command == "TB.SETTLE")).await;
}

#[tokio::test]
async fn a_call_that_is_left_prolongs_no_outage() {
    let server = Server::start();
    let connected = connect(&server);
    let quick = Limiter::new(&connected.clone().with_retry_every(Duration::ZERO), limit(1, STILL));
    wait_for("the connection", SOON, async || !quick.peek("a", 0).await.unwrap().degraded).await;
    assert!(while_silent(&server, quick.peek("a", 0)).await.unwrap().degraded);
    // The first connects, and the next finds out whether the server is back.
    let slow = Limiter::new(&connected.with_timeout(SOON).with_retry_every(LONG), limit(1, STILL));
    leave(slow.peek("a", 0)).await;
    wait_for("its turn", SOON, async || {
        let call = async { tokio::time::timeout(Duration::from_millis(50), slow.peek("a", 0)).await };
        while_silent(&server, call).await.is_err()
    })
    .await;
    wait_for("the server", SOON, async || !quick.peek("a", 0).await.unwrap().degraded).await;
}

#[tokio::test]
async fn a_look_whose_connection_is_cut_is_no_outage() {
    let (server, asked) = failing("PING", Reply::Cut, 1).await;
    let limiter = Limiter::new(&server.with_timeout(SOON).with_retry_every(LONG), limit(1, STILL));
    assert!(!limiter.take("a", 1).await.unwrap().degraded);
    leave(limiter.take("a", 1)).await;
    wait_for("another look", SOON, async || asked.try_iter().any(|command| command == "PING")).await;
    assert!(!limiter.take("a", 1).await.unwrap().degraded);
}

#[tokio::test]
async fn a_hold_that_is_settled_for_its_caller_ends_a_remembered_denial() {
    let (server, _asked) = failing("TB.HOLD", Reply::Text(String::new()), 0).await;
    let server = server.with_retry_every(Duration::from_millis(1));
    let limiter = Limiter::with_options(&server, limit(1, STILL), Options::new().remember_denials(1));
    wait_for("a denial", SOON, async || {
        limiter.take("a", 1).await.unwrap();
        limiter.remembered("a", 1).is_some()
    })
    .await;
    drop(tokio::time::timeout(Duration::from_millis(10), limiter.hold("a", 1, LONG)).await);
    wait_for("its settlement", SOON, async || limiter.remembered("a", 1).is_none()).await;
}

/// Or the system would go on to send what its buffers have, for minutes.
#[tokio::test]
async fn a_connection_that_is_given_up_delivers_nothing_more() {
    let (server, asked) = failing("TB.TAKE", Reply::Text(String::new()), 1).await;
    let limiter = Limiter::new(&server, limit(1, STILL));
    assert!(limiter.take("a", 1).await.unwrap().degraded);
    wait_for("a reset", SOON, async || asked.try_iter().any(|line| line == "reset")).await;
}

#[test]
fn a_runtime_that_ends_in_the_middle_of_calls_leaves_nothing_behind() {
    let server = Server::start();
    let limiter = limiter(&server, limit(1000, "0"), Options::new());
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for after in [0, 1, 2, 5, 10, 20, 50] {
        let ends = runtime();
        for _ in 0..50 {
            let (holds, waits) = (limiter.clone(), limiter.with_max_wait(LONG));
            ends.spawn(async move {
                let _hold = holds.hold("a", 1, LONG).await;
                pending::<()>().await;
            });
            ends.spawn(async move { waits.hold("a", 999, LONG).await.map(drop) });
        }
        thread::sleep(Duration::from_millis(after));
        ends.shutdown_background();
        assert!(!runtime().block_on(limiter.peek("b", 0)).unwrap().degraded);
    }
    let settled = async || ask::<Vec<Value>>(&server, &["TB.HOLDS", "tb:a"]).is_empty();
    runtime().block_on(wait_for("the settlements", 3 * SOON, settled));
}

/// Runs work on a thread, which must come to its end.
fn ends(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        work();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(SOON).expect("no call stands still");
}

#[test]
fn a_hook_may_take_and_wait_for_another_thread_that_does() {
    let server = Server::start();
    let connected = patient(&server);
    let others = sync::Limiter::new(&connected, limit(100, STILL));
    let asked = others.clone();
    let options = Options::new().on_decision(move |_, _, _, _| {
        assert!(asked.take("hook", 1).unwrap().allowed);
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {});
        let asked = asked.clone();
        thread::spawn(move || asked.take("hook", 1).unwrap()).join().unwrap();
    });
    let limiter = sync::Limiter::with_options(&connected, limit(100, STILL), options);
    ends(move || (0..20).for_each(|_| drop(limiter.take("a", 1))));
    assert_eq!(others.peek("hook", 0).unwrap().remaining, 60);
}

#[tokio::test]
async fn a_hook_that_panics_changes_nothing() {
    // Its time stands still: no hold expires.
    let server = Server::started(&["--clock"]);
    let options = Options::new().on_decision(|_, _, _, _| panic!("of a hook"));
    let limiter = limiter(&server, limit(2, "0"), options);
    let hold = limiter.hold("a", 1, Duration::from_millis(300)).await.unwrap();
    wait_for("renewals", SOON, async || calls(&server, "tb.renew") >= 2).await;
    assert_eq!(limiter.peek("a", 0).await.unwrap().remaining, 1);
    assert!(hold.settle().await.unwrap().allowed());
    assert_eq!(limiter.peek("a", 0).await.unwrap().remaining, 2);
}

/// Renewals have no thread of a caller to run hooks on.
#[test]
fn a_hook_of_a_renewal_may_take() {
    // Its time stands still: no hold expires.
    let server = Server::started(&["--clock"]);
    let connected = patient(&server);
    let asked = sync::Limiter::new(&connected, limit(100, STILL));
    let (decided, decisions) = mpsc::channel();
    let decided = Mutex::new(decided);
    let options = Options::new().on_decision(move |_, _, _, _| {
        let _ = decided.lock().unwrap().send(asked.take("hook", 1).unwrap().degraded);
    });
    let limiter = sync::Limiter::with_options(&connected, limit(100, "0"), options);
    let hold = limiter.hold("a", 1, Duration::from_millis(300)).unwrap();
    for _ in 0..4 {
        assert!(!decisions.recv_timeout(SOON).expect("a renewal"));
    }
    hold.settle().unwrap();
}

/// The thread that carries the connections runs the task, and must not wait.
#[test]
fn a_task_of_a_hook_of_a_renewal_may_take() {
    // Its time stands still: no hold expires.
    let server = Server::started(&["--clock"]);
    let connected = patient(&server);
    let asked = sync::Limiter::new(&connected, limit(1, STILL));
    let (decided, decisions) = mpsc::channel();
    let options = Options::new().on_decision(move |_, _, _, _| {
        let (asked, decided) = (asked.clone(), decided.clone());
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let _ = decided.send((asked.take("hook", 1), asked.wait("hook", 1, LONG)));
            });
        }
    });
    let limiter = sync::Limiter::with_options(&connected, limit(1, "0"), options);
    ends(move || {
        let hold = limiter.hold("a", 1, Duration::from_millis(300)).unwrap();
        let (taken, waited) = decisions.recv().expect("a renewal");
        assert!(taken.unwrap().degraded, "the policy decides");
        assert!(matches!(waited, Err(Error::DeadlinePassed)), "{waited:?}");
        assert!(!hold.settle().unwrap().binding.degraded);
    });
}

/// Its last owner may be the settlement of a hold, in the background.
#[test]
fn what_a_hook_owns_may_take_when_it_is_dropped() {
    struct Late(sync::Limiter, mpsc::Sender<bool>);
    impl Drop for Late {
        fn drop(&mut self) {
            let _ = self.1.send(self.0.take("late", 1).unwrap().degraded);
        }
    }
    let server = Server::start();
    let connected = patient(&server);
    let (dropped, drops) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for _ in 0..20 {
        let late = Late(sync::Limiter::new(&connected, limit(100, STILL)), dropped.clone());
        let options = Options::new().on_decision(move |_, _, _, _| _ = &late);
        let limiter = Limiter::with_options(&connected, limit(100, "0"), options);
        let hold = runtime.block_on(limiter.hold("a", 1, LONG)).unwrap();
        drop(limiter);
        drop(hold);
        assert!(!drops.recv_timeout(SOON).expect("no call stands still"));
    }
}

/// The thread that carries all connections finds out that this one is refused.
#[test]
fn a_logger_may_take() {
    let (server, away) = (Server::start(), Server::away());
    let asked = sync::Limiter::new(&patient(&server), limit(10, STILL));
    logs::listen();
    logs::ask(&away, asked.clone());
    ends(move || {
        let limiter = sync::Limiter::new(&patient(&away), limit(1, STILL));
        assert!(limiter.take("a", 1).unwrap().degraded);
        assert_eq!(asked.peek("log", 0).unwrap().remaining, 9, "it has logged: its process may end");
    });
}
