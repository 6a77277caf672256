//! Holds as a client sees them: tokens that are taken under a name, and come back by themselves.

use super::memory::settled_memory;
use crate::common::exact::{Holding, Limit};
use crate::common::stored::{
    append_only_bytes, follow, replicated_bytes, wait_until_replicated, with_append_only_file,
};
use crate::common::walk::{self, Walk};
use crate::common::{
    is_before, multi_decision, text, wait_until, Connection, Decision, Engine, Random, Server, HOUR_MS,
};
use redis::Value;
use tokenbucket::error::Error;

const DAY_MS: i64 = 24 * HOUR_MS;
/// `TB.HOLDS`: names, amounts, and milliseconds left.
fn holds(client: &mut Connection, key: &str) -> Vec<(String, String, i64)> {
    let Value::Array(list) = client.run(&["TB.HOLDS", key]) else { panic!("no holds") };
    let one = |hold: &Value| match hold {
        Value::Array(fields) => match fields.as_slice() {
            [id, amount, Value::Int(left_ms)] => (text(id), text(amount), *left_ms),
            other => panic!("no hold: {other:?}"),
        },
        other => panic!("no hold: {other:?}"),
    };
    list.iter().map(one).collect()
}

fn held(id: &str, amount: &str, left_ms: i64) -> (String, String, i64) {
    (id.to_owned(), amount.to_owned(), left_ms)
}

/// All that a client can see of a key.
type Seen = (Option<(String, i64)>, Vec<(String, String, i64)>, Option<i64>);

fn seen(client: &mut Connection, key: &str) -> Seen {
    (client.state(key), holds(client, key), client.expires_at_ms(key))
}

/// An id of 36 bytes, as UUIDs have.
fn uuid(number: usize) -> String {
    format!("{number:08x}-0000-4000-8000-{number:012}")
}

/// Many calls in one go.
fn send(client: &mut Connection, calls: impl Iterator<Item = String>) {
    let mut pipeline = redis::pipe();
    for call in calls {
        let mut words = call.split_whitespace();
        let mut command = redis::cmd(words.next().unwrap());
        for word in words {
            command.arg(word);
        }
        pipeline.add_command(command);
    }
    let _: Vec<Value> = pipeline.query(client.inner()).unwrap();
}

#[test]
fn what_is_held_is_taken_and_comes_back_at_its_moment() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.HOLD k 10 1/h 4 5000 a"), [1, 6, 0, 5000]);
    assert_eq!(holds(&mut client, "k"), [held("a", "4", 5000)]);
    assert_eq!(client.decide("TB.TAKE k 10 1/h 7"), [0, 6, 5000, 5000]);
    server.clock().advance_us(4_999_999);
    assert_eq!(client.decide("TB.PEEK k 10 1/h 7"), [0, 6, 1, 1]);
    assert_eq!(holds(&mut client, "k"), [held("a", "4", 1)]);
    server.clock().advance_us(1);
    assert_eq!(client.decide("TB.PEEK k 10 1/h 0"), [1, 10, 0, 0]);
    assert_eq!(holds(&mut client, "k"), []);
    assert_eq!(client.decide("TB.TAKE k 10 1/h 7"), [1, 3, 0, 7 * HOUR_MS]);
}

#[test]
fn what_comes_back_never_goes_above_the_capacity() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.HOLD k 10 1 4 60000 a");
    server.clock().advance_ms(4000);
    assert_eq!(client.decide("TB.TAKE k 10 1 10"), [1, 0, 0, 10_000]);
    server.clock().advance_ms(8000);
    // Eight have flowed in, and of the four that come back two find no room.
    assert_eq!(client.decide("TB.SETTLE k 10 1 a 0"), [1, 10, 0, 0]);
    assert_eq!(client.say("EXISTS k"), Value::Int(0));
}

#[test]
fn a_call_sent_twice_takes_nothing_more_and_starts_the_time_afresh() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.HOLD k 10 0 4 5000 a"), [1, 6, 0, 5000]);
    server.clock().advance_ms(3000);
    assert_eq!(client.decide("TB.HOLD k 10 0 4 5000 a"), [1, 6, 0, 5000]);
    assert_eq!(holds(&mut client, "k"), [held("a", "4", 5000)]);
    // Also when nothing is left for anybody else.
    client.decide("TB.HOLD k 10 0 6 60000 b");
    assert_eq!(client.decide("TB.HOLD k 10 0 4 9000 a"), [1, 0, 0, 60_000]);
    // And in debt.
    client.decide("TB.HOLD debt 10 1 4 5000 a");
    client.decide("TB.CHARGE debt 10 1 10");
    assert_eq!(client.decide("TB.HOLD debt 10 1 4 6000 a"), [1, -4, 0, 10_000]);
    assert_eq!(holds(&mut client, "debt"), [held("a", "4", 6000)]);
}

#[test]
fn larger_takes_the_difference_smaller_gives_it_back_and_zero_ends_it() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.HOLD k 10 0 4 5000 a"), [1, 6, 0, 5000]);
    assert_eq!(client.decide("TB.HOLD k 10 0 9.5 5000 a"), [1, 0, 0, 5000]);
    assert_eq!(holds(&mut client, "k"), [held("a", "9.5", 5000)]);
    assert_eq!(client.decide("TB.HOLD k 10 0 1 5000 a"), [1, 9, 0, 5000]);
    assert_eq!(client.decide("TB.HOLD k 10 0 2 5000 b"), [1, 7, 0, 5000]);
    assert_eq!(client.decide("TB.HOLD k 10 0 0 5000 a"), [1, 8, 0, 5000]);
    assert_eq!(holds(&mut client, "k"), [held("b", "2", 5000)]);
    assert_eq!(client.decide("TB.HOLD k 10 0 0 5000 b"), [1, 10, 0, 0]);
    assert_eq!(client.say("EXISTS k"), Value::Int(0));
    // Nothing to end.
    assert_eq!(client.decide("TB.HOLD k 10 0 0 5000 c"), [1, 10, 0, 0]);
    assert_eq!(client.say("EXISTS k"), Value::Int(0));
}

