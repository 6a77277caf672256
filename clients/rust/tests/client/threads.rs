//! The same from threads.

use std::fs::File;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tokenbucket_client::sync::{Limiter, Server};
use tokenbucket_client::{Error, Part};

use crate::{limit, patient, servers, STILL};

#[test]
fn every_operation() {
    let server = servers::Server::start();
    let limiter = Limiter::new(&Server::connect_with(server.url(), patient()).unwrap(), limit(10, STILL));
    assert_eq!(limiter.take("a", 4).unwrap().remaining, 6);
    assert_eq!(limiter.peek("a", 1).unwrap().remaining, 5);
    assert_eq!(limiter.take_up_to("a", 2).unwrap().granted, 2);
    assert_eq!(limiter.charge("a", 5).unwrap().remaining, -1);
    assert_eq!(limiter.give("a", 6).unwrap().remaining, 5);
    assert!(limiter.take_all(&[Part::new("b", &limit(1, STILL), 1)]).unwrap().allowed());
    assert!(!limiter.reserve("a", 6, Duration::from_secs(1)).unwrap().allowed);
    let fast = limiter.with_limit(limit(1, "10/s"));
    let began = Instant::now();
    for _ in 0..3 {
        assert!(fast.wait("c", 1, Duration::from_secs(5)).unwrap().allowed);
    }
    assert!(began.elapsed() >= Duration::from_millis(100));
    let hold = limiter.hold("a", 5, Duration::from_secs(60)).unwrap();
    hold.set_used(2).unwrap();
    hold.settle().unwrap();
    assert_eq!(limiter.peek("a", 0).unwrap().remaining, 3);
    assert!(limiter.take("a", -1).is_err());
}

/// Nobody calls while the hold is renewed, and while it is settled.
#[test]
fn work_goes_on_when_nobody_calls() {
    let server = servers::Server::start();
    let limiter = Limiter::new(&Server::connect_with(server.url(), patient()).unwrap(), limit(10, STILL));
    let hold = limiter.hold("a", 5, Duration::from_millis(900)).unwrap();
    let remaining = || {
        let words = ["TB.PEEK", "tb:a", "10", STILL, "0"];
        servers::ask::<Vec<i64>>(&server, &words)[1]
    };
    thread::sleep(Duration::from_secs(2));
    assert_eq!(remaining(), 5, "renewed");
    server.signal("STOP");
    let hurried = limiter.within(Duration::from_millis(10)).take("a", 1);
    assert!(matches!(hurried, Err(Error::DeadlinePassed)), "{hurried:?}");
    server.signal("CONT");
    hold.set_used(0).unwrap();
    drop(hold); // sent behind the take
    let began = Instant::now();
    // What the take was granted is lost.
    while remaining() != 9 {
        assert!(began.elapsed() < Duration::from_secs(5), "the hold is not settled");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs this test again in a process that may open few files.
#[test]
fn a_process_without_a_free_file_asks_once_it_has_one() {
    if std::env::var_os("FEW_FILES").is_none() {
        let again =
            "ulimit -n 64; exec \"$0\" --exact threads::a_process_without_a_free_file_asks_once_it_has_one";
        let program = std::env::current_exe().unwrap();
        let done =
            Command::new("sh").args(["-c", again]).arg(program).env("FEW_FILES", "1").output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
        return;
    }
    let server = servers::Server::start();
    let limiter = Limiter::new(&Server::connect_with(server.url(), patient()).unwrap(), limit(10, STILL));
    let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    for _ in 0..3 {
        assert!(limiter.take("a", 1).unwrap().degraded);
    }
    drop(files);
    let began = Instant::now();
    while limiter.take("a", 1).unwrap().degraded {
        assert!(began.elapsed() < Duration::from_secs(10), "it does not ask");
        thread::sleep(Duration::from_millis(10));
    }
}
