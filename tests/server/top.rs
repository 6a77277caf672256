//! `TB.TOP`: who is denied most. What it refuses: `core/tests/pure/errors.rs`.

use super::{is_refused_before, stories};
use crate::common::{Connection, Server};

/// What it replies: keys and how often they were denied.
fn top(client: &mut Connection, words: &str) -> Vec<(Vec<u8>, i64)> {
    let rows: Vec<(Vec<u8>, i64, i64)> = redis::from_redis_value(client.say(words)).unwrap();
    rows.into_iter().map(|(key, denied, _last_denied_ms)| (key, denied)).collect()
}

#[test]
fn it_counts_each_key_that_its_own_limit_denies() {
    stories::play_all(include_str!("stories/top.txt"));
}

#[test]
fn keys_may_have_any_bytes_and_long_ones_are_cut() {
    let (_server, mut client) = Server::start_with_client();
    let (binary, long) = (&b"\0\r\n\xff"[..], [b'x'; 1030]);
    for key in [binary, binary, &long[..1024], &long[..1025], &long] {
        client.run(&[b"TB.TAKE".as_slice(), key, b"0", b"1"]);
    }
    assert_eq!(top(&mut client, "TB.TOP"), [(long[..1024].to_vec(), 3), (binary.to_vec(), 2)]);
}

/// Which of them have a counter, and what it may show: `core/tests/pure/top.rs`.
#[test]
fn of_more_keys_than_there_are_counters_128_are_counted() {
    let (_server, mut client) = Server::start_with_client();
    client.run(&["EVAL", "for i = 1, 1000 do redis.call('TB.TAKE', i, 0, 1) end", "0"]);
    assert_eq!(top(&mut client, "TB.TOP COUNT 1000").len(), 128);
}

#[test]
fn a_change_of_the_setting_frees_the_counters_at_once() {
    let (_server, mut client) =
        Server::builder().module_arguments(&["top-keys", "20000"]).start_with_client();
    if is_refused_before((7, 0), &mut client, "CONFIG SET tokenbucket.top-keys 20000") {
        return;
    }
    let deny = "for i = 1, 20000 do redis.call('TB.TAKE', string.rep('x', 990) .. i, 0, 1) end";
    client.run(&["EVAL", deny, "0"]);
    let before = client.used_memory();
    client.say("CONFIG SET tokenbucket.top-keys 0");
    let freed = before - client.used_memory();
    assert!(freed > 15_000_000, "{freed} bytes were freed");
}