#[test]
fn denied_a_hold_stays_as_it_was_with_the_time_it_had() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.HOLD k 10 0 4 5000 a");
    client.decide("TB.HOLD k 10 0 5 60000 b");
    server.clock().advance_ms(1000);
    let before = seen(&mut client, "k");
    // It would have to wait for the other, whether or not its own has ended by then.
    assert_eq!(client.decide("TB.HOLD k 10 0 6 5000 a"), [0, 1, 59_000, 59_000]);
    assert_eq!(client.decide("TB.HOLD k 10 0 11 5000 a"), [0, 1, -1, 59_000]);
    assert_eq!(seen(&mut client, "k"), before);
    server.clock().advance_ms(58_999);
    assert_eq!(client.decide("TB.HOLD k 10 0 6 5000 a").allowed, 0);
    server.clock().advance_ms(1);
    assert_eq!(client.decide("TB.HOLD k 10 0 6 5000 a"), [1, 4, 0, 5000]);
}

#[test]
fn settled_what_was_not_used_comes_back_and_what_was_used_beyond_is_charged() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.HOLD k 100 1 40 60000 a");
    assert_eq!(client.decide("TB.SETTLE k 100 1 a 30"), [1, 70, 0, 30_000]);
    assert_eq!(holds(&mut client, "k"), []);
    client.decide("TB.HOLD k 100 1 70 60000 b");
    assert_eq!(client.decide("TB.SETTLE k 100 1 b 95"), [1, -25, 25_000, 125_000]);
    client.say("DEL k");
    client.decide("TB.HOLD k 100 1 40 60000 a");
    client.decide("TB.HOLD k 100 1 10 60000 b");
    // Out of debt when the other comes back.
    assert_eq!(client.decide("TB.SETTLE k 100 1e-3 a 95"), [1, -5, 60_000, 95_000_000]);
    assert_eq!(client.decide("TB.SETTLE k 100 1e-3 b 10").retry_after_ms, 5_000_000);
}

#[test]
fn settled_once_more_or_too_late_nothing_changes() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.SETTLE none 10 1 a 5"), [0, 10, -1, 0]);
    assert_eq!(client.say("EXISTS none"), Value::Int(0));
    client.decide("TB.HOLD k 10 1/h 4 5000 a");
    client.decide("TB.HOLD k 10 1/h 1 60000 b");
    client.decide("TB.SETTLE k 10 1/h b 1");
    let before = seen(&mut client, "k");
    assert_eq!(client.decide("TB.SETTLE k 10 1/h b 1"), [0, 5, -1, HOUR_MS]);
    assert_eq!(seen(&mut client, "k"), before);
    server.clock().advance_ms(5000);
    let before = seen(&mut client, "k");
    assert_eq!(client.decide("TB.SETTLE k 10 1/h a 4"), [0, 9, -1, HOUR_MS - 5000]);
    assert_eq!(seen(&mut client, "k"), before);
    assert_eq!(client.info("tokenbucket", "tokenbucket_settled_late"), "3");
    assert_eq!(client.info("tokenbucket", "tokenbucket_decisions_denied"), "0");
}

#[test]
fn waits_count_on_holds_that_will_expire_and_are_honest() {
    for count in [1, 1000] {
        let server = Server::with_clock();
        let mut client = server.connect();
        let capacity = count * 3;
        for rate in ["0", "0.5"] {
            client.say("FLUSHALL");
            // Ends that lie apart by odd times.
            send(
                &mut client,
                (0..count).map(|n| format!("TB.HOLD k {capacity} {rate} 3 {} {}", 10_000 + n * 37, uuid(n))),
            );
            for wanted in [1, capacity / 2, capacity] {
                for call in [
                    format!("TB.HOLD k {capacity} {rate} {wanted} 1000 new"),
                    format!("TB.PEEK k {capacity} {rate} {wanted}"),
                ] {
                    let told = client.decide(&call);
                    assert_eq!(told.allowed, 0, "{call}");
                    server.clock().advance_ms(told.retry_after_ms - 1);
                    let earlier = client.decide(&call);
                    assert_eq!((earlier.allowed, earlier.retry_after_ms), (0, 1), "{call} with {count}");
                    server.clock().advance_ms(1 - told.retry_after_ms);
                }
            }
            let call = format!("TB.HOLD k {capacity} {rate} {capacity} 1000 new");
            let told = client.decide(&call);
            assert_eq!(told.retry_after_ms, told.reset_after_ms);
            server.clock().advance_ms(told.retry_after_ms);
            assert_eq!(client.decide(&call).allowed, 1, "{call} with {count}");
        }
    }
}

#[test]
fn every_command_sees_what_is_held() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.HOLD k 10 1/h 8 5000 a");
    assert_eq!(client.decide("TB.TAKEUPTO k 10 1/h 9"), [2, 0, 0, 2 * HOUR_MS]);
    assert_eq!(client.decide("TB.RESERVE k 10 1/h 3 4999"), [0, 0, 5000, 2 * HOUR_MS]);
    assert_eq!(client.decide("TB.RESERVE k 10 1/h 3 5000"), [1, -3, 5000, 5 * HOUR_MS]);
    assert_eq!(client.decide("TB.CHARGE k 10 1/h 2"), [1, -5, 5000, 7 * HOUR_MS]);
    let (binding, _) = multi_decision(&client.say("TB.MTAKE 2 k 10 1/h 1 other 10 1/h 1"));
    assert_eq!(binding, [0, -5, 5000, 7 * HOUR_MS]);
    // Redis-cell's command counts in seconds.
    let throttled = crate::common::integers(&client.say("CL.THROTTLE k 9 1 3600 1"));
    assert_eq!(throttled, [1, 10, 0, 5, 7 * HOUR_MS / 1000]);
    // Full again, but something is held: it must not be forgotten.
    assert_eq!(client.decide("TB.GIVE k 10 1/h 10").remaining, 5);
    assert_eq!(client.decide("TB.GIVE k 10 1/h 10"), [1, 10, 0, 0]);
    assert_eq!(holds(&mut client, "k"), [held("a", "8", 5000)]);
    assert_eq!(client.decide("TB.SETTLE k 10 1/h a 9"), [1, 9, 0, HOUR_MS]);
}

