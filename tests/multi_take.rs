//! `TB.MTAKE` as a client sees it: several buckets, all or nothing.

mod common;

use common::exact::operation::arguments;
use common::exact::{Limit, Operation};
use common::walk::Walk;
use common::{decision, multi_decision, server, text, walk, Connection, Decision, Random, Server};
use redis::Value;

const HOUR_MS: i64 = 3_600_000;
const NUMKEYS: &str = "ERR numkeys must be a whole number from 1 to 1024";
const MISMATCH: &str = "ERR numkeys must match the number of 'key capacity rate cost' groups";
const DUPLICATE: &str = "ERR key must not be given twice in one call";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

fn decided(fields: [i64; 4]) -> Decision {
    fields.into()
}

/// A level as `TB.STATE` shows it, that was written now.
fn written_now(server: &Server, level: &str) -> Option<(String, i64)> {
    Some((level.to_owned(), server.clock().now_us()))
}

/// Takes from all groups, each the words `key capacity rate cost`.
fn take_all(client: &mut Connection, groups: &[&str]) -> (Decision, Vec<Decision>) {
    multi_decision(&client.say(&words(groups)))
}

fn words(groups: &[&str]) -> String {
    format!("TB.MTAKE {} {}", groups.len(), groups.join(" "))
}

/// State and expiry of a key.
type Stored = (Option<(String, i64)>, Option<i64>);

/// What is stored of some buckets.
fn stored(client: &mut Connection, keys: &[&str]) -> Vec<Stored> {
    keys.iter().map(|key| (client.state(key), client.expires_at_ms(key))).collect()
}

/// Many groups with a key of their own each.
fn many(count: usize, group: &str) -> Vec<String> {
    (0..count).map(|number| format!("key:{number} {group}")).collect()
}

fn borrowed(groups: &[String]) -> Vec<&str> {
    groups.iter().map(String::as_str).collect()
}

#[test]
fn allowed_it_takes_from_all_and_replies_the_tightest_of_each_field() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let (binding, own) = take_all(&mut client, &["requests 10 1 1", "tokens 1000 50 400", "day 5 1/d 2"]);
    assert_eq!(own[0], decided([1, 9, 0, 1000]));
    assert_eq!(own[1], decided([1, 600, 0, 8000]));
    assert_eq!(own[2], decided([1, 3, 0, 172_800_000]));
    assert_eq!(own.len(), 3);
    assert_eq!(binding, decided([1, 3, 0, 172_800_000]));
    assert_eq!(client.state("requests"), written_now(&server, "9"));
    assert_eq!(client.state("tokens"), written_now(&server, "600"));
    assert_eq!(client.state("day"), written_now(&server, "3"));
}

#[test]
fn denied_it_changes_no_bucket_and_says_which_of_them_would_have_allowed() {
    let server = Server::with_clock();
    let mut client = server.connect();
    take_all(&mut client, &["a 10 1 4", "b 10 2 9", "c 10 5 8"]);
    server.clock().advance_ms(100);
    let before = stored(&mut client, &["a", "b", "c", "d"]);
    let groups = ["a 10 1 6", "b 10 2 2", "c 10 5 3", "d 7 1 7"];
    let (binding, own) = take_all(&mut client, &groups);
    // What would have been allowed is described as it is: nothing is gone from it.
    assert_eq!(own[0], decided([1, 6, 0, 3900]));
    assert_eq!(own[1], decided([0, 1, 400, 4400]));
    assert_eq!(own[2], decided([0, 2, 100, 1500]));
    assert_eq!(own[3], decided([1, 7, 0, 0]));
    assert_eq!(binding, decided([0, 1, 400, 4400]));
    assert_eq!(stored(&mut client, &["a", "b", "c", "d"]), before);
    server.clock().advance_ms(399);
    assert_eq!(take_all(&mut client, &groups).0.retry_after_ms, 1);
    server.clock().advance_ms(1);
    assert_eq!(take_all(&mut client, &groups).0, decided([1, 0, 0, 9500]));
}

