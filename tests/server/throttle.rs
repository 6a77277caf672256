//! `CL.THROTTLE` as a client of redis-cell knows it, and what redis-cell gets wrong.

use super::persistence::{assert_stored, everything, wait_for_children};
use super::replication::assert_same;
use super::stories::play_all;
use super::traces::has_seen_a_change;
use crate::common::stored::{
    append_only_bytes, append_only_file, commands, follow, on_the_wire, quiet, wait_until_replicated,
    with_append_only_file,
};
use crate::common::{integers, text, Connection, Random, Server};
use std::fs;
use tokenbucket::error::Error;

/// Sends a command given as words; returns limited, limit, remaining, retry after and reset after.
fn throttle(client: &mut Connection, words: &str) -> [i64; 5] {
    let reply = client.say(&format!("CL.THROTTLE {words}"));
    integers(&reply).try_into().unwrap_or_else(|fields| panic!("not five fields: {fields:?}"))
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
    // Somebody's counters, moments before there was a redis-cell, other spellings, and what is no number.
    let others = "42 0 1 -1 978307199999999999 -9223372036854775808 - -0 1e18 0x5 nan 9223372036854775808 \
        -9223372036854775809  +_ 0_ _.0";
    let others = others.split(' ').map(|value| value.replace('_', &now_ns));
    let others = others.chain([format!(" {now_ns}"), format!("{now_ns}\n")]).map(String::into_bytes);
    for value in others.chain([b"\xff\xfe".to_vec(), b"12\0".to_vec()]) {
        client.run(&[b"SET".as_slice(), b"k", &value]);
        let refused = client.refusal("CL.THROTTLE k 9 1 1");
        assert_eq!(refused, Error::WrongType.to_string(), "{}", value.escape_ascii());
        assert_eq!(client.run(&["GET", "k"]), redis::Value::BulkString(value));
    }
}

/// In how many milliseconds a limit of 10 at 1 a second is whole again, and what a call of so many is told.
const LEFT: [(i64, i64, [i64; 5]); 10] = [
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
];

/// Whoever watches sees that, and not a peek at it.
#[test]
fn a_key_that_redis_cell_left_becomes_a_bucket_of_the_same_level() {
    let (server, mut client) = Server::with_clock_and_client();
    let mut watcher = server.connect();
    for (after_ms, quantity, expected) in LEFT {
        let left = left_by_redis_cell(&server, after_ms);
        client.run(&["SET", "k", &left]);
        let case = format!("{quantity} of a limit that is whole in {after_ms} ms");
        watcher.say("WATCH k");
        let peeked = throttle(&mut client, "k 9 1 1 0");
        assert_eq!(
            (has_seen_a_change(&mut watcher), text(&client.say("GET k"))),
            (false, left),
            "a peek at {case}"
        );
        let call = format!("k 9 1 1 {quantity}");
        watcher.say("WATCH k");
        assert_eq!(throttle(&mut client, &call), expected, "{case}");
        let is_taken_over = has_seen_a_change(&mut watcher);
        let [is_limited, _, _, retry_after_s, reset_after_s] = expected;
        assert_eq!(is_taken_over, is_limited == 0 || retry_after_s != -1, "{case}");
        assert_eq!(type_of(&mut client, "k"), if is_taken_over { "tb-bucket" } else { "string" }, "{case}");
        if is_limited == 1 {
            assert_eq!(throttle(&mut client, "k 9 1 1 0"), peeked, "{case}");
        }
        if is_taken_over {
            let whole_at_ms = server.clock().now_us() / 1000 + reset_after_s * 1000;
            let in_time_ms = whole_at_ms - 999..=whole_at_ms + reset_after_s * 250 + 1002;
            let expires_at_ms = client.expires_at_ms("k");
            assert!(expires_at_ms.is_some_and(|ms| in_time_ms.contains(&ms)), "{case}: {expires_at_ms:?}");
        }
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
    let (mut master, replica) = (with_append_only_file("no").start(), quiet().start());
    follow(&replica, &master);
    let mut client = master.connect();
    for (key, after_ms) in [("taken", 400_000), ("limited", 6_000_000), ("past", -1000), ("peeked", 400_000)]
    {
        client.run(&["SET", key, &left_by_redis_cell(&master, after_ms)]);
    }
    wait_until_replicated(&replica, &master);
    throttle(&mut client, "peeked 9 1 100 0");
    assert_eq!(throttle(&mut client, "taken 9 1 100")[0], 0);
    assert_eq!(throttle(&mut client, "limited 9 1 100")[0], 1);
    assert_eq!(throttle(&mut client, "past 9 1 100 10")[0], 0);
    assert_same(&replica, &master);
    let stored = everything(&master);
    assert_eq!(stored.0.keys().collect::<Vec<_>>(), ["limited", "past", "taken"]);
    assert_eq!(type_of(&mut replica.connect(), "peeked"), "string");
    let appended = commands(&fs::read(append_only_file(&master)).unwrap());
    let names: Vec<_> = appended.iter().map(|command| command[0].to_ascii_uppercase()).collect();
    let count = |name: &str| names.iter().filter(|found| *found == name.as_bytes()).count();
    assert_eq!(["TB.RESTORE", "CL.THROTTLE", "DEL"].map(count), [3, 0, 0]);
    master.kill_and_restart();
    assert_stored(&master, &stored, "after a power cut");
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
    let before = everything(&server);
    client.say("BGREWRITEAOF");
    wait_for_children(&server, &mut client);
    server.kill_and_restart();
    assert_stored(&server, &before, "after the rewrite");
}
