//! Decisions as a client sees them, on a clock that the test moves. The arithmetic itself is judged in `tests/model`;
//! what is judged here by the exact model is that it arrives, and what is spelled out is what has no other place.

use crate::common::exact::operation::arguments;
use crate::common::exact::{Limit, Operation};
use crate::common::walk::{self, Walk};
use crate::common::{decision, multi_decision, text, written_now, Decision, Random, Server, HOUR_MS};

#[test]
fn deleting_the_key_makes_the_bucket_full() {
    let (_server, mut client) = Server::with_clock_and_client();
    for delete in ["DEL k", "UNLINK k"] {
        assert_eq!(client.decide("TB.TAKE k 5 1 5"), [1, 0, 0, 5000]);
        assert_eq!(text(&client.say(delete)), "1");
        assert_eq!(client.decide("TB.PEEK k 5 1 5"), [1, 0, 0, 5000]);
        assert_eq!(client.state("k"), None);
    }
}

/// Costs and charges up, capacities and refunds down.
#[test]
fn rounding_never_favours_the_taker() {
    let (server, mut client) = Server::with_clock_and_client();
    for (call, level) in [
        ("TB.TAKE k 10 1 1e-9", "9.999999"),
        ("TB.CHARGE k 10 1 1.0000001", "8.999998"),
        ("TB.RESERVE k 10 1 0.0000011 0", "8.999996"),
        ("TB.GIVE k 10 1 0.9999999", "9.999995"),
        ("TB.GIVE k 10 1 1e-7", "9.999995"),
        ("TB.TAKEUPTO k 10 1 5", "4.999995"),
    ] {
        client.decide(call);
        assert_eq!(client.state("k"), written_now(&server, level), "{call}");
    }
    assert_eq!(client.decide("TB.TAKE small 0.0000019 1 0.000002"), [0, 0, -1, 0]);
    assert_eq!(client.decide("TB.TAKE small 0.0000019 1 0.000001"), [1, 0, 0, 1]);
}

#[test]
fn a_user_who_is_suspended_for_a_while_gets_back_the_bucket_of_before() {
    let (server, mut client) = Server::with_clock_and_client();
    client.decide("TB.TAKE k 10 1 4");
    let before = client.state("k");
    for capacity in ["0", "0.0", "0e9", "0.0000009"] {
        assert_eq!(client.decide(&format!("TB.TAKE k {capacity} 1")), [0, 0, -1, 0]);
        assert_eq!(client.decide(&format!("TB.TAKE k {capacity} 1 0")), [1, 0, 0, 0]);
    }
    assert_eq!(client.state("k"), before);
    server.clock().advance_ms(1000);
    assert_eq!(client.decide("TB.TAKE k 10 1"), [1, 6, 0, 4000]);
    // A charge still reaches who can hold nothing, and a refund brings nothing.
    assert_eq!(client.decide("TB.CHARGE none 0 1 3"), [1, -3, 3000, 3000]);
    assert_eq!(client.decide("TB.TAKE none 0 1 0"), [0, -3, 3000, 3000]);
    assert_eq!(client.decide("TB.GIVE none 0 1 5"), [1, 0, 0, 0]);
    assert_eq!(client.decide("TB.TAKE none 0 1 1"), [0, 0, -1, 0]);
}

#[test]
fn the_largest_and_the_slowest_limits_reply_without_overflow() {
    let (_server, mut client) = Server::with_clock_and_client();
    let trillion = 1_000_000_000_000;
    assert_eq!(client.decide("TB.TAKE a 1e12 1e12 1"), [1, trillion - 1, 0, 1]);
    assert_eq!(client.decide("TB.TAKE b 1000000000000 1e12 1e12"), [1, 0, 0, 1000]);
    // 10^12 tokens at 317 a second: just below 100 years.
    assert_eq!(client.decide("TB.TAKE c 1e12 317 1e12"), [1, 0, 0, 3_154_574_132_493]);
    // In debt by as much as there can be, at the slowest rate there is: 10^12 * 100 years.
    client.decide("TB.CHARGE d 1 1/36525d 1e12");
    let reset_ms = client.decide("TB.PEEK d 1 1/36525d").reset_after_ms;
    let hundred_thousand_years_ms = 100_000 * 31_557_600_000;
    assert!(reset_ms >= hundred_thousand_years_ms, "{reset_ms} ms is no time for such a debt");
}