#[test]
fn a_cost_above_one_capacity_can_never_be_whatever_the_others_say() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE a 10 1 10");
    let (binding, own) = take_all(&mut client, &["a 10 1 5", "b 10 1 11", "c 10 1 1"]);
    assert_eq!(binding, decided([0, 0, -1, 10_000]));
    assert_eq!(own, [[0, 0, 5000, 10_000], [0, 10, -1, 0], [1, 10, 0, 0]].map(decided));
    let (binding, own) = take_all(&mut client, &["c 10 1 1", "suspended 0 1 1"]);
    assert_eq!(binding, decided([0, 0, -1, 0]));
    assert_eq!(own, [[1, 10, 0, 0], [0, 0, -1, 0]].map(decided));
    assert_eq!(stored(&mut client, &["b", "c", "suspended"]), vec![(None, None); 3]);
}

#[test]
fn costs_of_zero_are_allowed_and_write_nothing_unless_in_debt() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(take_all(&mut client, &["a 10 1 0", "b 5 1 0"]).0, decided([1, 5, 0, 0]));
    assert_eq!(text(&client.say("DBSIZE")), "0");
    client.decide("TB.CHARGE b 5 1 6");
    let (binding, own) = take_all(&mut client, &["a 10 1 1", "b 5 1 0"]);
    assert_eq!(binding, decided([0, -1, 1000, 6000]));
    assert_eq!(own[1].allowed, 0);
    assert_eq!(client.state("a"), None);
}

#[test]
fn one_bucket_is_decided_as_by_take() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let mut random = Random::new(1);
    for number in 0..50 {
        let limit = walk::limit(&mut random, walk::RATES);
        for _ in 0..20 {
            let take = walk::take(&mut random, &limit);
            let told =
                client.decide(&format!("TB.TAKE {}", arguments(take, &format!("take:{number}"), &limit)));
            let multi = format!("TB.MTAKE 1 {}", arguments(take, &format!("multi:{number}"), &limit));
            assert_eq!(multi_decision(&client.say(&multi)), (told, vec![told]), "{multi}");
            server.clock().advance_us(walk::pause_us(&mut random, &limit));
        }
        assert_eq!(client.state(&format!("take:{number}")), client.state(&format!("multi:{number}")));
    }
}

/// Whenever all buckets allow: as one take after the other. Otherwise nothing, but that each of them counts on from a
/// clock that stepped back.
#[test]
fn several_buckets_are_taken_from_together_or_not_at_all() {
    const ROUNDS: u64 = 60;
    const CALLS: u64 = 12;
    let server = Server::with_clock();
    let mut random = Random::new(2);
    let mut times_allowed = 0;
    for round in 0..ROUNDS {
        let limits: Vec<_> =
            (0..random.between(2, 20)).map(|_| walk::limit(&mut random, walk::RATES)).collect();
        let mut walks: Vec<_> =
            (0..100).zip(&limits).map(|(place, _)| Walk::new(&server, round * 100 + place)).collect();
        for _ in 0..CALLS {
            let takes: Vec<_> = limits.iter().map(|limit| small_take(&mut random, limit)).collect();
            times_allowed += u64::from(Walk::take_together(&mut walks, &limits, &takes));
            let pause_us = walk::pause_us(&mut random, &limits[0]);
            server.clock().advance_us(if random.once_in(6) { -pause_us } else { pause_us });
        }
    }
    let both_ways = ROUNDS * CALLS / 10..ROUNDS * CALLS * 9 / 10;
    assert!(both_ways.contains(&times_allowed), "{times_allowed}: the costs do not try both ways");
}

/// Mostly little, so that many buckets at once now and then allow.
fn small_take(random: &mut Random, limit: &Limit) -> Operation {
    if random.once_in(8) {
        return walk::take(random, limit);
    }
    Operation::Take { cost_micro: limit.capacity_micro() / 20 }
}

#[test]
fn a_hundred_buckets_and_as_many_as_there_may_be() {
    let server = Server::with_clock();
    let mut client = server.connect();
    for count in [100, 1024] {
        let groups = many(count, "10 1 6");
        let (binding, own) = take_all(&mut client, &borrowed(&groups));
        assert_eq!(binding, decided([1, 4, 0, 6000]));
        assert_eq!(own, vec![decided([1, 4, 0, 6000]); count]);
        assert_eq!(text(&client.say("DBSIZE")), count.to_string());
        let (binding, own) = take_all(&mut client, &borrowed(&groups));
        assert_eq!(binding, decided([0, 4, 2000, 6000]));
        assert_eq!(own.len(), count);
        client.say("FLUSHALL");
    }
    assert_eq!(client.refusal(&words(&borrowed(&many(1025, "10 1 6")))), NUMKEYS);
    assert_eq!(text(&client.say("DBSIZE")), "0");
}

