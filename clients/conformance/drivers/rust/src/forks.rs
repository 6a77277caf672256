//! Calls in forked processes.

use std::io::{pipe, read_to_string, PipeReader, Write};
use std::mem::ManuallyDrop;

use serde_json::{json, Value};
use tokenbucket_client::{Decision, Error};

use crate::client::{Hold, Limiter};
use crate::{ms, number, text};

/// Takes once, unless `at_once`, and in every child of a fork, then here. With `op` hold, each holds to its end instead.
pub fn fork(limiter: &Limiter, request: &Value) -> Value {
    let (count, at_once) = (request["count"].as_u64().unwrap_or(1), request["at_once"] == true);
    let mut seen = vec![decide(limiter, request, u64::from(!at_once))];
    let children: Vec<_> =
        (0..request["processes"].as_u64().unwrap_or(1)).map(|_| child(limiter, request, count)).collect();
    for (pid, reading) in children {
        let told = read_to_string(reading).expect("a line");
        // A child that hangs or dies says nothing.
        let (allowed, degraded) = told.split_once(' ').expect("a child that ends");
        seen.push((allowed.parse().expect("a number"), degraded.parse().expect("a number")));
        // SAFETY: a child of this process, which nothing else waits for.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
    seen.push(decide(limiter, request, if at_once { 0 } else { count }));
    let (allowed, degraded): (Vec<u64>, Vec<u64>) = seen.into_iter().unzip();
    json!({"allowed": allowed.iter().sum::<u64>(), "degraded": degraded.iter().sum::<u64>()})
}

fn child(limiter: &Limiter, request: &Value, count: u64) -> (libc::pid_t, PipeReader) {
    let (reading, mut writing) = pipe().expect("a pipe");
    // SAFETY: a thread of its own, which holds no lock.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: ends a child that hangs.
            unsafe { libc::alarm(60) };
            let (allowed, degraded) = decide(limiter, request, count);
            let _ = write!(writing, "{allowed} {degraded}");
            // SAFETY: the child ends as if it was killed: nothing settles its holds.
            unsafe { libc::_exit(0) }
        }
        pid => (pid, reading),
    }
}

/// How many calls were allowed, and how many were decided without the server.
fn decide(limiter: &Limiter, request: &Value, count: u64) -> (u64, u64) {
    let (name, is_hold) = (text(request, "name"), request["op"] == "hold");
    let (amount, ttl) = (number(request, "amount"), ms(request, "ttl_ms").unwrap_or_default());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let call = |_| {
        let decision = match limiter {
            Limiter::Threads(limiter) if is_hold => open(limiter.hold(name, amount, ttl).map(Hold::Threads)),
            Limiter::Threads(limiter) => limiter.take(name, 1).expect("a decision"),
            Limiter::Tasks(limiter) if is_hold => {
                open(runtime().block_on(limiter.hold(name, amount, ttl)).map(Hold::Tasks))
            }
            Limiter::Tasks(limiter) => runtime().block_on(limiter.take(name, 1)).expect("a decision"),
        };
        (u64::from(decision.allowed), u64::from(decision.degraded))
    };
    (0..count).map(call).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// Leaves the hold open.
fn open(hold: Result<Hold, Error>) -> Decision {
    match hold {
        Ok(hold) => ManuallyDrop::new(hold).decision(),
        Err(Error::Denied(denied)) => denied.binding,
        Err(error) => panic!("{error}"),
    }
}