#[test]
fn debt_ends_at_a_trillion_tokens() {
    let (server, mut client) = Server::with_clock_and_client();
    assert_eq!(client.decide("TB.CHARGE k 10 1e12 1e12").remaining, 10 - 1_000_000_000_000);
    assert_eq!(client.decide("TB.CHARGE k 10 1e12 10").remaining, -1_000_000_000_000);
    assert!(client.refusal("TB.CHARGE k 10 1e12 0.000001").starts_with("ERR amount would put"));
    // A reservation there is denied, whatever the wait: it would be a debt deeper than any.
    assert_eq!(client.decide("TB.RESERVE k 10 1e12 1 60000").allowed, 0);
    server.clock().advance_ms(1);
    assert_eq!(client.decide("TB.CHARGE k 10 1e12 1e9").remaining, -1_000_000_000_000);
}

/// A known limit: what a write leaves over of a micro-token is kept as the time in which it flowed, and that time
/// counts at the new rate. A rate that is raised F times brings up to F micro-tokens, once.
#[test]
fn a_raised_rate_brings_no_more_than_one_old_micro_token_in_time() {
    let (server, mut client) = Server::with_clock_and_client();
    client.decide("TB.TAKE k 1000 1/d 1000");
    server.clock().advance_ms(80);
    // 80 ms at one token a day are less than a micro-token, which takes 86.4 ms.
    client.decide("TB.CHARGE k 1000 1/d 0.000001");
    // At one a second, 86,400 times as much, they are 0.08 tokens: fewer than 86,400 micro-tokens.
    assert_eq!(client.decide("TB.TAKE k 1000 1 0.0864").allowed, 0);
    client.decide("TB.CHARGE k 1000 1 0.000001");
    let written = client.state("k").unwrap().1;
    assert_eq!(written, server.clock().now_us(), "at the new rate nothing is left over any more");
}

#[test]
fn a_clock_that_steps_back_neither_adds_tokens_nor_locks_anyone_out() {
    let (server, mut client) = Server::with_clock_and_client();
    client.decide("TB.TAKE k 10 1 9");
    let stored = client.state("k");
    server.clock().advance_ms(-HOUR_MS);
    // Nobody but a decision notes it.
    assert_eq!(client.decide("TB.PEEK k 10 1 2"), [0, 1, 1000, 9000]);
    client.decide("TB.TAKE k 10 1 0");
    assert_eq!(client.state("k"), stored);
    assert_eq!(client.decide("TB.TAKE k 10 1 2"), [0, 1, 1000, 9000]);
    assert_eq!(client.state("k"), written_now(&server, "1"), "it counts on from the new time");
    server.clock().advance_ms(1000);
    assert_eq!(client.decide("TB.TAKE k 10 1 2"), [1, 0, 0, 10_000]);
    client.decide("TB.CHARGE k 10 1 5");
    for (call, told) in [
        ("TB.RESERVE k 10 1 1 60000", [1, -6, 6000, 16_000]),
        ("TB.CHARGE k 10 1 1", [1, -7, 7000, 17_000]),
        ("TB.GIVE k 10 1 3", [1, -4, 0, 14_000]),
    ] {
        server.clock().advance_ms(-HOUR_MS);
        assert_eq!(client.decide(call), told, "{call}");
    }
    assert_eq!(client.state("k"), written_now(&server, "-4"));
}