#[test]
fn the_last_of_many_can_deny_them_all() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE key:1023 10 1 5");
    let (binding, own) = take_all(&mut client, &borrowed(&many(1024, "10 1 6")));
    assert_eq!(binding, decided([0, 5, 1000, 5000]));
    assert_eq!(own.iter().filter(|one| one.allowed == 1).count(), 1023);
    assert_eq!(text(&client.say("DBSIZE")), "1");
}

#[test]
fn the_same_key_twice_is_refused_wherever_it_stands() {
    let server = Server::with_clock();
    let mut client = server.connect();
    for count in [2, 3, 16, 17, 100, 1024] {
        for (one, other) in [(0, count - 1), (count / 2, count - 1), (0, 1)] {
            if one == other {
                continue;
            }
            let mut groups = many(count, "10 1 1");
            // With another limit, so that only the key is the same.
            groups[other] = format!("key:{one} 20 5/m 2");
            assert_eq!(client.refusal(&words(&borrowed(&groups))), DUPLICATE, "{count}: {one}, {other}");
        }
    }
    assert_eq!(text(&client.say("DBSIZE")), "0");
}

#[test]
fn a_key_of_another_type_in_the_middle_changes_nothing() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE a 10 1 4");
    client.say("SET list-of-one x");
    let before = stored(&mut client, &["a", "b"]);
    for groups in [
        ["a 10 1 1", "list-of-one 10 1 1", "b 10 1 1"],
        ["list-of-one 10 1 1", "a 10 1 1", "b 10 1 1"],
        ["a 10 1 1", "b 10 1 1", "list-of-one 10 1 1"],
        // Denied by another bucket it would be an error all the same.
        ["a 10 1 10", "list-of-one 10 1 1", "b 10 1 1"],
    ] {
        assert_eq!(client.refusal(&words(&groups)), WRONG_TYPE);
    }
    assert_eq!(stored(&mut client, &["a", "b"]), before);
    assert_eq!(text(&client.say("GET list-of-one")), "x");
}

#[test]
fn a_bad_argument_in_the_middle_changes_nothing() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE a 10 1 4");
    let before = stored(&mut client, &["a", "b", "c"]);
    for (middle, first_word) in [
        ("b ten 1 1", "ERR capacity"),
        ("b 10 0 1", "ERR rate"),
        ("b 10 1 -1", "ERR cost"),
        ("b 1e12 1/d 1", "ERR refilling"),
    ] {
        let error = client.refusal(&words(&["a 10 1 1", middle, "c 10 1 1"]));
        assert!(error.starts_with(first_word), "{middle}: {error}");
    }
    assert_eq!(stored(&mut client, &["a", "b", "c"]), before);
}

#[test]
fn numkeys_is_the_number_of_groups_in_plain_digits() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let absurd = ["0", "-1", "1025", "2147483648", "4294967297", "18446744073709551617", "1e0", "1.0"];
    let not_plain = ["+1", "01", "one", "0x1", "1 ", " 1", "", "\u{661}", "1\0", "nan", "-0", "1e400"];
    for numkeys in absurd.into_iter().chain(not_plain) {
        let refused = client.try_run(&["TB.MTAKE", numkeys, "a", "10", "1", "1"]);
        assert_eq!(refused, Err(NUMKEYS.to_owned()), "{numkeys:?}");
    }
    for refused in [
        "TB.MTAKE 2 a 10 1 1",
        "TB.MTAKE 1024 a 10 1 1",
        "TB.MTAKE 1 a 10 1 1 b 10 1 1",
        "TB.MTAKE 1 a 10 1 1 b",
        "TB.MTAKE 2 a 10 1 1 b 10 1",
        "TB.MTAKE 1 a 10 1 1 1",
    ] {
        assert_eq!(client.refusal(refused), MISMATCH, "{refused}");
    }
    let arity = "ERR wrong number of arguments for 'tb.mtake' command";
    // Servers before 7.0 do not know that there are five at least, so the module says what is missing.
    let before_7 = [arity, NUMKEYS, MISMATCH];
    let expected = if server::is_before_7() { before_7 } else { [arity; 3] };
    for (refused, expected) in ["TB.MTAKE", "TB.MTAKE 0", "TB.MTAKE 1 a 10 1"].into_iter().zip(expected) {
        // 6.x repeats the name as it was sent.
        assert_eq!(client.refusal(refused).replace("TB.MTAKE", "tb.mtake"), expected);
    }
    assert_eq!(text(&client.say("DBSIZE")), "0");
}

