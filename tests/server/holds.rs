//! Holds as a client sees them: tokens that are taken under a name, and come back by themselves.

use super::maxmemory::send_all;
use super::stories::{play, play_all};
use crate::common::judged_calls::{self, JudgedCalls};
use crate::common::model::{HoldOperation, Limit};
use crate::common::stored::{self, append_only_bytes, with_append_only_file};
use crate::common::{
    decided, is_before, shown, text, wait_until, Clock, Connection, Random, Server, HOUR_MS,
};
use tokenbucket_core::hold::MAX_HOLDS;

/// What is one bucket's own, holds that are renewed, denied, settled and in debt, is judged by the walks in `decisions.rs`.
#[test]
fn stories_of_holds() {
    play_all(include_str!("stories/holds.txt"));
}

/// An id of 36 bytes, as UUIDs have.
pub fn uuid(number: u32) -> String {
    format!("{number:08x}-0000-4000-8000-{number:012}")
}

#[test]
fn a_bucket_has_at_most_max_holds_holds() {
    let server = Server::builder().controlled_clock().module_arguments(&["max-holds", "3"]).start();
    let mut client = server.connect();
    let story = "TB.MHOLD 1 5000 a k 10 0 1 => [1 9 0 5000 [[1 9 0 5000]]]
        TB.HOLD k 10 0 1 5000 b => [1 8 0 5000]
        TB.HOLD k 10 0 1 5000 c => [1 7 0 5000]
        TB.HOLD k 10 0 1 5000 d => ERR too many holds in the bucket (tokenbucket.max-holds)
        TB.MHOLD 2 5000 d l 10 0 1 k 10 0 1 => ERR too many holds in the bucket (tokenbucket.max-holds) (bucket 2 of 2)
        TB.HOLD k 10 0 2 6000 a => [1 6 0 6000]
        TB.HOLD k 10 0 0 6000 d => [1 6 0 6000]
        (5 seconds later)
        TB.HOLD k 10 0 1 5000 d => [1 7 0 5000]
        TB.HOLD k 10 0 1 5000 e => [1 6 0 5000]
        TB.HOLD k 10 0 1 5000 f => ERR too many holds in the bucket (tokenbucket.max-holds)";
    play(&server, &mut client, story);
    if !is_before(7, 0) {
        let story = "CONFIG SET tokenbucket.max-holds 0 => ERR …
            CONFIG SET tokenbucket.max-holds 4 => +OK
            TB.HOLD k 10 0 1 5000 f => [1 5 0 5000]";
        play(&server, &mut client, story);
    }
}

/// The first write that finds them ended frees them all.
#[test]
fn holds_that_end_together_come_back_and_are_freed_at_once() {
    // One more stays.
    const HOLDS: u32 = MAX_HOLDS - 1;
    let most = MAX_HOLDS.to_string();
    let server = Server::builder().controlled_clock().module_arguments(&["max-holds", &most]).start();
    let mut client = server.connect();
    let count = |client: &mut Connection, field| client.count("tokenbucket", &format!("tokenbucket_{field}"));
    let bytes = |client: &mut Connection| count(client, "bucket_bytes");
    for call in
        ["HOLD k 1e6 0 1 86400000 stays", "HOLD k 1e6 0 1 5000 a", "SETTLE k 1e6 0 a 0", "SETTLE k 1e6 0 a 0"]
    {
        client.say(&format!("TB.{call}"));
    }
    let few_bytes = bytes(&mut client);
    send_all(&mut client, 0..HOLDS, |n| format!("TB.HOLD k 1e6 0 1 5000 {}", uuid(n)));
    server.clock().advance_ms(5000);
    assert_eq!(client.decide("TB.HOLD k 1e6 0 1 86395000 stays"), decided([1, 999_999, 0, 86_395_000]));
    assert!(bytes(&mut client) <= few_bytes);
    let counts = ["holds", "holds_expired", "settled_late"].map(|field| count(&mut client, field));
    assert_eq!(counts, [1, i64::from(HOLDS), 1]);
    assert_eq!(shown(&client.say("TB.HOLDS k")), "[[\"stays\" \"1\" 86395000]]");
    // A bucket that goes takes along those that have ended.
    send_all(&mut client, 0..HOLDS, |n| format!("TB.HOLD k 1e6 0 1 5000 {}", uuid(n)));
    server.clock().advance_ms(5000);
    client.say("TB.SETTLE k 1e6 0 stays 0");
    assert_eq!(client.keys(), 0);
    wait_until("all is freed", || bytes(&mut client) == 0 && count(&mut client, "holds") == 0);
}

/// Also behind a clock that steps back over their end.
#[test]
fn decisions_are_right_after_many_holds_end_together() {
    let server = Server::with_clock();
    let mut random = Random::new(12);
    let limit = Limit::new("2000", "1");
    let mut walk = JudgedCalls::new(&server, 0);
    let hold =
        |id: u64, ttl_ms| HoldOperation::Set { id: format!("hold:{id}"), amount_micro: 1_500_000, ttl_ms };
    for id in 0..700 {
        walk.hold(&limit, &hold(id, 5000));
    }
    server.clock().advance_ms(6000);
    for step in 0..40 {
        // Some of those that have ended are set again.
        walk.hold(&limit, &hold(random.below(710), random.between(1, 9000)));
        walk.call(&limit, judged_calls::take(&mut random, &limit));
        server.clock().advance_ms(if step % 8 == 7 { -3000 } else { random.between(0, 900) });
    }
}

