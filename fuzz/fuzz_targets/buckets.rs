//! A life of a bucket, in lines: first the state that it is found in, then calls, each after so many microseconds.
//!
//! ```text
//! 0 1700000000000000
//! 250000 TAKE 10 100/m 3
//! -3600000000 RESERVE 10 100/m 20 60000
//! ```
//!
//! Every call is judged twice: as a first call on the state that the module has by then, where it has to be exact, and
//! as part of the whole life, where the module may be short of the exact bucket by what the contract allows.
#![no_main]

#[path = "../../core/tests/model/mod.rs"]
mod model;

use model::operation::parse;
use model::{number, Bucket, Judged, Limit, Operation};
use libfuzzer_sys::fuzz_target;
use tokenbucket_core::bucket::MAX_TIME_US;
use tokenbucket_core::request::Wanted;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.lines();
    let Some((stored, mut now_us)) = lines.next().and_then(read_state) else { return };
    let mut life = Judged::found(stored);
    for line in lines {
        let Some((elapsed_us, limit, operation)) = read_call(line) else { return };
        now_us = now_us.saturating_add(elapsed_us).clamp(0, MAX_TIME_US);
        let _ = Judged::found(life.stored).call(&limit, operation, now_us);
        let _ = life.call(&limit, operation, now_us);
    }
});

/// A level in micro-tokens and the time of the last refill; or the time alone, of a full bucket.
fn read_state(line: &str) -> Option<(Option<Bucket>, i64)> {
    match line.split_once(' ') {
        None => Some((None, line.parse().ok()?)),
        Some((level, time)) => {
            let bucket = Bucket::checked(level.parse().ok()?, time.parse().ok()?)?;
            Some((Some(bucket), bucket.refilled_at_us))
        }
    }
}

/// How long after the one before, with which limit, and what is wanted.
fn read_call(line: &str) -> Option<(i64, Limit, Operation)> {
    let (elapsed_us, call) = line.split_once(' ')?;
    let (command, arguments) = call.split_once(' ')?;
    if !["TAKE", "TAKEUPTO", "RESERVE", "CHARGE", "GIVE"].contains(&command) {
        return None;
    }
    let mut words = vec![b"key".as_slice()];
    words.extend(arguments.split(' ').map(str::as_bytes));
    let Wanted::Tokens(operation) = parse(command, &words).ok()?.requests[0].wanted else { return None };
    let limit = Limit::read(words[1], words[2]).ok()?;
    // Of a rate that may have been rounded, the exact one is not known.
    (!number::may_be_rounded(words[2])).then_some((elapsed_us.parse().ok()?, limit, operation))
}
