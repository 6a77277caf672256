//! Calls in forked processes.

use std::io::{pipe, read_to_string, PipeReader, Write};
use std::mem::ManuallyDrop;

use serde_json::{json, Value};
use tokenbucket_client::{Decision, Error};

use crate::client::{Hold, Limiter};
use crate::{ms, number, text};

/// Holds in every child of a fork.
pub fn fork(limiter: &Limiter, request: &Value) -> Value {
    let (mut allowed, mut degraded) = (0, 0);
    let processes = request["processes"].as_u64().unwrap_or(1);
    for (pid, reading) in (0..processes).map(|_| child(limiter, request)).collect::<Vec<_>>() {
        let told = read_to_string(reading).expect("a line");
        // A child that hangs or dies says nothing.
        let (is_allowed, is_degraded) = told.split_once(' ').expect("a child that ends");
        allowed += u32::from(is_allowed == "true");
        degraded += u32::from(is_degraded == "true");
        // SAFETY: a child of this process, which nothing else waits for.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
    }
    json!({"allowed": allowed, "degraded": degraded})
}

fn child(limiter: &Limiter, request: &Value) -> (libc::pid_t, PipeReader) {
    let (reading, mut writing) = pipe().expect("a pipe");
    // SAFETY: a thread of its own, which holds no lock.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: ends a child that hangs.
            unsafe { libc::alarm(60) };
            let decision = hold(limiter, request);
            let _ = write!(writing, "{} {}", decision.allowed, decision.degraded);
            // SAFETY: the child ends as if it was killed: nothing settles its holds.
            unsafe { libc::_exit(0) }
        }
        pid => (pid, reading),
    }
}

/// Leaves the hold open.
fn hold(limiter: &Limiter, request: &Value) -> Decision {
    let name = text(request, "name");
    let (amount, ttl) = (number(request, "amount"), ms(request, "ttl_ms").unwrap_or_default());
    let held = match limiter {
        Limiter::Threads(limiter) => limiter.hold(name, amount, ttl).map(Hold::Threads),
        Limiter::Tasks(limiter) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(limiter.hold(name, amount, ttl)).map(Hold::Tasks)
        }
    };
    match held {
        Ok(hold) => ManuallyDrop::new(hold).decision().binding,
        Err(Error::Denied(denied)) => denied.binding,
        Err(error) => panic!("{error}"),
    }
}