/// A background thread costs more than it saves there.
#[test]
fn a_bucket_that_goes_with_its_last_hold_is_freed_at_once() {
    let (_server, mut client) = Server::with_clock_and_client();
    for id in ["a", "b", "c"] {
        client.say(&format!("TB.HOLD jobs 3 0 1 60000 {id}"));
        client.say(&format!("TB.SETTLE jobs 3 0 {id} 0"));
    }
    assert_eq!(client.keys(), 0);
    if !is_before(7, 0) {
        assert_eq!(client.count("memory", "lazyfreed_objects"), 0);
    }
    assert_eq!(client.count("tokenbucket", "tokenbucket_bucket_bytes"), 0);
}

const FILL: &[&str] = &[
    "TB.HOLD renewed 10 1/h 4 5000 a",
    "TB.HOLD renewed 10 1/h 5.000001 86400000 a",
    "TB.HOLD renewed 10 1/h 2 5000 b",
    "TB.HOLD unseen 10 1/h 4 5000 a",
    "TB.HOLD unseen 10 1/h 1 86400000 b",
    "TB.HOLD once 10 1/h 4 5000 a",
    "TB.SETTLE once 10 1/h a 3",
    "TB.HOLD debt:of:hold 10 1/h 4 5000 a",
    "TB.SETTLE debt:of:hold 10 1/h a 30",
    "TB.MHOLD 2 86400000 m {n}a 10 1/h 4 {n}b 10 0 3",
    "TB.MHOLD 2 86400000 n {n}a 10 1/h 1 {n}b 10 0 8",
    "TB.HOLD gone 10 0 1 5000 a",
    "TB.HOLD gone 10 0 0 5000 a",
    "DEL debtor",
    "TB.CHARGE debtor 1 1/365d 1e12",
    "MULTI",
    "TB.HOLD {tx}held 10 1/h 4 86400000 a",
    "TB.MSETTLE 2 m {n}a 10 1/h 4 {n}b 10 0 0",
    "TB.HOLD {tx}held 10 1/h 4 86400000 b",
    "EXEC",
];

/// What [`stored::fill`] brings about, the deepest debt, a bucket that counts on from a clock that stepped back, and holds
/// in every state that the commands bring about: many, renewed, settled, ended with and without anybody having looked
/// since. Those that go on do so for a day.
pub fn fill(client: &mut Connection, clock: &Clock) {
    stored::fill(client, clock);
    client.say("TB.TAKE anchored 10 1/h 10");
    clock.advance_ms(-HOUR_MS);
    client.say("TB.TAKE anchored 10 1/h");
    clock.advance_ms(HOUR_MS);
    let hold_one = |n| {
        let ttl_ms = if n % 2 == 0 { 5000 } else { 86_400_000 };
        format!("TB.HOLD many 1000 0 {} {} {}", 1 + n % 3, ttl_ms + n * 10, uuid(n))
    };
    send_all(client, 0..300, hold_one);
    send_all(client, 0..100, |n| format!("TB.SETTLE many 1000 0 {} 0", uuid(3 * n)));
    FILL.iter().for_each(|call| drop(client.say(call)));
    client.run(&[b"TB.HOLD".as_slice(), b"any", b"10", b"0", b"1", b"86400000", b"\0\xff\r\n"]);
    call_at_random(client, clock, 100);
    clock.advance_ms(20_000);
    client.say("TB.TAKE renewed 10 1/h 1");
    client.say("TB.HOLD many 1000 0 1 86400000 last");
}

/// Random calls on one bucket.
fn call_at_random(client: &mut Connection, clock: &Clock, calls: u32) {
    let mut random = Random::new(3);
    for _ in 0..calls {
        let (id, amount) = (random.below(40), random.below(9));
        let ttl_ms = random.between(1, 20_000) + if random.once_in(2) { 86_400_000 } else { 0 };
        client.say(&match random.below(8) {
            0..4 => format!("TB.HOLD walk 50 0.5 {amount} {ttl_ms} {id}"),
            4 | 5 => format!("TB.SETTLE walk 50 0.5 {id} {amount}"),
            6 => format!("TB.TAKE walk 50 0.5 {amount}"),
            _ => format!("TB.GIVE walk 50 0.5 {amount}"),
        });
        clock.advance_us(random.between(0, 700_000));
    }
}

/// Of all databases, over what nothing shows.
pub fn digest(client: &mut Connection) -> String {
    text(&client.say("DEBUG DIGEST"))
}

#[test]
fn what_is_replicated_is_short_and_does_not_grow_with_the_number_of_holds() {
    const CALLS: [&str; 7] = [
        "TB.TAKE user:1234567 1e5 1/h 1.5",
        "TB.HOLD k 10000 0 1 60000 x",
        "TB.HOLD k 10000 0 2 60000 x",
        "TB.SETTLE k 10000 0 x 0",
        "TB.GIVE k 10000 0 0.5",
        "TB.HOLD k 10000 0 10000 60000 x",
        "TB.SETTLE k 10000 0 none 0",
    ];
    let server = with_append_only_file("no").start();
    let mut client = server.connect();
    let costs = [1, 1000].map(|many| {
        send_all(&mut client, 0..many, |n| format!("TB.HOLD k 10000 0 1 60000 {}", uuid(n)));
        CALLS.map(|call| {
            let before = append_only_bytes(&mut client);
            client.say(call);
            append_only_bytes(&mut client) - before
        })
    });
    assert_eq!(costs[0], costs[1]);
    assert!(costs[0][0] <= 110 && costs[0].iter().all(|bytes| *bytes < 150), "{costs:?}");
    let are_sent = [true, true, true, true, true, false, false];
    assert_eq!(costs[0].map(|bytes| bytes > 0), are_sent, "denied, nothing is sent");
}
