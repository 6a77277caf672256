//! `CL.THROTTLE` as a client of redis-cell knows it, and what redis-cell gets wrong.

use super::persistence::wait_for_children;
use super::stories::play_all;
use super::traces::is_seen_by_watch;
use crate::common::stored::{
    append_only_bytes, append_only_file, assert_same_buckets, buckets, commands, follow, on_the_wire,
    wait_until_replicated, with_append_only_file,
};
use crate::common::{integers, text, Connection, Random, Server};
use std::fs;
use tokenbucket::error::Error;

/// Sends a command given as words; returns limited, limit, remaining, retry after and reset after.
fn throttle(client: &mut Connection, words: &str) -> [i64; 5] {
    let reply = client.say(&format!("CL.THROTTLE {words}"));
    integers(&reply).try_into().unwrap_or_else(|fields| panic!("not five fields: {fields:?}"))
}

fn refusal(client: &mut Connection, words: &str) -> String {
    client.refusal(&format!("CL.THROTTLE {words}"))
}

/// What redis-cell stores for a limit that is whole again in `after_ms`.
fn left_by_redis_cell(server: &Server, after_ms: i64) -> String {
    ((server.clock().now_us() + after_ms * 1000) * 1000).to_string()
}

fn type_of(client: &mut Connection, key: &str) -> String {
    text(&client.run(&["TYPE", key]))
}

const STORIES: &str = r#"
# it is the same bucket for all commands
CL.THROTTLE k 9 1 1 4 => [0 10 6 -1 4]
TB.STATE k => ["6" 1767225600000007]
TB.TAKE k 10 1 5 => [1 1 0 9000]
CL.THROTTLE k 9 1 1 2 => [1 10 1 1 9]
TB.GIVE k 10 1 1 => [1 2 0 8000]
CL.THROTTLE k 9 1 1 2 => [0 10 0 -1 10]
DEL k => 1
CL.THROTTLE k 9 1 1 10 => [0 10 0 -1 10]

# more than the limit, a limit of nothing, and what refills in more than 100 years store nothing
CL.THROTTLE k 9 1 1 11 => [1 10 10 -1 0]
CL.THROTTLE k 9 1 1 1000000000000 => [1 10 10 -1 0]
CL.THROTTLE k -1 30 60 => [1 0 0 -1 0]
CL.THROTTLE k -1 30 60 0 => [0 0 0 -1 0]
CL.THROTTLE k 9223372036854775807 1 1 => ERR …
CL.THROTTLE k 9223372036 1 1 => ERR …
CL.THROTTLE k 300000000000 1 3155760000 => ERR …
EXISTS k => 0

# at the edges nothing overflows: whole again within a millisecond, and in 79 years
CL.THROTTLE a 6000 6000 1 => [0 6001 6000 -1 0]
CL.THROTTLE b 9 7000000 1 => [0 10 9 -1 0]
CL.THROTTLE c 999999999999 1000000000000 1 => [0 1000000000000 999999999999 -1 0]
CL.THROTTLE d 9999999999 4 1 10000000000 => [0 10000000000 0 -1 2500000000]

# what redis-cell left is no new bucket above maxmemory
SET left 1767225604000007000 => +OK
CONFIG SET maxmemory 1 => +OK
CL.THROTTLE left 9 1 1 => [0 10 5 -1 5]
CL.THROTTLE new 9 1 1 => OOM …
CONFIG SET maxmemory 0 => +OK

# only CL.THROTTLE takes over
SET k 1767225604000007000 => +OK
TB.TAKE k 10 1 => WRONGTYPE …
TB.PEEK k 10 1 => WRONGTYPE …
TB.STATE k => WRONGTYPE …
TB.GIVE k 10 1 1 => WRONGTYPE …
GET k => "1767225604000007000"