#[test]
fn a_pool_is_a_semaphore_whose_slots_free_themselves() {
    let server = Server::with_clock();
    let mut client = server.connect();
    for job in 1..=3 {
        assert_eq!(client.decide(&format!("TB.HOLD jobs 3 0 1 60000 job:{job}")).remaining, 3 - job);
        server.clock().advance_ms(1000);
    }
    assert_eq!(client.decide("TB.HOLD jobs 3 0 1 60000 job:4"), [0, 0, 57_000, 59_000]);
    assert_eq!(client.decide("TB.PEEK jobs 3 0 2"), [0, 0, 58_000, 59_000]);
    assert_eq!(client.decide("TB.SETTLE jobs 3 0 job:2 0").remaining, 1);
    assert_eq!(client.decide("TB.HOLD jobs 3 0 1 60000 job:4").allowed, 1);
    server.clock().advance_ms(57_000);
    assert_eq!(client.decide("TB.HOLD jobs 3 0 1 60000 job:5").allowed, 1);
    // A larger pool has no more in it until it is given them.
    client.say("DEL jobs");
    client.decide("TB.HOLD jobs 1 0 1 60000 job:1");
    let told = client.decide("TB.PEEK jobs 3 0 2");
    assert_eq!((told.allowed, told.remaining, told.retry_after_ms), (0, 0, -1));
    assert!(told.reset_after_ms > 1 << 50, "{told:?}");
    client.decide("TB.GIVE jobs 3 0 2");
    assert_eq!(client.decide("TB.PEEK jobs 3 0 0"), [1, 2, 0, 60_000]);
}

#[test]
fn what_cannot_be_is_an_error_and_changes_nothing() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.say("SET text v");
    client.decide("TB.HOLD k 10 1 4 60000 a");
    client.decide("TB.HOLD zero 10 0 4 60000 a");
    let before = [seen(&mut client, "k"), seen(&mut client, "zero")];
    let long = "x".repeat(129);
    for (call, error) in [
        ("TB.HOLD k ten 1 1 5 b", Error::Capacity),
        ("TB.HOLD k 10 1 -1 5 b", Error::Amount),
        ("TB.HOLD k 10 1 1 0 b", Error::Ttl),
        ("TB.HOLD k 10 1 1 2592000001 b", Error::Ttl),
        ("TB.HOLD k 10 1 1 1.5 b", Error::Ttl),
        (&format!("TB.HOLD k 10 1 1 5 {long}"), Error::Id),
        (&format!("TB.SETTLE k 10 1 {long} 1"), Error::Id),
        ("TB.SETTLE k 10 1 a x", Error::Used),
        ("TB.SETTLE zero 10 0 a 1", Error::UsedOfPool),
        ("TB.HOLD text 10 1 1 5 b", Error::WrongType),
        ("TB.SETTLE text 10 1 b 1", Error::WrongType),
        ("TB.HOLDS text", Error::WrongType),
        ("TB.TAKE zero 10 0 1", Error::RateOfPool),
        ("TB.TAKE zero 10 0.00 1", Error::RateOfPool),
        ("TB.TAKEUPTO zero 10 0 1", Error::RateOfPool),
        ("TB.RESERVE zero 10 0 1 1", Error::RateOfPool),
        ("TB.CHARGE zero 10 0 1", Error::RateOfPool),
        ("TB.MTAKE 2 k 10 1 1 zero 10 0 1", Error::RateOfPool),
        ("TB.MHOLD 2 5 b k 10 1 1 text 10 1 1", Error::WrongType),
        ("TB.MHOLD 2 5 b k 10 1 1 k 10 1 1", Error::DuplicateKey),
        ("TB.MHOLD 2 5 b k 10 1 1 z", Error::NumKeysOfAmounts),
        ("TB.MSETTLE 2 b k 10 1 1 z", Error::NumKeysOfUsed),
    ] {
        assert_eq!(client.refusal(call), error.to_string(), "{call}");
    }
    client.run(&["TB.HOLD", "k", "10", "1", "1", "5", &"x".repeat(128)]);
    client.run(&["TB.SETTLE", "k", "10", "1", &"x".repeat(128), "0"]);
    assert_eq!(
        client.try_run(&["TB.HOLD", "k", "10", "1", "1", "5", ""]).unwrap_err(),
        Error::Id.to_string()
    );
    assert_eq!([seen(&mut client, "k"), seen(&mut client, "zero")], before);
}

#[test]
fn used_may_not_take_the_bucket_into_the_deepest_debt() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.HOLD k 10 1 4 60000 a");
    client.decide("TB.CHARGE k 10 1 6");
    client.decide("TB.CHARGE k 10 1 5");
    let before = seen(&mut client, "k");
    assert_eq!(client.refusal("TB.SETTLE k 10 1 a 1e12"), Error::DebtTooDeep.to_string());
    assert_eq!(client.refusal("TB.MSETTLE 2 a other 10 1 1 k 10 1 1e12"), Error::DebtTooDeep.to_string());
    assert_eq!(seen(&mut client, "k"), before);
    assert_eq!(client.decide("TB.SETTLE k 10 1 a 999999999999").remaining, -1_000_000_000_000);
}

#[test]
fn one_hold_over_several_buckets_is_all_or_nothing() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let (binding, own) = multi_decision(&client.say("TB.MHOLD 2 5000 x a 10 1/h 4 b 5 0 3"));
    assert_eq!(own, [[1, 6, 0, 5000], [1, 2, 0, 5000]]);
    assert_eq!(binding, [1, 2, 0, 5000]);
    let before = [seen(&mut client, "a"), seen(&mut client, "b")];
    let (binding, own) = multi_decision(&client.say("TB.MHOLD 2 9000 y a 10 1/h 4 b 5 0 3"));
    assert_eq!(own, [[1, 6, 0, 5000], [0, 2, 5000, 5000]]);
    assert_eq!(binding, [0, 2, 5000, 5000]);
    assert_eq!([seen(&mut client, "a"), seen(&mut client, "b")], before);
    // Sent twice, and to other amounts.
    assert_eq!(multi_decision(&client.say("TB.MHOLD 2 5000 x a 10 1/h 4 b 5 0 3")).0, [1, 2, 0, 5000]);
    assert_eq!(multi_decision(&client.say("TB.MHOLD 2 5000 x a 10 1/h 5 b 5 0 1")).0, [1, 4, 0, 5000]);
    // Settled wherever it is there.
    client.decide("TB.SETTLE a 10 1/h x 5");
    let (binding, own) = multi_decision(&client.say("TB.MSETTLE 3 x a 10 1/h 5 b 5 0 0 c 9 1 2"));
    assert_eq!(own, [[0, 5, -1, 5 * HOUR_MS], [1, 5, 0, 0], [0, 9, -1, 0]]);
    assert_eq!(binding, [0, 5, -1, 5 * HOUR_MS]);
    assert_eq!(client.say("EXISTS b c"), Value::Int(0));
}

