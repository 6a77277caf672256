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

#[path = "../../tests/oracle/mod.rs"]
mod oracle;

use libfuzzer_sys::fuzz_target;
use oracle::decimal;
use oracle::judge::{assert_one_call_is_exact, Judge};
use oracle::module::{Found, Module, Worded};
use oracle::request::{parse, Command};
use tokenbucket::bucket::{Bucket, Operation, MAX_TIME_US};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.lines();
    let Some((stored, mut now_us)) = lines.next().and_then(read_state) else { return };
    let mut module = Module { stored };
    let mut judge = Judge::from(Found { stored, now_us });
    for line in lines {
        let Some((elapsed_us, limit, operation)) = read_call(line) else { return };
        now_us = now_us.saturating_add(elapsed_us).clamp(0, MAX_TIME_US);
        let found = Found { stored: module.stored, now_us };
        let outcome = module.call(&limit.limit, operation, now_us);
        assert_one_call_is_exact(&limit, found, operation, &outcome);
        judge.hear(&limit, operation, now_us, &outcome);
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
fn read_call(line: &str) -> Option<(i64, Worded, Operation)> {
    let (elapsed_us, call) = line.split_once(' ')?;
    let (command, arguments) = call.split_once(' ')?;
    let command = match command {
        "TAKE" => Command::Take,
        "TAKEUPTO" => Command::TakeUpTo,
        "RESERVE" => Command::Reserve,
        "CHARGE" => Command::Charge,
        "GIVE" => Command::Give,
        _ => return None,
    };
    let mut words = vec![b"key".as_slice()];
    words.extend(arguments.split(' ').map(str::as_bytes));
    let requests = parse(command, &words).ok()?;
    let request = requests.first()?;
    // Of a rate that may have been rounded, the exact one is not known.
    let rate = decimal::rate(words[2]).ok().filter(|rate| rate.is_short)?;
    let limit = Worded::of(request.limit, rate.per_second);
    Some((elapsed_us.parse().ok()?, limit, request.operation))
}
