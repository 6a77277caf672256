//! What the server offers for keys of its own types works for buckets, and nothing that a payload can contain
//! does harm.

use super::is_refused_before;
use super::maxmemory::send_all;
use crate::common::engine::Brand;
use crate::common::server::reply_or_error;
use crate::common::stored::{assert_same_buckets, buckets, buckets_alive, wait_while_time_passes, Stored};
use crate::common::{integer, is_before, texts, Connection, Engine, Server, HOUR_MS};
use redis::ConnectionLike;

/// A server with one bucket, `user:1`, of an odd level, with a hold that lasts and another that has ended.
fn with_one_bucket() -> (Server, Connection) {
    let (server, mut client) = Server::with_clock_and_client();
    client.say("TB.TAKE user:1 10 1/h 3.141592");
    client.say("TB.HOLD user:1 10 1/h 2 86400000 lasts");
    client.say("TB.HOLD user:1 10 1/h 1 1000 has:ended");
    server.clock().advance_us(1_234_567);
    client.say("TB.TAKE user:1 10 1/h 2.718281");
    (server, client)
}

/// All that is stored of one bucket.
fn stored(client: &mut Connection, key: &str) -> Stored {
    buckets(client).remove(key).unwrap_or_else(|| panic!("no {key}"))
}

/// From 8.6 on, Redis with libc's allocator crashes on `MEMORY USAGE` of any module's key that has an expiry, in its own code.
/// There, only keys that never had one can be asked about.
#[test]
fn memory_usage_is_the_same_for_every_bucket_and_small() {
    let (server, mut client) = Server::with_clock_and_client();
    let is_dangerous =
        Engine::under_test().brand == Brand::Redis && !is_before(8, 6) && !server.has_jemalloc();
    let mut usages: Vec<i64> = Vec::new();
    for (number, amount) in ["1", "0.000001", "999999999999", "500", "7.5"].iter().enumerate() {
        let key = format!("user:{number}");
        client.say(&format!("TB.CHARGE {key} 10 1/h {amount}"));
        if is_dangerous {
            let payload = client.dump(&key);
            client.restore(&key, &payload).unwrap();
        }
        usages.push(integer(&client.run(&["MEMORY", "USAGE", &key])));
    }
    assert!(usages.iter().all(|usage| usage == &usages[0]), "{usages:?}");
    assert!((16..=150).contains(&usages[0]), "{usages:?}");
    // Two numbers of 8 bytes each, and what the allocator adds to them.
    let bytes = client.count("tokenbucket", "tokenbucket_bucket_bytes");
    assert!((16 * 5..=32 * 5).contains(&bytes), "{bytes} bytes by INFO");
}

#[test]
fn dump_and_restore_bring_a_bucket_back() {
    let (server, mut client) = with_one_bucket();
    let original = stored(&mut client, "user:1");
    let payload = client.dump("user:1");
    let now_ms = server.clock().now_us() / 1000;
    let restore = |client: &mut Connection, key: &str, ttl: &str, options: &[&str]| {
        let command = redis::cmd("RESTORE").arg(key).arg(ttl).arg(&payload).arg(options).take();
        reply_or_error(client.inner().req_command(&command))
    };
    assert!(restore(&mut client, "user:1", "0", &[]).unwrap_err().starts_with("BUSYKEY"));
    client.say("TB.TAKE replaced 10 1/h 9");
    client.say("SET string 1");
    for (key, ttl, options, expires_at_ms) in [
        ("forever", "0", [].as_slice(), None),
        ("relative", "5000", &[], Some(now_ms + 5000)),
        ("absolute", &(now_ms + 7000).to_string(), &["ABSTTL"], Some(now_ms + 7000)),
        ("replaced", "0", &["REPLACE"], None),
        ("string", "0", &["REPLACE"], None),
    ] {
        restore(&mut client, key, ttl, options).unwrap();
        assert_eq!(stored(&mut client, key), Stored { expires_at_ms, ..original.clone() }, "{key}");
        assert_eq!(client.dump(key), payload, "{key}");
    }
    assert_eq!(stored(&mut client, "user:1"), original);
    assert_eq!(buckets_alive(&mut client), 6);
    // A payload knows no time: later it is the same bucket, which has refilled meanwhile.
    server.clock().advance_ms(HOUR_MS);
    restore(&mut client, "later", "0", &[]).unwrap();
    assert_eq!(stored(&mut client, "later"), Stored { expires_at_ms: None, ..original });
    assert_eq!(client.decide("TB.PEEK later 10 1/h"), client.decide("TB.PEEK user:1 10 1/h"));
}

