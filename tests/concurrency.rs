//! Many clients at once never get more than the limit, nor less.

mod common;

use common::{decision, integers, text, Connection, Server};
use redis::Value;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: usize = 64;
const CAPACITY: i64 = 10;
const PER_SECOND: i64 = 10;

/// A call, and the server's clock just before and just after it, in Unix microseconds.
struct Timed {
    before_us: i64,
    reply: Value,
    after_us: i64,
}

fn timed(client: &mut Connection, call: &str) -> Timed {
    client.say("MULTI");
    for command in ["TIME", call, "TIME"] {
        client.say(command);
    }
    let Value::Array(replies) = client.say("EXEC") else { panic!("no transaction") };
    let [before, reply, after] = replies.try_into().unwrap_or_else(|replies| panic!("{replies:?}"));
    Timed { before_us: unix_us(&before), reply, after_us: unix_us(&after) }
}

fn unix_us(time: &Value) -> i64 {
    let Value::Array(parts) = time else { panic!("no time: {time:?}") };
    let number = |part: &Value| text(part).parse::<i64>().unwrap();
    number(&parts[0]) * 1_000_000 + number(&parts[1])
}

/// Tokens in micro-tokens that `us` microseconds bring.
fn flow_micro(us: i64) -> i64 {
    us * PER_SECOND
}

/// As many clients as there are to be. They connect before anybody calls: on a busy machine that takes its time,
/// in which a bucket would overflow.
fn connect_all(server: &Server) -> Vec<Connection> {
    (0..CLIENTS).map(|_| server.connect()).collect()
}

/// What all clients together were granted by calling as fast as they could, in tokens, and how often they called.
fn hammer(
    clients: Vec<Connection>,
    duration: Duration,
    call_once: impl Fn(usize, &mut Connection) -> i64 + Sync,
) -> (i64, u64) {
    let (call_once, over) = (&call_once, &AtomicBool::new(false));
    thread::scope(|scope| {
        let work = move |number: usize, mut client: Connection| {
            let (mut granted, mut calls) = (0, 0);
            while !over.load(Ordering::Relaxed) {
                granted += call_once(number, &mut client);
                calls += 1;
            }
            (granted, calls)
        };
        let workers: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(number, client)| scope.spawn(move || work(number, client)))
            .collect();
        let end = Instant::now() + duration;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            thread::sleep(left);
        }
        over.store(true, Ordering::Relaxed);
        let results = workers.into_iter().map(|worker| worker.join().unwrap());
        results.fold((0, 0), |(granted, calls), (more, further)| (granted + more, calls + further))
    })
}

#[test]
fn as_many_calls_are_allowed_as_the_limit_lets_through_and_not_one_more() {
    const TAKE: &str = "TB.TAKE hot 10 10";
    let server = Server::start();
    let (clients, mut client) = (connect_all(&server), server.connect());
    let first = timed(&mut client, TAKE);
    assert_eq!(decision(&first.reply).allowed, 1);
    let take = |_, client: &mut Connection| decision(&client.say(TAKE)).allowed;
    let (granted, calls) = hammer(clients, Duration::from_secs(3), take);
    // What came since the last of them asked.
    let mut allowed = 1 + granted;
    let last = loop {
        let last = timed(&mut client, TAKE);
        match decision(&last.reply).allowed {
            0 => break last,
            one => allowed += one,
        }
    };
    let most = CAPACITY * 1_000_000 + flow_micro(last.after_us - first.before_us);
    let least = CAPACITY * 1_000_000 + flow_micro(last.before_us - first.after_us) - 1_000_000;
    assert!(allowed * 1_000_000 <= most, "{allowed} allowed, {most} micro-tokens flowed in");
    assert!(allowed * 1_000_000 > least, "{allowed} allowed, {least} micro-tokens flowed in and one is left");
    assert!(calls > 1000, "{calls} calls: hardly a contest");
}

#[test]
fn whatever_they_call_together_they_get_no_more_than_flows_in() {
    const MAX_WAIT_US: i64 = 200_000;
    let server = Server::start();
    let (clients, mut client) = (connect_all(&server), server.connect());
    let started_us = client.time_us();
    let call_once = |number: usize, client: &mut Connection| match number % 4 {
        0 => decision(&client.say("TB.TAKE hot 10 10 2")).allowed * 2,
        1 => decision(&client.say("TB.TAKEUPTO hot 10 10 3")).allowed,
        2 => decision(&client.say("TB.RESERVE hot 10 10 1 200")).allowed,
        _ => {
            let Value::Array(fields) = client.say("TB.MTAKE 2 other 1000 1000 1 hot 10 10 1") else {
                panic!("no array")
            };
            integers(&Value::Array(fields[..4].to_vec()))[0]
        }
    };
    let (granted, calls) = hammer(clients, Duration::from_secs(1), call_once);
    let elapsed_us = client.time_us() - started_us;
    // Those who reserve may be as far ahead as they accept to wait.
    let most = CAPACITY * 1_000_000 + flow_micro(elapsed_us + MAX_WAIT_US);
    assert!(granted * 1_000_000 <= most, "{granted} granted by {calls} calls, {most} micro-tokens at most");
    // All but what is left, by the account of the server.
    let (level, refilled_at_us) = client.state("hot").expect("nobody waits until it is full");
    let level_micro = common::exact::number::exact(&level) * common::exact::whole(1_000_000);
    let flowed_micro = CAPACITY * 1_000_000 + flow_micro(refilled_at_us - started_us);
    let left_micro: i64 = level_micro.to_integer().try_into().unwrap();
    assert!(granted * 1_000_000 <= flowed_micro - left_micro, "{granted}, {flowed_micro}, {left_micro}");
    let counted: i64 = client.info("tokenbucket", "tokenbucket_tokens_granted").parse().unwrap();
    assert!(counted >= granted, "{counted} counted, {granted} granted");
}
