//! A bucket that is full again needs no key. Its key goes then, never before, and little later.

mod common;

use common::exact::{number::exact, whole, Limit, MILLION};
use common::stored::{buckets_alive, wait_while_time_passes};
use common::walk::{self, Walk, RATES};
use common::{text, Connection, Random, Server};

const HOUR_MS: i64 = 3_600_000;

/// When a bucket is full, in Unix microseconds: not yet one before.
fn full_at_us((level, refilled_at_us): &(String, i64), limit: &Limit) -> i64 {
    let level_micro = exact(level) * whole(MILLION);
    let at_us = whole(*refilled_at_us) + limit.reaches_in_us(&level_micro, *refilled_at_us, &limit.capacity);
    at_us.ceil().to_integer().try_into().unwrap()
}

/// Holds the expiry of a bucket that was just written against the promise.
fn assert_expires_in_time(client: &mut Connection, key: &str, limit: &Limit, now_us: i64) {
    let state = client.state(key).unwrap();
    let full_at_us = full_at_us(&state, limit);
    let expires_at_ms = client.expires_at_ms(key).unwrap_or_else(|| panic!("{key} {state:?} never expires"));
    let earliest_ms = full_at_us.unsigned_abs().div_ceil(1000).cast_signed();
    let latest_ms = earliest_ms + (full_at_us - now_us) / 4 / 1000 + 1000;
    assert!(
        (earliest_ms..=latest_ms).contains(&expires_at_ms),
        "{key} {state:?}, limit {}, expires at {expires_at_ms}, not from {earliest_ms} to {latest_ms}",
        limit.words,
    );
}

fn per_hour(capacity: &str) -> Limit {
    Limit::new(capacity, "1/h")
}

#[test]
fn the_key_stays_until_the_bucket_is_full_and_goes_soon_after() {
    const BUCKETS: u64 = 150;
    const CALLS: u32 = 30;
    let server = Server::with_clock();
    let mut random = Random::new(0xE);
    for bucket in 0..BUCKETS {
        let mut limit = walk::limit(&mut random, RATES);
        let mut walk = Walk::new(&server, bucket);
        for _ in 0..CALLS {
            server.clock().advance_us(walk::pause_us(&mut random, &limit));
            if random.once_in(4) {
                limit = walk::limit(&mut random, RATES);
            }
            walk.call(&limit, walk::any_operation(&mut random, &limit));
        }
    }
}

/// The last microsecond of a key, and the first without it.
#[test]
fn a_key_is_there_to_the_last_millisecond_and_then_it_is_gone() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.say("TB.TAKE user:1 10 1/3s 7.5");
    let expires_at_ms = client.expires_at_ms("user:1").unwrap();
    server.clock().set_us(expires_at_ms * 1000 - 1);
    assert!(client.state("user:1").is_some());
    assert_eq!(text(&client.say("EXISTS user:1")), "1");
    assert_eq!(client.decide("TB.PEEK user:1 10 1/3s").remaining, 9);
    assert_eq!(client.decide("TB.PEEK user:1 10 1/3s 0").reset_after_ms, 0, "gone before it is full");

    server.clock().set_us((expires_at_ms + 1) * 1000);
    assert_eq!(client.state("user:1"), None);
    assert_eq!(text(&client.say("EXISTS user:1")), "0");
    assert_eq!(text(&client.say("TYPE user:1")), "none");
    assert_eq!(client.decide("TB.TAKE user:1 10 1/3s").remaining, 9);
}

/// Nobody has to ask for a bucket to have it forgotten.
#[test]
fn buckets_that_nobody_asks_for_are_forgotten() {
    const BUCKETS: i64 = 500;
    let server = Server::with_clock();
    let mut client = server.connect();
    for bucket in 0..BUCKETS {
        client.say(&format!("TB.TAKE user:{bucket} 10 1"));
    }
    assert_eq!(buckets_alive(&mut client), BUCKETS);
    server.clock().advance_ms(3000);
    wait_while_time_passes(&[server.clock()], "all are forgotten", || buckets_alive(&mut client) == 0);
    assert_eq!(text(&client.say("DBSIZE")), "0");
}