#[test]
fn it_replies_the_same_in_transactions_scripts_and_resp3() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let call = "TB.MTAKE 2 a 10 1 3 b 20 1 3";
    let expected = multi_decision(&client.say(call));
    let forget = |client: &mut Connection| client.say("DEL a b");

    forget(&mut client);
    client.say("MULTI");
    client.say(call);
    client.say(call);
    let Value::Array(replies) = client.say("EXEC") else { panic!("no transaction") };
    assert_eq!(multi_decision(&replies[0]), expected);
    assert_eq!(multi_decision(&replies[1]).0, decided([1, 4, 0, 6000]));

    forget(&mut client);
    let script = "return redis.call('TB.MTAKE', 2, KEYS[1], 10, 1, 3, KEYS[2], 20, 1, 3)";
    assert_eq!(multi_decision(&client.run(&["EVAL", script, "2", "a", "b"])), expected);

    forget(&mut client);
    assert_eq!(multi_decision(&server.connect_resp3().say(call)), expected);
}

#[test]
fn command_getkeys_lists_the_key_of_every_group() {
    let server = Server::start();
    let mut client = server.connect();
    let mut keys_of = |command: &str| -> Vec<String> {
        let Value::Array(keys) = client.say(&format!("COMMAND GETKEYS {command}")) else {
            panic!("no keys of {command}")
        };
        keys.iter().map(text).collect()
    };
    assert_eq!(keys_of("TB.MTAKE 1 a 10 1 1"), ["a"]);
    assert_eq!(keys_of("TB.MTAKE 3 a 10 1 1 b 10 1 1 c 10 1 1"), ["a", "b", "c"]);
    for count in [100, 1024] {
        let listed = keys_of(&words(&borrowed(&many(count, "10 1 1"))));
        let all: Vec<_> = (0..count).map(|number| format!("key:{number}")).collect();
        assert_eq!(listed, all);
    }
}

/// A client that may call everything, on the keys of `patterns` only.
fn restricted(server: &Server, patterns: &str) -> Connection {
    let mut admin = server.connect();
    admin.say(&format!("ACL SETUSER limited reset on nopass +@all {patterns}"));
    let mut client = server.connect();
    client.say("AUTH limited any");
    client
}

#[test]
fn acl_key_patterns_cover_every_key() {
    let server = Server::start();
    let mut client = restricted(&server, "~a*");
    assert_eq!(take_all(&mut client, &["a1 10 1 1", "a2 10 1 1", "a3 10 1 1"]).0.allowed, 1);
    for groups in [
        ["b 10 1 1", "a2 10 1 1", "a3 10 1 1"],
        ["a1 10 1 1", "b 10 1 1", "a3 10 1 1"],
        ["a1 10 1 1", "a2 10 1 1", "b 10 1 1"],
    ] {
        let error = client.refusal(&words(&groups));
        assert!(error.starts_with("NOPERM"), "{groups:?}: {error}");
    }
    for count in [5, 100, 1024] {
        let mut groups: Vec<_> = (0..count).map(|number| format!("a{number} 10 1 1")).collect();
        groups[count - 1] = "b 10 1 1".to_owned();
        let error = client.refusal(&words(&borrowed(&groups)));
        assert!(error.starts_with("NOPERM"), "the last of {count}: {error}");
    }
    assert_eq!(text(&server.connect().say("EXISTS b")), "0");
}

#[test]
fn whatever_numkeys_says_no_key_slips_past_the_acl() {
    let server = Server::start();
    let mut client = restricted(&server, "~a*");
    for numkeys in ["1", "2", "02", "+2", "2e0", "2.0", "-2", "0", "", "3", "18446744073709551618"] {
        let arguments = ["TB.MTAKE", numkeys, "a", "10", "1", "1", "b", "10", "1", "1"];
        let refused = client.try_run(&arguments);
        assert!(refused.is_err(), "{numkeys:?}: {refused:?}");
    }
    assert_eq!(text(&server.connect().say("DBSIZE")), "0");
}

