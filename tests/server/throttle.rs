//! `CL.THROTTLE` as a client of redis-cell knows it, and what redis-cell gets wrong.

use super::expiry::assert_expires_in_time;
use super::persistence::{assert_stored, everything};
use super::replication::assert_same;
use super::stories::play_all;
use super::traces::has_seen_a_change;
use crate::common::model::Limit;
use crate::common::stored::{
    append_only_file, commands, follow, quiet, wait_until_replicated, with_append_only_file,
};
use crate::common::{text, Server};
use std::fs;
use tokenbucket_core::error::Error;

/// What redis-cell stores for a limit that is whole again in `after_ms`.
fn left_by_redis_cell(server: &Server, after_ms: i64) -> String {
    ((server.clock().now_us() + after_ms * 1000) * 1000).to_string()
}

#[test]
fn stories_of_limits_as_redis_cell_has_them() {
    play_all(include_str!("stories/throttle.txt"));
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

/// By the first call that takes from it, or is told when to come back: whoever watches sees that, and no other call.
#[test]
fn a_key_that_redis_cell_left_becomes_a_bucket_when_it_has_to() {
    let (server, mut client) = Server::with_clock_and_client();
    let mut watcher = server.connect();
    let left = left_by_redis_cell(&server, 4000);
    for (quantity, limited, is_taken_over) in [(0, 0, false), (11, 1, false), (7, 1, true), (6, 0, true)] {
        client.run(&["SET", "k", &left]);
        watcher.say("WATCH k");
        assert_eq!(client.throttle(&format!("k 9 1 1 {quantity}"))[0], limited, "{quantity}");
        assert_eq!(has_seen_a_change(&mut watcher), is_taken_over, "{quantity}");
        let expected_type = if is_taken_over { "tb-bucket" } else { "string" };
        assert_eq!(text(&client.say("TYPE k")), expected_type, "{quantity}");
        if is_taken_over {
            assert_expires_in_time(&mut client, &Limit::new("10", "1"), None);
        }
    }
}

#[test]
fn the_take_over_is_replicated_and_appended_as_its_result() {
    let (mut master, replica) = (with_append_only_file("no").start(), quiet().start());
    follow(&replica, &master);
    let mut client = master.connect();
    for (key, after_ms, quantity) in
        [("taken", 400_000, 1), ("limited", 6_000_000, 1), ("past", -1000, 10), ("peeked", 400_000, 0)]
    {
        client.run(&["SET", key, &left_by_redis_cell(&master, after_ms)]);
        wait_until_replicated(&replica, &master);
        let told = client.throttle(&format!("{key} 9 1 100 {quantity}"));
        assert_eq!(told[0] == 1, key == "limited", "{key}");
    }
    assert_same(&replica, &master);
    let stored = everything(&master);
    assert_eq!(stored.0.keys().collect::<Vec<_>>(), ["limited", "past", "taken"]);
    assert_eq!(text(&replica.connect().say("TYPE peeked")), "string");
    let appended = commands(&fs::read(append_only_file(&master)).unwrap());
    let names: Vec<_> = appended.iter().map(|command| command[0].to_ascii_uppercase()).collect();
    let count = |name: &str| names.iter().filter(|found| *found == name.as_bytes()).count();
    assert_eq!(["TB.RESTORE", "CL.THROTTLE", "DEL"].map(count), [3, 0, 0]);
    master.kill_and_restart();
    assert_stored(&master, &stored, "after a power cut");
}