# every moment that redis-cell can store is taken over: 2001, the present, and the year 2262, which is a debt that is
# paid off then, or at the fastest rate one that is deeper than debts go
SET k 978307200000000000 => +OK
CL.THROTTLE k 9 1 1 3 => [0 10 7 -1 3]
TB.STATE k => ["7" 1767225600000007]
SET k 1767225600000000000 => +OK
CL.THROTTLE k 9 1 1 3 => [0 10 7 -1 3]
TB.STATE k => ["7" 1767225600000007]
SET k 9223372036854775807 => +OK
CL.THROTTLE k 9 1 1 => [1 10 0 7456146428 7456146437]
SET k 9223372036854775807 => +OK
CL.THROTTLE k 9 1000000000000 1 => [1 10 0 …
TB.STATE k => ["-1000000000000" …
"#;

#[test]
fn stories_of_limits_as_redis_cell_has_them() {
    play_all(STORIES);
}

#[test]
fn only_what_redis_cell_writes_is_taken_over() {
    let (server, mut client) = Server::with_clock_and_client();
    let now_ns = left_by_redis_cell(&server, 5000);
    let spelled_otherwise = [
        format!("+{now_ns}"),
        format!("0{now_ns}"),
        format!(" {now_ns}"),
        format!("{now_ns}\n"),
        format!("{now_ns}.0"),
    ];
    // Somebody's counters, and moments before there was a redis-cell.
    let counters = ["42", "0", "1", "-1", "978307199999999999", "-9223372036854775808"];
    let numbers = ["", "-", "-0", "1e18", "0x5", "nan", "9223372036854775808", "-9223372036854775809"];
    let bytes = counters.iter().chain(&numbers).map(ToString::to_string).chain(spelled_otherwise);
    for value in bytes.map(String::into_bytes).chain([b"\xff\xfe".to_vec(), b"12\0".to_vec()]) {
        client.run(&[b"SET".as_slice(), b"k", &value]);
        assert_eq!(refusal(&mut client, "k 9 1 1"), Error::WrongType.to_string(), "{}", value.escape_ascii());
        assert_eq!(client.run(&["GET", "k"]), redis::Value::BulkString(value));
    }
}

#[test]
fn a_key_that_redis_cell_left_becomes_a_bucket_of_the_same_level() {
    let (server, mut client) = Server::with_clock_and_client();
    for (after_ms, quantity, expected) in [
        (4000, 1, [0, 10, 5, -1, 5]),
        (4000, 6, [0, 10, 0, -1, 10]),
        (4000, 7, [1, 10, 6, 1, 4]),
        (9500, 1, [1, 10, 0, 1, 10]),
        (10_000, 1, [1, 10, 0, 1, 10]),
        // Never: no call of the limit that the key was used with.
        (4000, 11, [1, 10, 6, -1, 4]),
        // A limit that was larger then.
        (25_000, 1, [1, 10, 0, 16, 25]),
        // Whole again already; the key had no expiry, or its time has not come.
        (0, 1, [0, 10, 9, -1, 1]),
        (-100_000, 4, [0, 10, 6, -1, 4]),
        (-100_000, 11, [1, 10, 10, -1, 0]),
    ] {
        let left = left_by_redis_cell(&server, after_ms);
        client.run(&["SET", "k", &left]);
        let case = format!("{quantity} of a limit that is whole in {after_ms} ms");
        let peeked = throttle(&mut client, "k 9 1 1 0");
        assert_eq!(text(&client.say("GET k")), left, "a peek at {case}");
        assert_eq!(throttle(&mut client, &format!("k 9 1 1 {quantity}")), expected, "{case}");
        if expected[0] == 1 && expected[3] == -1 {
            assert_eq!(text(&client.say("GET k")), left, "{case}");
            continue;
        }
        assert_eq!(type_of(&mut client, "k"), "tb-bucket", "{case}");
        if expected[0] == 1 {
            assert_eq!(throttle(&mut client, "k 9 1 1 0"), peeked, "{case}");
        }
        let whole_at_ms = server.clock().now_us() / 1000 + expected[4] * 1000;
        let expires_at_ms = client.expires_at_ms("k").unwrap_or_else(|| panic!("{case}: no expiry"));
        let latest_ms = whole_at_ms + expected[4] * 250 + 1002;
        assert!((whole_at_ms - 999..=latest_ms).contains(&expires_at_ms), "{case}: {expires_at_ms}");
    }
}

#[test]
fn a_level_that_is_no_whole_number_is_taken_over_to_the_microsecond() {
    let (server, mut client) = Server::with_clock_and_client();
    let mut random = Random::new(51);
    for _ in 0..300 {
        let (burst, count, period) = (
            random.between(0, 1000),
            *random.pick(&[1, 3, 7, 30, 100, 5000, 999_983]),
            *random.pick(&[1, 60, 3600, 86_400]),
        );
        let refill_us = (burst + 1) * period * 1_000_000 / count;
        let left_ns =
            (server.clock().now_us() + random.between(1, refill_us + 1)) * 1000 - random.between(0, 999);
        client.run(&["SET", "k", &left_ns.to_string()]);
        // Converted by a call that is denied.
        let limit = format!("k {burst} {count} {period}");
        assert_eq!(throttle(&mut client, &format!("{limit} {}", burst + 1))[0], 1, "{limit}");
        // Never a nanosecond early.
        let left_us = (left_ns + 999).div_euclid(1000);
        let rate = format!("{count}/{period}s");
        for (at_us, is_whole) in [(left_us - 1, false), (left_us + 1, true)] {
            server.clock().set_us(at_us);
            let peeked = client.decide(&format!("TB.PEEK k {} {rate} {}", burst + 1, burst + 1));
            assert_eq!(peeked.allowed == 1, is_whole, "{limit}, {} us around {left_ns}", at_us - left_us);
        }
    }
}

#[test]
fn the_take_over_is_replicated_and_appended_as_its_result() {
    let (mut master, replica) = (with_append_only_file("no").start(), Server::with_clock());
    follow(&replica, &master);
    let mut client = master.connect();
    for (key, after_ms) in [("taken", 4000), ("limited", 9999), ("past", -1000), ("peeked", 4000)] {
        client.run(&["SET", key, &left_by_redis_cell(&master, after_ms)]);
    }
    wait_until_replicated(&replica, &master);
    throttle(&mut client, "peeked 9 1 1 0");
    assert_eq!(throttle(&mut client, "taken 9 1 1")[0], 0);
    assert_eq!(throttle(&mut client, "limited 9 1 1")[0], 1);
    assert_eq!(throttle(&mut client, "past 9 1 1 10")[0], 0);
    wait_until_replicated(&replica, &master);
    let stored = buckets(&mut client);
    assert_eq!(stored.keys().collect::<Vec<_>>(), ["limited", "past", "taken"]);
    assert_same_buckets(&buckets(&mut replica.connect()), &stored, "on a replica");
    assert_eq!(type_of(&mut replica.connect(), "peeked"), "string");
    let appended = commands(&fs::read(append_only_file(&master)).unwrap());
    let names: Vec<String> =
        appended.iter().map(|command| String::from_utf8_lossy(&command[0]).to_uppercase()).collect();
    assert_eq!(names.iter().filter(|name| *name == "TB.RESTORE").count(), 3, "{names:?}");
    assert!(!names.iter().any(|name| ["CL.THROTTLE", "DEL"].contains(&name.as_str())), "{names:?}");
    master.kill_and_restart();
    let mut client = master.connect();
    assert_same_buckets(&buckets(&mut client), &stored, "after a power cut");
    assert_eq!(type_of(&mut client, "peeked"), "string");
}

#[test]
fn watchers_see_the_take_over_and_not_the_peek() {
    let server = Server::with_clock();
    let (mut client, mut watcher) = (server.connect(), server.connect());
    client.run(&["SET", "k", &left_by_redis_cell(&server, 4000)]);
    for (call, is_seen) in
        [("k 9 1 1 0", false), ("k 9 1 1 11", false), ("k 9 1 1 10", true), ("k 9 1 1 10", false)]
    {
        let call = format!("CL.THROTTLE {call}");
        let aborted = is_seen_by_watch(&mut watcher, &mut client, "k", &call);
        assert_eq!(aborted, is_seen, "{call}");
    }
}

/// redis-cell appends its calls. Such a file is read once, with the clock of that moment.
#[test]
fn an_append_only_file_of_redis_cell_is_read_and_not_appended_again() {
    let mut server = with_append_only_file("no").start();
    let mut client = server.connect();
    client.run(&["SET", "k", &left_by_redis_cell(&server, 20_000)]);
    server.kill();
    let path = append_only_file(&server);
    let mut file = fs::read(&path).unwrap();
    (0..3).for_each(|_| file.extend(on_the_wire("CL.THROTTLE k 99 1 1 10")));
    fs::write(&path, &file).unwrap();
    server.start_again();
    let mut client = server.connect();
    assert_eq!(throttle(&mut client, "k 99 1 1 0"), [0, 100, 50, -1, 50]);
    assert_eq!(append_only_bytes(&mut client), file.len() as u64, "what was read was appended again");
    throttle(&mut client, "k 99 1 1 5");
    let before = buckets(&mut client);
    client.say("BGREWRITEAOF");
    wait_for_children(&server, &mut client);
    server.kill_and_restart();
    assert_same_buckets(&buckets(&mut server.connect()), &before, "after the rewrite");
}
