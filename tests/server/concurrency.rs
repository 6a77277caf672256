//! Many clients at once never get more than the limit, nor less.

use crate::common::model::number::exact;
use crate::common::reply::state;
use crate::common::{decision, integer, unix_us, Connection, Server};
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

/// Ten seconds of the rate: on a busy machine nobody may call for a second, in which a smaller bucket would overflow.
const CAPACITY: i64 = 100;
const PER_SECOND: i64 = 10;

/// Whether a call is allowed, and the server's clock just before and just after it, in Unix microseconds.
fn timed(client: &mut Connection, call: &str) -> (bool, [i64; 2]) {
    let replies = client.transaction(&["TIME", call, "TIME"]);
    (decision(&replies[1]).allowed == 1, [unix_us(&replies[0]), unix_us(&replies[2])])
}

#[test]
fn as_many_calls_are_allowed_as_the_limit_lets_through_and_not_one_more() {
    const TAKE: &str = "TB.TAKE hot 100 10";
    const CLIENTS: usize = 64;
    let server = Server::start();
    // They connect before anybody calls: on a busy machine that takes its time, in which a bucket would overflow.
    let clients: Vec<Connection> = (0..CLIENTS).map(|_| server.connect()).collect();
    let take = |client: &mut Connection| decision(&client.say(TAKE)).allowed;
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

/// Asks for a slot, and sleeps as told. Returns the place in the order of asking, and when on the server's clock the slot
/// was asked for and is due.
fn reserve_and_sleep(client: &mut Connection) -> (i64, [i64; 2]) {
    let replies = client.transaction(&["INCR asked", "TB.RESERVE queue 1 100 1 60000", "TB.STATE queue"]);
    let told = decision(&replies[1]);
    let (level, asked_at_us) = state(&replies[2]).unwrap();
    // The level is a debt of so many tokens; at 100 a second, each takes one slot to pay off.
    let debt_us: i64 = (-exact(&level) * exact("10000")).to_integer().try_into().unwrap();
    let told_us = told.retry_after_ms * 1000;
    assert!(told.allowed == 1 && (debt_us..debt_us + 1000).contains(&told_us), "{told:?} at {level}");
    thread::sleep(Duration::from_micros(told_us.unsigned_abs()));
    let (due_at_us, now_us) = (asked_at_us + debt_us, client.time_us());
    assert!(now_us >= due_at_us, "early: at {now_us}, due at {due_at_us}");
    (integer(&replies[0]), [asked_at_us, due_at_us])
}

#[test]
fn concurrent_reservers_that_sleep_as_told_are_served_in_order_at_the_full_rate_and_never_early() {
    const WORKERS: usize = 32;
    const SLOTS_EACH: usize = 6;
    const SLOT_US: i64 = 10_000;
    let server = Server::start();
    let slots: BTreeMap<i64, [i64; 2]> = thread::scope(|scope| {
        let worker = || {
            let mut client = server.connect();
            (0..SLOTS_EACH).map(|_| reserve_and_sleep(&mut client)).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(slots.len(), WORKERS * SLOTS_EACH);
    for ([asked_before_us, due_before_us], [asked_at_us, due_at_us]) in
        slots.values().zip(slots.values().skip(1))
    {
        // The next slot, in the order of asking, begins where the last one ended; unless nobody asked in time.
        // (A clock that stepped back by a microsecond starts to count anew.)
        let stepped_back_us = (asked_before_us - asked_at_us).max(0);
        let next_us = due_before_us + SLOT_US - stepped_back_us;
        assert_eq!(*due_at_us, next_us.max(*asked_at_us), "asked for at {asked_at_us}");
    }
}