/// Any call of any limit, each judged by the exact model, and each `TB.TAKE` foreseen by `TB.PEEK`.
#[test]
fn no_token_is_lost_or_won_under_any_limit_by_any_mixture_of_calls() {
    const KEYS: u64 = 120;
    const CALLS: u64 = 40;
    let server = Server::with_clock();
    let mut random = Random::new(3);
    for number in 0..KEYS {
        let limit = walk::limit(&mut random, walk::RATES);
        let mut walk = Walk::new(&server, number);
        for _ in 0..CALLS {
            let operation = walk::any_operation(&mut random, &limit);
            let told = walk.call(&limit, operation);
            if matches!(operation, Operation::Take { .. }) && told.retry_after_ms > 0 && random.once_in(2) {
                retry(&mut walk, &server, &limit, operation, told);
            }
            server.clock().advance_us(walk::pause_us(&mut random, &limit));
        }
    }
}

/// Waits as told: the same call is denied one millisecond before, and allowed then.
fn retry(walk: &mut Walk, server: &Server, limit: &Limit, take: Operation, told: Decision) {
    server.clock().advance_ms(told.retry_after_ms - 1);
    let early = walk.peek(limit, take);
    assert_eq!((early.allowed, early.retry_after_ms), (0, 1), "{take:?} 1 ms before {told:?}");
    server.clock().advance_ms(1);
    assert_eq!(walk.call(limit, take).allowed, 1, "{take:?} after {told:?}");
}

#[test]
fn limits_that_change_and_clocks_that_step_back_add_nothing() {
    const KEYS: u64 = 60;
    const CALLS: u64 = 50;
    let server = Server::with_clock();
    let mut random = Random::new(4);
    for number in 0..KEYS {
        let mut limit = walk::limit(&mut random, walk::RATES);
        let mut walk = Walk::new(&server, number);
        for _ in 0..CALLS {
            if random.once_in(4) {
                limit = walk::limit(&mut random, walk::RATES);
            }
            walk.call(&limit, walk::any_operation(&mut random, &limit));
            let pause_us = walk::pause_us(&mut random, &limit);
            server.clock().advance_us(if random.once_in(6) { -pause_us } else { pause_us });
        }
    }
}

/// The same decision and the same bucket by other words: the default cost, a reservation without a wait, several
/// buckets that are one.
#[test]
fn what_says_the_same_does_the_same() {
    let (server, mut client) = Server::with_clock_and_client();
    let mut random = Random::new(2);
    for number in 0..60 {
        let limit = walk::limit(&mut random, walk::RATES);
        for _ in 0..20 {
            let take = walk::take(&mut random, &limit);
            let words = |kind: &str| arguments(take, &format!("{kind}:{number}"), &limit);
            let told = client.decide(&format!("TB.TAKE {}", words("take")));
            assert_eq!(client.decide(&format!("TB.RESERVE {} 0", words("reserve"))), told, "{}", limit.words);
            let reply = multi_decision(&client.say(&format!("TB.MTAKE 1 {}", words("multi"))));
            assert_eq!(reply, (told, vec![told]), "{}", limit.words);
            let states = ["take", "reserve", "multi"].map(|kind| client.state(&format!("{kind}:{number}")));
            assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
            server.clock().advance_us(walk::pause_us(&mut random, &limit));
        }
    }
    assert_eq!(client.decide("TB.TAKE a 5 1"), client.decide("TB.TAKE b 5 1 1"));
}

/// Lua of Redis 6.0 to 7.0 sends 0.3 as 0.29999999999999999, and clients with floats add up 0.1 and 0.2.
#[test]
fn a_third_of_a_token_from_a_float_is_what_its_sender_means() {
    let (_server, mut client) = Server::with_clock_and_client();
    let take = "return redis.call('TB.TAKE', KEYS[1], 0.3, 0.1, 0.3)";
    assert_eq!(decision(&client.run(&["EVAL", take, "1", "lua"])), [1, 0, 0, 3000]);
    assert_eq!(client.decide("TB.TAKE sum 0.3 0.1 0.30000000000000004"), [1, 0, 0, 3000]);
    assert_eq!(client.decide("TB.TAKE more 0.3 0.1 0.300000000002"), [0, 0, -1, 0]);
}
