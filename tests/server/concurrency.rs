//! Many clients at once never get more than the limit, nor less.

use crate::common::exact::number::exact;
use crate::common::{decision, integers, text, unix_us, Connection, Server};
use redis::Value;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

const CAPACITY: i64 = 10;
const PER_SECOND: i64 = 10;

/// A call, and the server's clock just before and just after it, in Unix microseconds.
struct Timed {
    before_us: i64,
    reply: Value,
    after_us: i64,
}

fn timed(client: &mut Connection, call: &str) -> Timed {
    let replies = client.transaction(&["TIME", call, "TIME"]);
    let [before, reply, after] = replies.try_into().unwrap_or_else(|replies| panic!("{replies:?}"));
    Timed { before_us: unix_us(&before), reply, after_us: unix_us(&after) }
}

#[test]
fn as_many_calls_are_allowed_as_the_limit_lets_through_and_not_one_more() {
    const TAKE: &str = "TB.TAKE hot 10 10";
    const CLIENTS: usize = 64;
    let server = Server::start();
    // They connect before anybody calls: on a busy machine that takes its time, in which a bucket would overflow.
    let clients: Vec<Connection> = (0..CLIENTS).map(|_| server.connect()).collect();
    let take = |client: &mut Connection| decision(&client.say(TAKE)).allowed;
    let mut client = server.connect();
    let first = timed(&mut client, TAKE);
    assert_eq!(decision(&first.reply).allowed, 1);
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
    let last = loop {
        let last = timed(&mut client, TAKE);
        match decision(&last.reply).allowed {
            0 => break last,
            one => allowed += one,
        }
    };
    let flowed_micro = |from_us, to_us| (CAPACITY * 1_000_000) + (to_us - from_us) * PER_SECOND;
    let most = flowed_micro(first.before_us, last.after_us);
    let least = flowed_micro(first.after_us, last.before_us) - 1_000_000;
    assert!(allowed * 1_000_000 <= most, "{allowed} allowed, {most} micro-tokens flowed in");
    assert!(allowed * 1_000_000 > least, "{allowed} allowed, {least} micro-tokens flowed in and one is left");
}

/// A reservation as the server made it.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// When it was asked for, on the server's clock.
    asked_at_us: i64,
    /// When its tokens have flowed in.
    due_at_us: i64,
    /// When the worker acted, on the server's clock.
    acted_at_us: i64,
}

const SLOT_US: i64 = 10_000;

/// Asks for one slot, sleeps as told, and acts. Returns the place in the order of asking, and the slot.
fn work_once(client: &mut Connection) -> (i64, Slot) {
    let replies = client.transaction(&["INCR asked", "TB.RESERVE queue 1 100 1 60000", "TB.STATE queue"]);
    let [Value::Int(place), reservation, Value::Array(state)] = replies.as_slice() else {
        panic!("not the three replies: {replies:?}")
    };
    let told = decision(reservation);
    assert_eq!(told.allowed, 1);
    let [asked_at_us] = integers(&Value::Array(state[1..].to_vec()))[..] else { panic!("no time") };
    // The level is a debt of so many tokens; at 100 a second, each takes one slot to pay off.
    let debt_us: i64 = (-exact(&text(&state[0])) * exact("10000")).to_integer().try_into().unwrap();
    let told_us = told.retry_after_ms * 1000;
    assert!((debt_us..debt_us + 1000).contains(&told_us), "told {told_us}, the debt takes {debt_us}");
    thread::sleep(Duration::from_millis(told.retry_after_ms.try_into().unwrap()));
    let slot = Slot { asked_at_us, due_at_us: asked_at_us + debt_us, acted_at_us: client.time_us() };
    (*place, slot)
}

#[test]
fn concurrent_reservers_that_sleep_as_told_are_served_in_order_at_the_full_rate_and_never_early() {
    const WORKERS: usize = 32;
    const SLOTS_EACH: usize = 6;
    let server = Server::start();
    let slots: BTreeMap<i64, Slot> = thread::scope(|scope| {
        let worker = || {
            let mut client = server.connect();
            (0..SLOTS_EACH).map(|_| work_once(&mut client)).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(slots.len(), WORKERS * SLOTS_EACH);
    let slots: Vec<Slot> = slots.into_values().collect();
    for pair in slots.windows(2) {
        let [before, after] = pair else { panic!("no pair") };
        // The next slot, in the order of asking, begins where the last one ended; unless nobody asked in time.
        // (A clock that stepped back by a microsecond starts to count anew.)
        let stepped_back_us = (before.asked_at_us - after.asked_at_us).max(0);
        let next_us = before.due_at_us + SLOT_US - stepped_back_us;
        assert_eq!(after.due_at_us, next_us.max(after.asked_at_us), "after {before:?}");
    }
    for slot in &slots {
        assert!(slot.acted_at_us >= slot.due_at_us, "early: {slot:?}");
    }
}