/// A hold of more than the capacity, which was larger, can grow only while it lasts.
#[test]
fn a_wait_beyond_the_end_of_what_is_above_the_capacity_never_helps() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.HOLD k 10 1 8 5000 a");
    client.decide("TB.TAKE k 10 1 2");
    // Two more are there in 2 seconds, three in 3. But ten are never there at once under a capacity of 4.
    assert_eq!(client.decide("TB.HOLD k 4 1 10 9000 a").retry_after_ms, 2000);
    assert_eq!(client.decide("TB.HOLD k 4 0.1 10 9000 a").retry_after_ms, -1);
    let (binding, _) = multi_decision(&client.say("TB.MHOLD 1 9000 a k 4 1 10"));
    assert_eq!(binding.retry_after_ms, 2000);
    client.decide("TB.TAKE slow 10 0.1 10");
    let (binding, own) = multi_decision(&client.say("TB.MHOLD 2 9000 a k 4 1 10 slow 10 0.1 1"));
    assert_eq!((own[0].retry_after_ms, own[1].retry_after_ms, binding.retry_after_ms), (2000, 10_000, -1));
}

#[test]
fn a_bucket_has_at_most_max_holds_holds() {
    let server = Server::builder().controlled_clock().module_arguments(&["max-holds", "3"]).start();
    let mut client = server.connect();
    for id in ["a", "b", "c"] {
        client.decide(&format!("TB.HOLD k 10 0 1 5000 {id}"));
    }
    assert_eq!(client.refusal("TB.HOLD k 10 0 1 5000 d"), Error::TooManyHolds.to_string());
    assert_eq!(client.refusal("TB.MHOLD 2 5000 d other 10 0 1 k 10 0 1"), Error::TooManyHolds.to_string());
    assert_eq!(client.say("EXISTS other"), Value::Int(0));
    assert_eq!(client.decide("TB.HOLD k 10 0 2 6000 a").allowed, 1);
    assert_eq!(client.decide("TB.HOLD k 10 0 0 6000 d").allowed, 1);
    // Two have ended.
    server.clock().advance_ms(5000);
    assert_eq!(client.decide("TB.HOLD k 10 0 1 5000 d").allowed, 1);
    assert_eq!(client.decide("TB.HOLD k 10 0 1 5000 e").allowed, 1);
    assert_eq!(client.refusal("TB.HOLD k 10 0 1 5000 f"), Error::TooManyHolds.to_string());
    if !is_before(7, 0) {
        assert!(client.refusal("CONFIG SET tokenbucket.max-holds 0").starts_with("ERR"));
        client.say("CONFIG SET tokenbucket.max-holds 4");
        assert_eq!(client.decide("TB.HOLD k 10 0 1 5000 f").allowed, 1);
    }
    let refused = Server::builder().module_arguments(&["max-holds", "many"]).start_expecting_refusal();
    assert!(
        refused.contains("'max-holds' must be a whole number from 1 to 1000000, not 'many'"),
        "{refused}"
    );
}

#[test]
fn over_maxmemory_no_hold_is_made_but_every_one_can_be_renewed_and_settled() {
    for on_oom in ["deny", "allow"] {
        let server = Server::builder().controlled_clock().module_arguments(&["on-oom", on_oom]).start();
        let mut client = server.connect();
        client.decide("TB.HOLD k 10 0 4 5000 a");
        client.say("CONFIG SET maxmemory 1");
        for (key, remaining) in [("k", 3), ("new", 7)] {
            let call = format!("TB.HOLD {key} 10 0 3 5000 b");
            if on_oom == "deny" {
                assert_eq!(client.refusal(&call), Error::OutOfMemory.to_string());
                assert_eq!(
                    client.refusal(&format!("TB.MHOLD 1 5000 b {key} 10 0 3")),
                    Error::OutOfMemory.to_string()
                );
            } else {
                assert_eq!(client.decide(&call).remaining, remaining);
                assert_eq!(client.decide(&call).remaining, remaining);
            }
        }
        assert_eq!(holds(&mut client, "k"), [held("a", "4", 5000)]);
        assert_eq!(client.say("EXISTS new"), Value::Int(0));
        // What is denied needs no memory.
        assert_eq!(client.decide("TB.HOLD k 10 0 7 5000 b").allowed, 0);
        assert_eq!(client.decide("TB.HOLD k 10 0 6 6000 a").remaining, 4);
        assert_eq!(client.decide("TB.HOLD k 10 0 1 6000 a").remaining, 9);
        assert_eq!(client.decide("TB.SETTLE k 10 0 a 0"), [1, 10, 0, 0]);
    }
}

#[test]
fn the_key_stays_until_the_bucket_is_full_and_its_last_hold_is_over() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let now_ms = |server: &Server| server.clock().now_us() / 1000;
    // Full long before the hold is over.
    client.decide("TB.HOLD k 10 1 4 3600000 a");
    let expires_at_ms = client.expires_at_ms("k").unwrap();
    assert!(expires_at_ms >= now_ms(&server) + HOUR_MS);
    assert!(expires_at_ms <= now_ms(&server) + HOUR_MS + HOUR_MS / 4 + 1001);
    server.clock().advance_ms(HOUR_MS - 1);
    assert_eq!(client.decide("TB.TAKE k 10 1 1").remaining, 9);
    assert_eq!(holds(&mut client, "k"), [held("a", "4", 1)]);
    // Full long after the hold is over.
    client.decide("TB.TAKE late 10 1/h 9");
    client.decide("TB.HOLD late 10 1/h 1 1000 a");
    assert!(client.expires_at_ms("late").unwrap() >= now_ms(&server) + 9 * HOUR_MS);
    // A renewal lengthens.
    client.decide("TB.HOLD k 10 1 4 2592000000 a");
    assert!(client.expires_at_ms("k").unwrap() >= now_ms(&server) + 30 * DAY_MS);
}

