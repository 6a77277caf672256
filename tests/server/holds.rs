//! Holds as a client sees them: tokens that are taken under a name, and come back by themselves.

use super::maxmemory::send_all;
use super::stories::play_all;
use crate::common::stored::{self, append_only_bytes, with_append_only_file};
use crate::common::{decided, shown, text, wait_until, Clock, Connection, Server, HOUR_MS};
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

/// The first write that finds them ended frees them all.
#[test]
fn holds_that_end_together_come_back_and_are_freed_at_once() {
    // One more stays.
    const HOLDS: u32 = MAX_HOLDS - 1;
    let most = MAX_HOLDS.to_string();
    let (server, mut client) =
        Server::builder().controlled_clock().module_arguments(&["max-holds", &most]).start_with_client();
    let count = |client: &mut Connection, field| client.count("tokenbucket", &format!("tokenbucket_{field}"));
    let bytes = |client: &mut Connection| count(client, "bucket_bytes");
    for call in [
        "HOLD k 1e6 0 1 86400000 stays",
        "HOLD k 1e6 0 1 5000 a",
        "SETTLE k 1e6 0 a 0",
        "SETTLE k 1e6 0 a 0",
        "RENEW k 1e6 0 5000 a",
        "MRENEW 3 5000 stays k 1e6 0 none 1 1 l 1 1",
    ] {
        client.say(&format!("TB.{call}"));
    }
    let few_bytes = bytes(&mut client);
    send_all(&mut client, 0..HOLDS, |n| format!("TB.HOLD k 1e6 0 1 5000 {}", uuid(n)));
    server.clock().advance_ms(5000);
    assert_eq!(client.decide("TB.HOLD k 1e6 0 1 86395000 stays"), decided([1, 999_999, 0, 86_395_000]));
    assert!(bytes(&mut client) <= few_bytes);
    let counts = ["holds", "holds_expired", "settled_late", "renewed_late", "decisions_denied"];
    let counts = counts.map(|field| count(&mut client, field));
    assert_eq!(counts, [1, i64::from(HOLDS), 1, 3, 0]);
    assert_eq!(shown(&client.say("TB.HOLDS k")), "[[\"stays\" \"1\" 86395000]]");
    // A bucket that goes takes along those that have ended.
    send_all(&mut client, 0..HOLDS, |n| format!("TB.HOLD k 1e6 0 1 5000 {}", uuid(n)));
    server.clock().advance_ms(5000);
    client.say("TB.SETTLE k 1e6 0 stays 0");
    assert_eq!(client.keys(), 0);
    wait_until("all is freed", || bytes(&mut client) == 0 && count(&mut client, "holds") == 0);
}

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
    include_str!("../common/fill_holds.txt").lines().for_each(|call| drop(client.say(call)));
    client.run(&[b"TB.HOLD".as_slice(), b"any", b"10", b"0", b"1", b"86400000", b"\0\xff\r\n"]);
    clock.advance_ms(20_000);
    client.say("TB.TAKE renewed 10 1/h 1");
    client.say("TB.HOLD many 1000 0 1 86400000 last");
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
        "TB.HOLD k 10000 0 3 60000 x",
        "TB.HOLD k 10000 0 10000 60000 x",
        "TB.SETTLE k 10000 0 none 0",
    ];
    let (_server, mut client) = with_append_only_file("no").start_with_client();
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