/// Writing an expiry costs the server as much as the rest of a take, so one that is right stays. Servers before
/// 6.2.2 do not tell a module what the expiry is.
#[test]
fn an_expiry_that_is_right_is_not_written_again() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let can_tell = !text(&client.say("INFO server")).contains("redis_version:6.0.");
    client.say("TB.TAKE user:1 100 1/h 50");
    let first = client.expires_at_ms("user:1").unwrap();
    client.say("TB.TAKE user:1 100 1/h 0.001");
    assert_eq!(client.expires_at_ms("user:1").unwrap() == first, can_tell);
    assert_expires_in_time(&mut client, "user:1", &per_hour("100"), server.clock().now_us());
    client.say("TB.TAKE user:1 100 1/h 40");
    assert!(client.expires_at_ms("user:1").unwrap() > first);
}

/// One millisecond before the bucket is full is too early, and one behind the latest is too late.
#[test]
fn an_expiry_at_the_edge_is_judged_to_the_millisecond() {
    let limit = Limit::new("100", "1/3s");
    let server = Server::with_clock();
    let mut client = server.connect();
    for clock_us in [0, 1, 333, 998] {
        server.clock().advance_us(clock_us);
        client.say("TB.CHARGE twin 100 1/3s 50.12345");
        let full_at_us = full_at_us(&client.state("twin").unwrap(), &limit);
        let full_at_ms = full_at_us.unsigned_abs().div_ceil(1000).cast_signed();
        let latest_ms = client.expires_at_ms("twin").unwrap();
        for expires_at_ms in [full_at_ms - 1, full_at_ms, latest_ms, latest_ms + 1] {
            client.say("TB.CHARGE user:1 100 1/3s 50");
            client.say(&format!("PEXPIREAT user:1 {expires_at_ms}"));
            client.say("TB.CHARGE user:1 100 1/3s 0.12345");
            assert_expires_in_time(&mut client, "user:1", &limit, server.clock().now_us());
            client.say("DEL user:1");
        }
        client.say("DEL twin");
    }
}

/// A new limit moves the moment at which the bucket is full, also far back and forth.
#[test]
fn another_limit_moves_the_expiry() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let limits =
        [("10", "1/h"), ("1000", "1/h"), ("1000", "100"), ("10", "1/d"), ("10", "1e6"), ("10", "7/d")];
    for (capacity, rate) in limits {
        let limit = Limit::new(capacity, rate);
        client.say(&format!("TB.CHARGE user:1 {} 1.000001", limit.words));
        assert_expires_in_time(&mut client, "user:1", &limit, server.clock().now_us());
        server.clock().advance_us(333);
    }
}

const WRITES: [&str; 6] = [
    "TB.TAKE user:1 100 1/h 2",
    "TB.TAKEUPTO user:1 100 1/h 2",
    "TB.RESERVE user:1 100 1/h 2 0",
    "TB.CHARGE user:1 100 1/h 2",
    "TB.GIVE user:1 100 1/h 2",
    "TB.MTAKE 1 user:1 100 1/h 2",
];

/// Whatever a user has done to the expiry, the next write puts it right.
#[test]
fn the_next_write_repairs_an_expiry() {
    let meddling = ["PERSIST user:1", "PEXPIRE user:1 3600000", "EXPIRE user:1 999999999"];
    let server = Server::with_clock();
    let mut client = server.connect();
    for write in WRITES {
        for meddle in meddling {
            client.say("DEL user:1");
            client.say("TB.TAKE user:1 100 1/h 50");
            assert_eq!(text(&client.say(meddle)), "1");
            let meddled = client.expires_at_ms("user:1");
            assert_eq!(client.decide("TB.TAKE user:1 100 1/h 99").allowed, 0);
            client.say("TB.PEEK user:1 100 1/h");
            assert_eq!(client.expires_at_ms("user:1"), meddled, "a denial has written");
            client.say(write);
            assert_expires_in_time(&mut client, "user:1", &per_hour("100"), server.clock().now_us());
        }
    }
}