#[test]
fn a_clock_that_steps_back_lengthens_holds_and_makes_no_tokens() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.HOLD k 10 0 4 5000 a");
    client.decide("TB.HOLD k 10 0 5 9000 b");
    server.clock().advance_ms(6000);
    // The first has ended, and lies there; denied after a step back, the bucket is dated anew.
    server.clock().advance_ms(-3000);
    assert_eq!(client.decide("TB.PEEK k 10 0 2"), [0, 1, 2000, 6000]);
    server.clock().advance_ms(-10_000);
    assert_eq!(client.decide("TB.HOLD k 10 0 2 1000 c"), [0, 1, 12_000, 16_000]);
    server.clock().advance_ms(12_000);
    assert_eq!(client.decide("TB.HOLD k 10 0 5 1000 c"), [1, 0, 0, 4000]);
}

/// What a script does happens at one moment, on servers of today; so do thousands of holds that end together.
#[test]
fn many_holds_end_at_one_moment() {
    let server = Server::with_clock();
    let mut client = server.connect();
    send(&mut client, (0..5000).map(|n| format!("TB.HOLD k 5000 0 1 5000 {}", uuid(n))));
    assert_eq!(holds(&mut client, "k").len(), 5000);
    assert_eq!(client.decide("TB.HOLD k 5000 0 1 5000 more"), [0, 0, 5000, 5000]);
    send(&mut client, (0..5000).step_by(2).map(|n| format!("TB.SETTLE k 5000 0 {} 0", uuid(n))));
    assert_eq!(holds(&mut client, "k").len(), 2500);
    server.clock().advance_ms(5000);
    assert_eq!(client.decide("TB.HOLD k 5000 0 5000 5000 all"), [1, 0, 0, 5000]);
    assert_eq!(client.info("tokenbucket", "tokenbucket_holds"), "1");
    assert_eq!(client.info("tokenbucket", "tokenbucket_holds_expired"), "2500");
}

#[test]
fn info_counts_holds_and_those_that_expired() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let count = |client: &mut Connection| {
        ["holds", "holds_expired", "settled_late"]
            .map(|field| client.info("tokenbucket", &format!("tokenbucket_{field}")))
    };
    client.decide("TB.HOLD k 10 0 1 5000 a");
    client.decide("TB.HOLD k 10 0 1 5000 b");
    client.decide("TB.HOLD k 10 0 1 60000 c");
    client.decide("TB.HOLD other 10 0 1 60000 a");
    assert_eq!(count(&mut client), ["4", "0", "0"]);
    let bytes: u64 = client.info("tokenbucket", "tokenbucket_bucket_bytes").parse().unwrap();
    assert!(bytes > 200, "{bytes}");
    client.decide("TB.SETTLE k 10 0 a 0");
    server.clock().advance_ms(5000);
    client.decide("TB.SETTLE k 10 0 b 0");
    client.decide("TB.HOLD k 10 0 1 5000 d");
    assert_eq!(count(&mut client), ["3", "1", "1"]);
    client.say("DEL other");
    client.say("FLUSHALL");
    wait_until("all is freed", || count(&mut client) == ["0", "1", "1"]);
    assert_eq!(client.info("tokenbucket", "tokenbucket_bucket_bytes"), "0");
}

#[test]
fn events_tell_of_holds() {
    if !Engine::under_test().has_what_redis_has_from(6, 2) {
        return; // Redis 6.0 has no class of events for modules.
    }
    let server = Server::with_clock();
    let mut client = server.connect();
    client.say("CONFIG SET notify-keyspace-events Ed");
    let mut subscriber = server.connect();
    let mut events = subscriber.inner().as_pubsub();
    events.psubscribe("__keyevent@0__:tb.*").unwrap();
    for call in [
        "TB.HOLD k 10 0 4 5000 a",
        "TB.HOLD k 10 0 4 5000 a",
        "TB.HOLD k 10 0 7 5000 b",
        "TB.HOLD k 10 0 0 5000 none",
        "TB.SETTLE k 10 0 a 0",
        "TB.SETTLE k 10 0 a 0",
        "TB.MHOLD 2 5000 x k 10 0 1 l 10 0 11",
        "TB.MHOLD 2 5000 x k 10 0 1 l 10 0 10",
        "TB.HOLD l 10 0 0 5000 x",
    ] {
        client.say(call);
    }
    let mut told = || {
        let message = events.get_message().unwrap();
        let event = message.get_channel_name().rsplit(':').next().unwrap().to_owned();
        (event, message.get_payload::<String>().unwrap())
    };
    for (event, key) in [
        ("tb.hold", "k"),
        ("tb.hold", "k"),
        ("tb.deny", "k"),
        ("tb.settle", "k"),
        ("tb.deny", "l"),
        ("tb.hold", "k"),
        ("tb.hold", "l"),
        ("tb.hold", "l"),
    ] {
        assert_eq!(told(), (event.to_owned(), key.to_owned()));
    }
}