#[test]
fn a_bucket_is_copied_and_moved_with_its_holds_and_its_expiry() {
    let (_server, mut client) = with_one_bucket();
    let original = stored(&mut client, "user:1");
    client.say("TB.TAKE other 10 1/h 9");
    for (command, database, key) in [
        ("COPY user:1 copy", 0, "copy"),
        ("COPY user:1 copy REPLACE", 0, "copy"),
        ("COPY user:1 user:1 DB 3", 3, "user:1"),
        ("RENAME user:1 other", 0, "other"),
        ("RENAMENX other user:2", 0, "user:2"),
        ("MOVE user:2 5", 5, "user:2"),
        ("SWAPDB 5 6", 6, "user:2"),
    ] {
        let copies = command.starts_with("COPY");
        if copies && is_refused_before((6, 2), &mut client, command) {
            continue;
        }
        client.say(command);
        client.say(&format!("SELECT {database}"));
        assert_eq!(stored(&mut client, key), original, "{command}");
        // A copy is a bucket of its own, as the next line sees.
        if copies {
            assert_eq!(client.decide(&format!("TB.SETTLE {key} 10 1/h lasts 1")).allowed, 1);
            assert_ne!(stored(&mut client, key), original, "{command}");
        }
        client.say("SELECT 0");
    }
    assert_eq!(buckets_alive(&mut client), if is_before(6, 2) { 1 } else { 3 });
}

#[test]
fn digests_are_equal_for_equal_buckets_only() {
    let (server, mut client) = with_one_bucket();
    let payload = client.dump("user:1");
    client.restore("same", &payload).unwrap();
    client.say("EXPIRE same 1000000");
    // A micro-token apart at one time, and the same level a microsecond apart.
    for key in ["a", "b"] {
        client.say(&format!("TB.TAKE {key} 1000 1e-6 1"));
    }
    client.say("TB.TAKE b 1000 1e-6 0.000001");
    server.clock().advance_us(1);
    client.say("TB.TAKE c 1000 1e-6 1");
    assert_eq!(client.state("a").unwrap().0, client.state("c").unwrap().0);
    let digests = texts(client.say("DEBUG DIGEST-VALUE user:1 same a b c"));
    let [one, same, a, b, c] = digests.as_slice() else { panic!("{digests:?}") };
    assert_eq!(one, same);
    assert!(a != b && a != c && b != c, "{digests:?}");
}

/// Moves buckets about in memory, where the server's allocator can, and changes none.
#[test]
fn active_defragmentation_keeps_every_bucket() {
    const BUCKETS: u32 = 100_000;
    let (server, mut client) = Server::with_clock_and_client();
    let take = |n| format!("TB.TAKE user:{n} 1000 1/h {}", 1.0 + f64::from(n) / 1000.0);
    send_all(&mut client, 0..BUCKETS, take);
    // Every tenth stays, so that memory is full of holes.
    send_all(&mut client, 0..BUCKETS, |n| format!("DEL user:{}", if n % 10 == 0 { BUCKETS } else { n }));
    let before = buckets(&mut client);
    for setting in ["ignore-bytes 1", "threshold-lower 1", "cycle-min 50", "cycle-max 75"] {
        client.say(&format!("CONFIG SET active-defrag-{setting}"));
    }
    if let Err(refusal) = client.try_run(&["CONFIG", "SET", "activedefrag", "yes"]) {
        assert!(refusal.contains("Active defragmentation cannot be enabled"), "{refusal}");
        assert_same_buckets(&buckets(&mut client), &before, "without defragmentation");
        return;
    }
    wait_while_time_passes(&[server.clock()], "values have been moved", || {
        client.count("stats", "active_defrag_hits") > 1000
    });
    assert_same_buckets(&buckets(&mut client), &before, "after defragmentation");
    client.say("DEBUG RELOAD");
    assert_same_buckets(&buckets(&mut client), &before, "after a reload");
}
