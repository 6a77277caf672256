//! Many clients at once never get more than the limit, nor less.

use crate::common::{decision, unix_us, Connection, Server};
use std::thread;
use std::time::{Duration, Instant};

/// Ten seconds of the rate: on a busy machine nobody may call for a second, in which a smaller bucket would overflow.
const CAPACITY: i64 = 100;
const PER_SECOND: i64 = 10;

/// Returns whether a call is allowed, and the server's clock just before and just after it, in Unix microseconds.
fn timed(client: &mut Connection, call: &str) -> (bool, [i64; 2]) {
    let replies = client.transaction(&["TIME", call, "TIME"]);
    (decision(&replies[1]).allowed == 1, [unix_us(&replies[0]), unix_us(&replies[2])])
}

#[test]
fn as_many_calls_are_allowed_as_the_limit_lets_through_and_not_one_more() {
    // Also those that wait their turn.
    ["TB.TAKE hot 100 10", "TB.BTAKE hot 100 10 1 86400000"].into_iter().for_each(assert_limited);
}

fn assert_limited(call: &'static str) {
    const TAKE: &str = "TB.TAKE hot 100 10";
    const CLIENTS: usize = 64;
    let server = Server::start();
    // They connect before anybody calls: on a busy machine that takes its time, in which a bucket would overflow.
    let clients: Vec<Connection> = (0..CLIENTS).map(|_| server.connect()).collect();
    let take = |client: &mut Connection| decision(&client.say(call)).allowed;
    let mut client = server.connect();
    let (is_allowed, first_us) = timed(&mut client, TAKE);
    assert!(is_allowed);
    let mut allowed = 1 + thread::scope(|scope| {
        let end = Instant::now() + Duration::from_secs(3);
        let hammer = |mut client: Connection| {
            let calls = move || (Instant::now() < end).then(|| take(&mut client));
            scope.spawn(|| std::iter::from_fn(calls).sum::<i64>())
        };
        let workers: Vec<_> = clients.into_iter().map(hammer).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum::<i64>()
    });
    // What came since the last of them asked.
    let last_us = loop {
        match timed(&mut client, TAKE) {
            (true, _) => allowed += 1,
            (false, moments_us) => break moments_us,
        }
    };
    let flowed_micro = |from_us, to_us| (CAPACITY * 1_000_000) + (to_us - from_us) * PER_SECOND;
    let most = flowed_micro(first_us[0], last_us[1]);
    let least = flowed_micro(first_us[1], last_us[0]) - 1_000_000;
    assert!(allowed * 1_000_000 <= most, "{allowed} allowed, {most} micro-tokens flowed in");
    assert!(allowed * 1_000_000 > least, "{allowed} allowed, {least} micro-tokens flowed in and one is left");
}