#[test]
fn servers_find_the_keys_of_one_hold_over_several_buckets() {
    let server = Server::start();
    let mut client = server.connect();
    let keys = |client: &mut Connection, call: &str| {
        let Value::Array(keys) = client.say(&format!("COMMAND GETKEYS {call}")) else { panic!("no keys") };
        keys.iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(keys(&mut client, "TB.MHOLD 3 5 id a 1 1 1 b 1 1 1 c 1 1 1"), ["a", "b", "c"]);
    assert_eq!(keys(&mut client, "TB.MSETTLE 3 id a 1 1 1 b 1 1 1 c 1 1 1"), ["a", "b", "c"]);
    assert_eq!(keys(&mut client, "TB.HOLD a 1 1 1 5 id"), ["a"]);
    assert_eq!(keys(&mut client, "TB.SETTLE a 1 1 id 1"), ["a"]);
    assert_eq!(keys(&mut client, "TB.HOLDS a"), ["a"]);
    client.say("ACL SETUSER alice on nopass +@all ~mine:*");
    client.say("AUTH alice any");
    for call in [
        "TB.MHOLD 2 5 id mine:1 9 1 1 other 9 1 1",
        "TB.MSETTLE 2 id mine:1 9 1 1 other 9 1 1",
        "TB.HOLDS other",
    ] {
        assert!(client.refusal(call).starts_with("NOPERM"), "{call}");
    }
    client.say("TB.MHOLD 2 5 id mine:1 9 1 1 mine:2 9 1 1");
}

/// Holds in every state that the commands bring about.
fn fill(client: &mut Connection, server: &Server) {
    send(
        client,
        (0..300).map(|n| format!("TB.HOLD many 1000 0 {} {} {}", 1 + n % 3, 5000 + n * 100, uuid(n))),
    );
    send(client, (0..300).step_by(3).map(|n| format!("TB.SETTLE many 1000 0 {} 0", uuid(n))));
    for call in [
        "TB.HOLD renewed 10 1/h 4 5000 a",
        "TB.HOLD renewed 10 1/h 5.000001 9000 a",
        "TB.TAKE renewed 10 1/h 2",
        "TB.HOLD once 10 1/h 4 5000 a",
        "TB.SETTLE once 10 1/h a 3",
        "TB.HOLD debt 10 1/h 4 5000 a",
        "TB.SETTLE debt 10 1/h a 30",
        "TB.HOLD debt 10 1/h 0.0 5000 b",
        "TB.MHOLD 2 60000 m {m}a 10 1/h 4 {m}b 10 0 3",
        "TB.MHOLD 2 60000 n {m}a 10 1/h 1 {m}b 10 0 8",
        "TB.HOLD gone 10 0 1 5000 a",
        "TB.HOLD gone 10 0 0 5000 a",
        "MULTI",
        "TB.HOLD tx 10 1/h 4 50000 a",
        "TB.MSETTLE 2 m {m}a 10 1/h 4 {m}b 10 0 0",
        "TB.HOLD tx 10 1/h 4 50000 b",
        "EXEC",
    ] {
        client.say(call);
    }
    client.run(&[b"TB.HOLD".as_slice(), b"any", b"10", b"0", b"1", b"50000", b"\0\xff\r\n"]);
    // A third of the many have ended, and nobody has looked since; or somebody has.
    server.clock().advance_ms(15_000);
    client.say("TB.TAKE renewed 10 1/h 1");
    client.say("TB.HOLD many 1000 0 1 70000 last");
}

const KEYS: [&str; 9] = ["many", "renewed", "once", "debt", "{m}a", "{m}b", "gone", "tx", "any"];

/// Everything that can be seen, and the digest over what cannot.
fn everything(client: &mut Connection) -> (Vec<Seen>, String) {
    let seen = KEYS.iter().map(|key| seen(client, key)).collect();
    (seen, text(&client.say("DEBUG DIGEST")))
}

#[test]
fn a_replica_has_every_hold_also_after_its_promotion() {
    let quiet = || Server::builder().option("repl-diskless-sync-delay", 0).controlled_clock();
    let (master, late) = (quiet().start(), quiet());
    let replica = quiet().clock_of(&master).start();
    follow(&replica, &master);
    let mut client = master.connect();
    fill(&mut client, &master);
    wait_until_replicated(&replica, &master);
    assert_eq!(everything(&mut replica.connect()), everything(&mut client));
    let late = late.clock_of(&master).start();
    follow(&late, &replica);
    wait_until_replicated(&late, &master);
    assert_eq!(everything(&mut late.connect()), everything(&mut client));
    let mut promoted = replica.connect();
    assert!(promoted.refusal("TB.HOLD many 1000 0 1 5000 x").starts_with("READONLY"));
    promoted.say("REPLICAOF NO ONE");
    for call in ["TB.SETTLE renewed 10 1/h a 1", "TB.HOLD many 1000 0 9 5000 x", "TB.PEEK many 1000 0 1000"] {
        assert_eq!(promoted.decide(call), client.decide(call), "{call}");
    }
    master.clock().advance_ms(20_000);
    assert_eq!(
        promoted.decide("TB.HOLD many 1000 0 400 5000 y"),
        client.decide("TB.HOLD many 1000 0 400 5000 y")
    );
    assert_eq!(
        promoted.info("tokenbucket", "tokenbucket_holds"),
        client.info("tokenbucket", "tokenbucket_holds")
    );
}

#[test]
fn files_bring_back_every_hold() {
    for preamble in ["yes", "no"] {
        let mut server = with_append_only_file(preamble).start();
        fill(&mut server.connect(), &server);
        let expected = everything(&mut server.connect());
        server.kill_and_restart();
        assert_eq!(everything(&mut server.connect()), expected, "the calls' effects, {preamble}");
        let mut client = server.connect();
        client.say("BGREWRITEAOF");
        wait_until("it is rewritten", || {
            server.clock().advance_ms(1);
            client.info("persistence", "aof_rewrite_in_progress") == "0"
                && client.info("persistence", "aof_rewrite_scheduled") == "0"
        });
        let expected = everything(&mut client);
        server.kill_and_restart();
        assert_eq!(everything(&mut server.connect()), expected, "a rewrite, {preamble}");
    }
    let mut server = Server::with_clock();
    fill(&mut server.connect(), &server);
    let expected = everything(&mut server.connect());
    server.connect().say("DEBUG RELOAD");
    assert_eq!(everything(&mut server.connect()), expected, "DEBUG RELOAD");
    server.restart(true);
    assert_eq!(everything(&mut server.connect()), expected, "SHUTDOWN SAVE");
}

fn dump(client: &mut Connection, key: &str) -> Vec<u8> {
    match client.run(&["DUMP", key]) {
        Value::BulkString(bytes) => bytes,
        other => panic!("no dump: {other:?}"),
    }
}

#[test]
fn copies_and_renamed_keys_have_every_hold() {
    let server = Server::with_clock();
    let mut client = server.connect();
    fill(&mut client, &server);
    for key in ["many", "renewed", "any", "once"] {
        let (state, held, expires_at_ms) = seen(&mut client, key);
        let expires_in_ms = expires_at_ms.unwrap() - server.clock().now_us() / 1000;
        let payload = dump(&mut client, key);
        client.run(&[b"RESTORE".as_slice(), b"restored", expires_in_ms.to_string().as_bytes(), &payload]);
        assert_eq!(seen(&mut client, "restored"), (state.clone(), held.clone(), expires_at_ms), "{key}");
        assert_eq!(dump(&mut client, "restored"), payload);
        if client.has_command("copy") {
            client.run(&["COPY", key, "copied"]);
            assert_eq!(seen(&mut client, "copied"), (state.clone(), held.clone(), expires_at_ms), "{key}");
            client.say("UNLINK copied");
        }
        client.run(&["RENAME", key, "renamed"]);
        assert_eq!(seen(&mut client, "renamed"), (state, held, expires_at_ms), "{key}");
        client.say("DEL restored renamed");
    }
}

/// Files of buckets that never had a hold, or have none any more, are those of a module that knows none.
#[test]
fn without_holds_a_payload_is_what_it_always_was() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let version = |payload: &[u8]| payload[payload.len() - 10..payload.len() - 8].to_vec();
    client.decide("TB.TAKE k 10 1/h 3");
    let payload = dump(&mut client, "k");
    let eight_bytes = |number: i64| [&[2, 0x81], number.to_be_bytes().as_slice()].concat();
    let expected = [eight_bytes(7_000_000)[..1].to_vec()].concat();
    assert_eq!(payload[10], expected[0]);
    // A byte for "a module's value", nine for its name and version, then level and time as the server writes integers.
    let time = eight_bytes(server.clock().now_us());
    let level = [vec![2, 0x80], 7_000_000u32.to_be_bytes().to_vec()].concat();
    let value = [&payload[..10], &level, &time, &[0], &version(&payload)].concat();
    assert_eq!(payload[..payload.len() - 8], value);
    client.decide("TB.HOLD k 10 1/h 3 5000 a");
    assert_ne!(dump(&mut client, "k").len(), payload.len());
    client.decide("TB.SETTLE k 10 1/h a 0");
    assert_eq!(dump(&mut client, "k"), payload);
}

