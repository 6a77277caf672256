//! Calls in forked processes.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::FromRawFd;

use serde_json::{json, Value};
use tokenbucket_client::{sync, Decision, Error};

use crate::client::Limiter;
use crate::{ms, number, text};

#[derive(Default)]
struct Seen {
    allowed: u64,
    degraded: u64,
}

/// Takes once, unless `at_once`, and in every child of a fork, then here. With `op` hold, each holds to its end instead.
pub fn fork(limiter: &Limiter, request: &Value) -> Value {
    let (count, at_once) = (request["count"].as_u64().unwrap_or(1), request["at_once"] == true);
    let mut seen = Seen::default();
    decide(limiter, request, u64::from(!at_once), &mut seen);
    let children: Vec<_> =
        (0..request["processes"].as_u64().unwrap_or(1)).map(|_| child(limiter, request, count)).collect();
    for (pid, mut reading) in children {
        let mut told = String::new();
        reading.read_to_string(&mut told).expect("a line");
        // A child that hangs or dies says nothing.
        let (allowed, degraded) = told.split_once(' ').expect("a child that ends");
        seen.allowed += allowed.parse::<u64>().expect("a number");
        seen.degraded += degraded.parse::<u64>().expect("a number");
        // SAFETY: a child of this process, which nothing else waits for.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
    decide(limiter, request, if at_once { 0 } else { count }, &mut seen);
    json!({"allowed": seen.allowed, "degraded": seen.degraded})
}

fn child(limiter: &Limiter, request: &Value, count: u64) -> (libc::pid_t, File) {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both ends.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: both ends are open, and nothing else owns them.
    let [reading, mut writing] = ends.map(|end| unsafe { File::from_raw_fd(end) });
    // SAFETY: a thread of its own, which holds no lock.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: ends a child that hangs.
            unsafe { libc::alarm(60) };
            let mut seen = Seen::default();
            decide(limiter, request, count, &mut seen);
            let _ = write!(writing, "{} {}", seen.allowed, seen.degraded);
            // SAFETY: the child ends as if it was killed: nothing settles its holds.
            unsafe { libc::_exit(0) }
        }
        pid => (pid, reading),
    }
}

fn decide(limiter: &Limiter, request: &Value, count: u64, seen: &mut Seen) {
    let name = text(request, "name");
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    for _ in 0..count {
        let decision = match (request["op"].as_str(), limiter) {
            (Some("hold"), Limiter::Threads(limiter)) => hold(limiter, name, request),
            (Some("hold"), Limiter::Tasks(limiter)) => {
                let (amount, ttl) = (number(request, "amount"), ms(request, "ttl_ms").unwrap_or_default());
                decision_of(runtime().block_on(limiter.hold(name, amount, ttl)), |hold| {
                    hold.decision().binding
                })
            }
            (_, Limiter::Threads(limiter)) => limiter.take(name, 1).expect("a decision"),
            (_, Limiter::Tasks(limiter)) => runtime().block_on(limiter.take(name, 1)).expect("a decision"),
        };
        seen.allowed += u64::from(decision.allowed);
        seen.degraded += u64::from(decision.degraded);
    }
}

fn hold(limiter: &sync::Limiter, name: &str, request: &Value) -> Decision {
    let (amount, ttl) = (number(request, "amount"), ms(request, "ttl_ms").unwrap_or_default());
    decision_of(limiter.hold(name, amount, ttl), |hold| hold.decision().binding)
}

/// Leaves the hold open.
fn decision_of<T>(held: Result<T, Error>, decision: impl Fn(&T) -> Decision) -> Decision {
    match held {
        Ok(hold) => {
            let decided = decision(&hold);
            std::mem::forget(hold);
            decided
        }
        Err(Error::Denied(denied)) => denied.binding,
        Err(error) => panic!("{error}"),
    }
}