#[test]
fn a_user_who_may_only_read_or_only_write_a_key_may_not_take_from_it() {
    let server = Server::start();
    if server::is_before_7() {
        // Such permissions are new in 7.0.
        let refused = server.connect().refusal("ACL SETUSER limited on nopass +@all %R~a*");
        assert!(refused.starts_with("ERR Error in ACL SETUSER modifier '%R~a*'"), "{refused}");
        return;
    }
    for patterns in ["%R~a* %RW~b*", "%W~a* %RW~b*"] {
        let mut client = restricted(&server, patterns);
        assert_eq!(take_all(&mut client, &["b1 10 1 1", "b2 10 1 1"]).0.allowed, 1);
        let error = client.refusal(&words(&["b1 10 1 1", "a 10 1 1"]));
        assert!(error.starts_with("NOPERM"), "{patterns}: {error}");
    }
}

#[test]
fn out_of_memory_half_way_takes_from_none() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE old 10 1 4");
    client.decide("TB.TAKE also-old 10 1 4");
    client.say("CONFIG SET maxmemory 1");
    let keys = ["old", "new", "also-old"];
    let before = stored(&mut client, &keys);
    for groups in [
        ["old 10 1 1", "new 10 1 1", "also-old 10 1 1"],
        ["old 10 1 1", "also-old 10 1 1", "new 10 1 1"],
        ["new 10 1 1", "old 10 1 1", "also-old 10 1 1"],
    ] {
        assert_eq!(
            client.refusal(&words(&groups)),
            "OOM bucket not created: used memory > 'maxmemory' and tokenbucket.on-oom is 'deny'"
        );
        assert_eq!(stored(&mut client, &keys), before);
    }
    // What needs no new bucket goes on: those that exist, and a denial.
    assert_eq!(take_all(&mut client, &["old 10 1 1", "also-old 10 1 1"]).0, decided([1, 5, 0, 5000]));
    assert_eq!(take_all(&mut client, &["old 10 1 6", "new 10 1 1"]).0, decided([0, 5, 1000, 5000]));
    assert_eq!(client.state("new"), None);
}

#[test]
fn out_of_memory_and_told_to_allow_it_takes_from_those_that_exist() {
    let server = Server::builder().controlled_clock().module_arguments(&["on-oom", "allow"]).start();
    let mut client = server.connect();
    client.decide("TB.TAKE old 10 1 4");
    client.say("CONFIG SET maxmemory 1");
    for remaining in [5, 4] {
        let (binding, own) = take_all(&mut client, &["old 10 1 1", "new 20 1 15"]);
        assert_eq!(own[0].remaining, remaining);
        assert_eq!(own[1], decided([1, 5, 0, 15_000]));
        assert_eq!(binding.allowed, 1);
    }
    assert_eq!(client.state("old"), written_now(&server, "4"));
    assert_eq!(client.state("new"), None);
}

#[test]
fn a_clock_that_steps_back_locks_no_bucket() {
    let server = Server::with_clock();
    let mut client = server.connect();
    take_all(&mut client, &["a 10 1 9", "b 10 1 10"]);
    server.clock().advance_ms(-HOUR_MS);
    let groups = ["a 10 1 1", "b 10 1 1"];
    let (binding, own) = take_all(&mut client, &groups);
    assert_eq!(binding, decided([0, 0, 1000, 10_000]));
    assert_eq!(own, [[1, 1, 0, 9000], [0, 0, 1000, 10_000]].map(decided));
    server.clock().advance_ms(1000);
    assert_eq!(take_all(&mut client, &groups).0.allowed, 1);
    assert_eq!(client.state("b"), written_now(&server, "0"));
}

#[test]
fn a_bucket_that_another_client_filled_or_emptied_counts_as_it_is() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let mut other = server.connect();
    take_all(&mut client, &["a 10 1 10", "b 10 1 1"]);
    assert_eq!(take_all(&mut client, &["a 10 1 1", "b 10 1 1"]).0.allowed, 0);
    other.say("DEL a");
    assert_eq!(take_all(&mut client, &["a 10 1 1", "b 10 1 1"]).0.allowed, 1);
    other.decide("TB.CHARGE b 10 1 100");
    let told = decision(&other.say("TB.PEEK b 10 1 1"));
    assert_eq!(take_all(&mut client, &["a 10 1 1", "b 10 1 1"]).1[1], told);
}