/// The checksum of payloads: 64 bits, reflected, of the polynomial that Jones chose.
fn crc64(bytes: &[u8]) -> u64 {
    const REFLECTED: u64 = 0x95ac_9329_ac4b_c9b5;
    let shift = |crc: u64| (crc >> 1) ^ if crc & 1 == 1 { REFLECTED } else { 0 };
    bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ u64::from(*byte), |crc, _| shift(crc)))
}

#[test]
fn hostile_payloads_are_refused_or_are_buckets() {
    const ROUNDS: u32 = 3000;
    let mut server = Server::with_clock();
    let mut client = server.connect();
    if client.info("server", "redis_version").starts_with("6.0.") {
        return; // Ends itself, in good order, when any module refuses a payload.
    }
    for id in ["a", "b", "some-longer-name"] {
        client.decide(&format!("TB.HOLD k 10 0 1 5000 {id}"));
    }
    let payload = dump(&mut client, "k");
    let body = payload.len() - 8;
    let mut random = Random::new(7);
    let mut below = |bound: usize| usize::try_from(random.next() % bound as u64).unwrap();
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..ROUNDS {
        let mut hostile = payload[..body].to_vec();
        for _ in 0..=below(3) {
            let at = 10 + below(body - 12);
            hostile[at] = u8::try_from(below(256)).unwrap();
        }
        let checksum = crc64(&hostile);
        hostile.extend(checksum.to_le_bytes());
        match client.try_run(&[b"RESTORE".as_slice(), b"hostile", b"0", &hostile]) {
            Err(error) => {
                assert_eq!(error, "ERR Bad data format");
                refused += 1;
            }
            Ok(_) => {
                taken += 1;
                for (_, amount, left_ms) in holds(&mut client, "hostile") {
                    assert!(!amount.starts_with('-') && left_ms > 0);
                }
                client.decide("TB.PEEK hostile 10 1 3");
                client.say("TB.HOLD hostile 10 1 1 5000 new");
                client.say("DEL hostile");
            }
        }
    }
    assert!(taken > 100 && refused > 100, "{taken} taken, {refused} refused");
    assert_eq!(client.info("tokenbucket", "tokenbucket_holds"), "3");
    server.restart(false);
}

#[test]
fn hostile_effects_are_refused() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let fields = |version: u8, numbers: &[i64]| {
        [vec![version], numbers.iter().flat_map(|number| number.to_le_bytes()).collect()].concat()
    };
    let head = || fields(2, &[5_000_000, 0, -1, 0]);
    let set = |end: i64, amount: i64, id: &[u8]| {
        let len = u8::try_from(id.len()).unwrap();
        [&[1u8][..], &end.to_le_bytes(), &amount.to_le_bytes(), &[len], id].concat()
    };
    let future_us = server.clock().now_us() + 5_000_000;
    let good = [head(), set(future_us, 2_000_000, b"a"), vec![2, 1, b'z']].concat();
    client.run(&[b"TB.RESTORE".as_slice(), b"k", &good]);
    assert_eq!(holds(&mut client, "k"), [held("a", "2", 5000)]);
    let bad = [
        fields(2, &[5_000_000, 0, -1]),
        fields(2, &[5_000_000, 0, -1, -1]),
        fields(2, &[5_000_000, 0, -1, i64::MAX]),
        fields(3, &[5_000_000, 0, -1, 0]),
        fields(1, &[5_000_000, 0, -1, 0]),
        vec![2],
        [head(), vec![1]].concat(),
        [head(), vec![2, 0]].concat(),
        [head(), vec![2, 2, b'z']].concat(),
        [head(), vec![3, 1, b'z']].concat(),
        [head(), set(future_us, 0, b"a")].concat(),
        [head(), set(future_us, -1, b"a")].concat(),
        [head(), set(-1, 1, b"a")].concat(),
        [head(), set(i64::MAX, 1, b"a")].concat(),
        [head(), set(future_us, 1, b"")].concat(),
        [head(), set(future_us, 1, &[b'x'; 129])].concat(),
        good[..good.len() - 1].to_vec(),
    ];
    for effect in bad {
        let refused = client.try_run(&[b"TB.RESTORE".as_slice(), b"k", &effect]).unwrap_err();
        assert_eq!(refused, "ERR state must be a bucket state as this module replicates it", "{effect:?}");
    }
    assert_eq!(holds(&mut client, "k"), [held("a", "2", 5000)]);
    // One of a bucket without holds replaces all.
    client.run(&[b"TB.RESTORE".as_slice(), b"k", &fields(1, &[3_000_000, 0, -1])]);
    assert_eq!(seen(&mut client, "k"), (Some(("3".to_owned(), 0)), vec![], None));
}