/// The same for a bucket that came under this name without an expiry, or with another's.
#[test]
fn the_next_write_repairs_an_expiry_that_came_with_the_bucket() {
    let server = Server::with_clock();
    let mut client = server.connect();
    for write in WRITES {
        client.say("FLUSHALL");
        client.say("TB.TAKE source 100 1/h 50");
        let redis::Value::BulkString(dump) = client.say("DUMP source") else { panic!("no dump") };
        client.run(&[b"RESTORE".as_slice(), b"user:1", b"0", &dump]);
        assert_eq!(client.expires_at_ms("user:1"), None);
        client.say(write);
        assert_expires_in_time(&mut client, "user:1", &per_hour("100"), server.clock().now_us());

        client.say("PEXPIRE source 1000");
        client.say("RENAME source user:1");
        client.say(write);
        assert_expires_in_time(&mut client, "user:1", &per_hour("100"), server.clock().now_us());
    }
}

#[test]
fn a_clock_that_steps_back_neither_locks_nor_frees_nor_forgets() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.say("TB.TAKE user:1 10 1/m 4");
    client.say("TB.TAKE empty 10 1/m 10");
    server.clock().advance_ms(-HOUR_MS);

    assert_eq!(client.decide("TB.PEEK user:1 10 1/m").remaining, 5, "after a step back");
    assert_eq!(client.decide("TB.TAKE user:1 10 1/m").remaining, 5);
    let (level, refilled_at_us) = client.state("user:1").unwrap();
    assert_eq!((level.as_str(), refilled_at_us), ("5", server.clock().now_us()));
    let per_minute = Limit::new("10", "1/m");
    assert_expires_in_time(&mut client, "user:1", &per_minute, server.clock().now_us());

    // The denial of an empty bucket makes it count on from the new time, or it would be empty for an hour.
    let denied = client.decide("TB.TAKE empty 10 1/m");
    assert_eq!((denied.allowed, denied.retry_after_ms), (0, 60_000));
    assert_eq!(client.state("empty").unwrap(), ("0".to_owned(), server.clock().now_us()));
    assert_expires_in_time(&mut client, "empty", &per_minute, server.clock().now_us());
    server.clock().advance_ms(59_999);
    assert_eq!(client.decide("TB.TAKE empty 10 1/m").allowed, 0);
    server.clock().advance_ms(1);
    assert_eq!(client.decide("TB.TAKE empty 10 1/m").allowed, 1);
}

#[test]
fn a_give_that_fills_leaves_no_key() {
    let server = Server::with_clock();
    let mut client = server.connect();
    for (take, give) in [("7", "7"), ("7.5", "1e12"), ("0.000001", "0.000001")] {
        client.say(&format!("TB.TAKE user:1 10 1/h {take}"));
        let given = client.decide(&format!("TB.GIVE user:1 10 1/h {give}"));
        assert_eq!((given.remaining, given.reset_after_ms), (10, 0));
        assert_eq!(text(&client.say("EXISTS user:1")), "0", "took {take}, gave {give}");
        assert_eq!(client.state("user:1"), None);
        assert_eq!(buckets_alive(&mut client), 0);
    }
}

/// A debt that takes longer to pay off than servers can count still has an expiry, far away.
#[test]
fn the_deepest_debt_is_kept() {
    let mut server = Server::with_clock();
    let mut client = server.connect();
    client.say("TB.CHARGE debtor 1 1/365d 1e12");
    let state = client.state("debtor").unwrap();
    assert_eq!(state.0, "-999999999999");
    const YEAR_MS: i64 = 365 * 24 * HOUR_MS;
    let expires_at_ms = client.expires_at_ms("debtor").unwrap();
    assert!(expires_at_ms > 100_000 * YEAR_MS, "{expires_at_ms}");
    server.restart(true);
    let mut client = server.connect();
    assert_eq!(client.state("debtor"), Some(state));
    assert_eq!(client.expires_at_ms("debtor"), Some(expires_at_ms));
}