#[test]
fn what_is_replicated_does_not_grow_with_the_number_of_holds() {
    let server = with_append_only_file("no").start();
    let mut client = server.connect();
    let bytes_of = |client: &mut Connection, call: &str| {
        let before = append_only_bytes(client);
        client.say(call);
        append_only_bytes(client) - before
    };
    let mut costs = Vec::new();
    for many in [1, 1000] {
        send(&mut client, (0..many).map(|n| format!("TB.HOLD k 10000 0 1 60000 {}", uuid(n))));
        costs.push(
            [
                "TB.HOLD k 10000 0 1 60000 x",
                "TB.HOLD k 10000 0 2 60000 x",
                "TB.SETTLE k 10000 0 x 0",
                "TB.GIVE k 10000 0 0.5",
            ]
            .map(|call| bytes_of(&mut client, call)),
        );
    }
    assert_eq!(costs[0], costs[1]);
    assert!(costs[0].iter().all(|bytes| *bytes < 150), "{costs:?}");
    // Denied, nothing is sent.
    assert_eq!(bytes_of(&mut client, "TB.HOLD k 10000 0 10000 60000 x"), 0);
    assert_eq!(bytes_of(&mut client, "TB.SETTLE k 10000 0 none 0"), 0);
}

#[test]
fn a_hold_costs_at_most_150_bytes() {
    let server = Server::start();
    let mut client = server.connect();
    let fill = |count: i64| {
        // A client of its own, whose buffers go with it.
        let call = |n| format!("TB.HOLD k 1e6 0 1 {} {}", 3_600_000 + n * 7919 % 10_000, uuid(n));
        send(&mut server.connect(), (0..usize::try_from(count).unwrap()).map(call));
    };
    // The first time, the server makes room for what it keeps.
    fill(10_000);
    client.say("DEL k");
    let empty = settled_memory(&mut client);
    for count in [1000, 10_000] {
        fill(count);
        let said = client.info("tokenbucket", "tokenbucket_bucket_bytes").parse::<i64>().unwrap() / count;
        let each = (settled_memory(&mut client) - empty) / count;
        println!("{:?}: {count} holds of {each} bytes each, {said} by INFO", Engine::under_test());
        assert!(each <= 150, "{each} bytes a hold");
        assert!(
            (each * 7 / 10..=each * 11 / 10).contains(&said),
            "{said} bytes a hold by INFO, {each} in truth"
        );
        client.say("DEL k");
        // All of it comes back.
        let left = settled_memory(&mut client) - empty;
        assert!(left < 20_000, "{left} bytes are gone with {count} holds");
    }
}

/// Nobody sees a difference between a bucket of many holds and the same one, saved and restored, at any moment.
#[test]
fn a_random_walk_is_the_same_on_a_replica() {
    let master = Server::builder().option("repl-diskless-sync-delay", 0).controlled_clock().start();
    let replica = Server::builder().clock_of(&master).start();
    follow(&replica, &master);
    let mut client = master.connect();
    let mut random = Random::new(3);
    for _ in 0..400 {
        let mut below = |bound: u64| random.next() % bound;
        let (id, amount, ttl_ms) = (below(40), below(9), 1 + below(20_000));
        let call = match below(8) {
            0..4 => format!("TB.HOLD k 50 0.5 {amount} {ttl_ms} {id}"),
            4 | 5 => format!("TB.SETTLE k 50 0.5 {id} {amount}"),
            6 => format!("TB.TAKE k 50 0.5 {amount}"),
            _ => format!("TB.GIVE k 50 0.5 {amount}"),
        };
        client.say(&call);
        master.clock().advance_us(i64::try_from(below(700_000)).unwrap());
    }
    assert!(replicated_bytes(&mut client) > 0);
    wait_until_replicated(&replica, &master);
    assert_eq!(seen(&mut replica.connect(), "k"), seen(&mut client, "k"));
    assert_eq!(text(&replica.connect().say("DEBUG DIGEST")), text(&client.say("DEBUG DIGEST")));
}

/// Any call on holds, among all others, each judged by the exact model, with clocks that step both ways.
#[test]
fn no_token_is_lost_or_won_by_holds_under_any_limit() {
    const KEYS: u64 = 100;
    const CALLS: u64 = 40;
    let server = Server::with_clock();
    let mut random = Random::new(13);
    for number in 0..KEYS {
        let is_pool = number % 4 == 0;
        let limit = if is_pool { Limit::pool("10") } else { walk::limit(&mut random, walk::RATES) };
        let mut walk = Walk::new(&server, number);
        for _ in 0..CALLS {
            if is_pool || random.once_in(2) {
                let holding = walk::any_holding(&mut random, &limit);
                let told = walk.hold(&limit, &holding);
                if told.allowed == 0 && told.retry_after_ms > 0 && random.once_in(2) {
                    retry(&mut walk, &server, &limit, &holding, told);
                }
            } else {
                walk.call(&limit, walk::any_operation(&mut random, &limit));
            }
            let pause_us = walk::pause_us(&mut random, &limit);
            server.clock().advance_us(if random.once_in(12) { -pause_us } else { pause_us });
        }
    }
}

/// Waits as told: the same call is denied one millisecond before, and allowed then.
fn retry(walk: &mut Walk, server: &Server, limit: &Limit, holding: &Holding, told: Decision) {
    server.clock().advance_ms(told.retry_after_ms - 1);
    let early = walk.hold(limit, holding);
    assert_eq!((early.allowed, early.retry_after_ms), (0, 1), "{holding:?} 1 ms before {told:?}");
    server.clock().advance_ms(1);
    assert_eq!(walk.hold(limit, holding).allowed, 1, "{holding:?} after {told:?}");
}
