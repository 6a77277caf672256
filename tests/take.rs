//! `TB.TAKE`, `TB.PEEK` and `TB.STATE` as a client sees them, on a clock that the test moves.

mod common;

use common::exact::{Limit, Operation};
use common::walk::{self, Walk};
use common::{text, Connection, Decision, Random, Server};

const HOUR_MS: i64 = 3_600_000;

fn decided(fields: [i64; 4]) -> Decision {
    fields.into()
}

/// A level as `TB.STATE` shows it, that was written now.
fn written_now(server: &Server, level: &str) -> Option<(String, i64)> {
    Some((level.to_owned(), server.clock().now_us()))
}

#[test]
fn a_burst_passes_and_the_next_call_is_told_when_to_come_back() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.TAKE user:1 3 1"), decided([1, 2, 0, 1000]));
    assert_eq!(client.decide("TB.TAKE user:1 3 1"), decided([1, 1, 0, 2000]));
    assert_eq!(client.decide("TB.TAKE user:1 3 1"), decided([1, 0, 0, 3000]));
    assert_eq!(client.decide("TB.TAKE user:1 3 1"), decided([0, 0, 1000, 3000]));
    server.clock().advance_ms(999);
    assert_eq!(client.decide("TB.TAKE user:1 3 1"), decided([0, 0, 1, 2001]));
    server.clock().advance_ms(1);
    assert_eq!(client.decide("TB.TAKE user:1 3 1"), decided([1, 0, 0, 3000]));
}

#[test]
fn a_bucket_never_holds_more_than_its_capacity() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE k 3 1 3");
    // Longer than it takes to fill, and not long enough for the key to go.
    server.clock().advance_ms(3500);
    assert_eq!(client.decide("TB.PEEK k 3 1 3"), decided([1, 0, 0, 3000]));
    assert_eq!(client.decide("TB.TAKE k 3 1 3"), decided([1, 0, 0, 3000]));
    server.clock().advance_ms(100 * HOUR_MS);
    assert_eq!(client.decide("TB.TAKE k 3 1 4"), decided([0, 3, -1, 0]));
    assert_eq!(client.decide("TB.TAKE k 3 1 3"), decided([1, 0, 0, 3000]));
    assert_eq!(client.decide("TB.TAKE k 3 1 1"), decided([0, 0, 1000, 3000]));
}

#[test]
fn a_full_bucket_has_no_key_and_a_bucket_that_is_not_full_has_one() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.state("k"), None);
    client.decide("TB.TAKE k 10 2 4");
    assert_eq!(client.state("k"), written_now(&server, "6"));
    assert_eq!(text(&client.say("TYPE k")), "tb-bucket");
    let expires_at_ms = client.expires_at_ms("k").unwrap();
    let full_at_us = server.clock().now_us() + 2_000_000;
    assert!(expires_at_ms * 1000 >= full_at_us, "expires before it is full");
    assert!(expires_at_ms * 1000 <= full_at_us + 500_000 + 1_001_000, "expires more than 25 % + 1 s late");
    server.clock().set_us(full_at_us);
    assert_eq!(text(&client.say("EXISTS k")), "1");
    server.clock().set_us((expires_at_ms + 1) * 1000);
    assert_eq!(text(&client.say("EXISTS k")), "0");
    assert_eq!(client.state("k"), None);
}

#[test]
fn deleting_the_key_makes_the_bucket_full() {
    let server = Server::with_clock();
    let mut client = server.connect();
    for delete in ["DEL k", "UNLINK k"] {
        assert_eq!(client.decide("TB.TAKE k 5 1 5"), decided([1, 0, 0, 5000]));
        assert_eq!(text(&client.say(delete)), "1");
        assert_eq!(client.decide("TB.PEEK k 5 1 5"), decided([1, 0, 0, 5000]));
        assert_eq!(client.state("k"), None);
    }
}

#[test]
fn the_cost_is_one_token_unless_told() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.PEEK a 5 1"), client.decide("TB.PEEK a 5 1 1"));
    assert_eq!(client.decide("TB.TAKE a 5 1"), client.decide("TB.TAKE b 5 1 1"));
    assert_eq!(client.state("a"), written_now(&server, "4"));
}

#[test]
fn every_way_to_write_a_rate_brings_its_token_to_the_millisecond() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let rates = [
        ("5", 200),
        ("0.25", 4000),
        ("1e-3", 1_000_000),
        ("+4", 250),
        ("100/m", 600),
        ("1/250ms", 250),
        ("10/10s", 1000),
        ("5000/h", 720),
        ("2.5/s", 400),
        ("1/0.5s", 500),
        ("1/1.5m", 90_000),
        ("24/d", HOUR_MS),
        // 86,400,000 / 7, rounded up.
        ("7/d", 12_342_858),
        ("1e2/1E1s", 100),
        ("1000", 1),
        // Faster than a token per millisecond: the next millisecond has it.
        ("1e6", 1),
        // 100 years.
        ("1/36525d", 3_155_760_000_000),
    ];
    for (rate, wait_ms) in rates {
        let take = format!("TB.TAKE key:{rate} 1 {rate}");
        assert_eq!(client.decide(&take), decided([1, 0, 0, wait_ms]), "{take}");
        assert_eq!(client.decide(&take), decided([0, 0, wait_ms, wait_ms]), "{take}");
        server.clock().advance_ms(wait_ms - 1);
        assert_eq!(client.decide(&take), decided([0, 0, 1, 1]), "{take} a millisecond early");
        server.clock().advance_ms(1);
        assert_eq!(client.decide(&take), decided([1, 0, 0, wait_ms]), "{take} on time");
    }
}

#[test]
fn costs_capacities_and_levels_have_fractions() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.TAKE k 2.5 0.5 1.25"), decided([1, 1, 0, 2500]));
    assert_eq!(client.state("k"), written_now(&server, "1.25"));
    assert_eq!(client.decide("TB.TAKE k 2.5 0.5 1.250001"), decided([0, 1, 1, 2500]));
    server.clock().advance_ms(1);
    assert_eq!(client.decide("TB.TAKE k 2.5 0.5 1.250001"), decided([1, 0, 0, 5000]));
    assert_eq!(client.state("k"), written_now(&server, "0.000499"));
}

#[test]
fn rounding_never_favours_the_taker() {
    let server = Server::with_clock();
    let mut client = server.connect();
    // A cost below a millionth of a token costs that millionth.
    client.decide("TB.TAKE cost 1 1 1e-9");
    assert_eq!(client.state("cost"), written_now(&server, "0.999999"));
    client.decide("TB.TAKE exact 1 1 0.000001");
    assert_eq!(client.state("exact"), client.state("cost"));
    // A capacity is what it has of whole millionths.
    assert_eq!(client.decide("TB.TAKE capacity 0.0000019 1 0.000002"), decided([0, 0, -1, 0]));
    assert_eq!(client.decide("TB.TAKE capacity 0.0000019 1 0.000001"), decided([1, 0, 0, 1]));
    assert_eq!(client.state("capacity"), written_now(&server, "0"));
}

#[test]
fn a_cost_above_the_capacity_can_never_be_and_is_told_so() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.TAKE k 5 1 5.000001"), decided([0, 5, -1, 0]));
    assert_eq!(client.decide("TB.PEEK k 5 1 1e12"), decided([0, 5, -1, 0]));
    assert_eq!(client.state("k"), None);
    client.decide("TB.TAKE k 5 1 2");
    assert_eq!(client.decide("TB.TAKE k 5 1 6"), decided([0, 3, -1, 2000]));
    assert_eq!(client.state("k"), written_now(&server, "3"));
}

#[test]
fn a_capacity_of_zero_denies_every_cost_without_an_error() {
    let server = Server::with_clock();
    let mut client = server.connect();
    for command in ["TB.TAKE", "TB.PEEK"] {
        for capacity in ["0", "0.0", "0e9", "0.0000009"] {
            let call = |cost: &str| format!("{command} k {capacity} 5 {cost}");
            assert_eq!(client.decide(&call("1")), decided([0, 0, -1, 0]));
            assert_eq!(client.decide(&call("0.000001")), decided([0, 0, -1, 0]));
            assert_eq!(client.decide(&call("0")), decided([1, 0, 0, 0]));
        }
    }
    assert_eq!(client.state("k"), None);
    assert_eq!(text(&client.say("DBSIZE")), "0");
}

#[test]
fn a_user_who_is_suspended_for_a_while_gets_back_the_bucket_of_before() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE k 10 1 4");
    let before = client.state("k");
    assert_eq!(client.decide("TB.TAKE k 0 1"), decided([0, 0, -1, 0]));
    assert_eq!(client.state("k"), before);
    server.clock().advance_ms(1000);
    assert_eq!(client.decide("TB.TAKE k 10 1"), decided([1, 6, 0, 4000]));
}

#[test]
fn a_cost_of_zero_is_allowed_and_writes_nothing() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.TAKE k 5 1 0"), decided([1, 5, 0, 0]));
    assert_eq!(client.state("k"), None);
    client.decide("TB.TAKE k 5 1 5");
    let (state, expiry) = (client.state("k"), client.expires_at_ms("k"));
    server.clock().advance_ms(1500);
    assert_eq!(client.decide("TB.TAKE k 5 1 0"), decided([1, 1, 0, 3500]));
    assert_eq!((client.state("k"), client.expires_at_ms("k")), (state, expiry));
}

#[test]
fn a_cost_of_zero_is_denied_while_in_debt() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.CHARGE k 5 1 8");
    assert_eq!(client.decide("TB.TAKE k 5 1 0"), decided([0, -3, 3000, 8000]));
    server.clock().advance_ms(2999);
    assert_eq!(client.decide("TB.TAKE k 5 1 0"), decided([0, -1, 1, 5001]));
    server.clock().advance_ms(1);
    assert_eq!(client.decide("TB.TAKE k 5 1 0"), decided([1, 0, 0, 5000]));
}

#[test]
fn the_largest_and_the_slowest_limits_reply_without_overflow() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let trillion = 1_000_000_000_000;
    assert_eq!(client.decide("TB.TAKE a 1e12 1e12 1"), decided([1, trillion - 1, 0, 1]));
    assert_eq!(client.decide("TB.TAKE b 1000000000000 1e12 1e12"), decided([1, 0, 0, 1000]));
    // 10^12 tokens at 317 a second: just below 100 years.
    let reset_ms = 3_154_574_132_493;
    assert_eq!(client.decide("TB.TAKE c 1e12 317 1e12"), decided([1, 0, 0, reset_ms]));
    // In debt by as much as there can be, at the slowest rate there is: 10^12 * 100 years.
    client.decide("TB.CHARGE d 1 1/36525d 1e12");
    let reset_ms = client.decide("TB.PEEK d 1 1/36525d").reset_after_ms;
    let hundred_thousand_years_ms = 100_000 * 31_557_600_000;
    assert!(reset_ms >= hundred_thousand_years_ms, "{reset_ms} ms is no time for such a debt");
}

#[test]
fn peek_says_what_take_does_and_leaves_no_trace() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let mut random = Random::new(1);
    for _ in 0..2000 {
        let key = random.below(5);
        let cost = *random.pick(&["", "0", "0.5", "1", "3", "7", "10", "11"]);
        let arguments = format!("key:{key} 10 100/m {cost}");
        let foreseen = client.decide(&format!("TB.PEEK {arguments}"));
        assert_eq!(client.decide(&format!("TB.PEEK {arguments}")), foreseen);
        assert_eq!(client.decide(&format!("TB.TAKE {arguments}")), foreseen, "{arguments}");
        server.clock().advance_us(random.between(0, 1_000_000));
    }
    let traces = |client: &mut Connection| {
        let keys = ["key:0", "key:1", "key:2", "key:3", "key:4"];
        let buckets: Vec<_> = keys.map(|key| (client.state(key), client.expires_at_ms(key))).into();
        (buckets, client.info("persistence", "rdb_changes_since_last_save"))
    };
    let before = traces(&mut client);
    for key in 0..6 {
        for cost in ["0", "1", "10", "11"] {
            client.decide(&format!("TB.PEEK key:{key} 10 100/m {cost}"));
            client.decide(&format!("TB.PEEK key:{key} 2 5 {cost}"));
        }
    }
    assert_eq!(traces(&mut client), before);
    assert_eq!(client.state("key:5"), None);
}

#[test]
fn state_shows_what_is_stored_and_not_what_has_flowed_in_since() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE k 10 1 2.5");
    let stored = written_now(&server, "7.5");
    server.clock().advance_ms(1234);
    assert_eq!(client.state("k"), stored);
    client.decide("TB.CHARGE k 10 1 20.000001");
    assert_eq!(client.state("k"), written_now(&server, "-11.266001"));
}

#[test]
fn a_smaller_capacity_clamps_the_level_and_a_larger_one_fills_up_from_it() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE k 100 1 10");
    assert_eq!(client.decide("TB.TAKE k 20 1 5"), decided([1, 15, 0, 5000]));
    assert_eq!(client.state("k"), written_now(&server, "15"));
    server.clock().advance_ms(2000);
    assert_eq!(client.decide("TB.TAKE k 100 1 0"), decided([1, 17, 0, 83_000]));
    assert_eq!(client.decide("TB.TAKE k 100 1 18"), decided([0, 17, 1000, 83_000]));
}

#[test]
fn a_new_rate_counts_from_the_last_write() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE k 100 1 100");
    server.clock().advance_ms(10_000);
    assert_eq!(client.decide("TB.PEEK k 100 1 0"), decided([1, 10, 0, 90_000]));
    assert_eq!(client.decide("TB.PEEK k 100 5 0"), decided([1, 50, 0, 10_000]));
    assert_eq!(client.decide("TB.TAKE k 100 5 50"), decided([1, 0, 0, 20_000]));
    assert_eq!(client.decide("TB.TAKE k 100 60/m 1"), decided([0, 0, 1000, 100_000]));
}

/// A known limit: what a write leaves over of a micro-token is kept as the time in which it flowed, and that time
/// counts at the new rate. A rate that is raised F times brings up to F micro-tokens, once.
#[test]
fn a_raised_rate_brings_no_more_than_one_old_micro_token_in_time() {
    let server = Server::with_clock();
    let mut client = server.connect();
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
fn a_clock_that_steps_back_an_hour_neither_adds_tokens_nor_locks_anyone_out() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE k 10 1 9");
    server.clock().advance_ms(-HOUR_MS);
    assert_eq!(client.decide("TB.PEEK k 10 1 2"), decided([0, 1, 1000, 9000]));
    assert_eq!(client.decide("TB.TAKE k 10 1 2"), decided([0, 1, 1000, 9000]));
    assert_eq!(client.state("k"), written_now(&server, "1"), "it counts on from the new time");
    server.clock().advance_ms(1000);
    assert_eq!(client.decide("TB.TAKE k 10 1 2"), decided([1, 0, 0, 10_000]));
    server.clock().advance_ms(-HOUR_MS);
    assert_eq!(client.decide("TB.TAKE k 10 1 0.5"), decided([0, 0, 500, 10_000]));
    server.clock().advance_ms(3500);
    assert_eq!(client.decide("TB.TAKE k 10 1 3"), decided([1, 0, 0, 9500]));
    let full_at_us = server.clock().now_us() + 9_500_000;
    let expires_at_us = client.expires_at_ms("k").unwrap() * 1000;
    assert!((full_at_us..=full_at_us + 2_375_000 + 1_001_000).contains(&expires_at_us));
}

#[test]
fn a_step_back_that_only_peek_has_seen_is_no_write() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE k 10 1 9");
    let stored = client.state("k");
    server.clock().advance_ms(-HOUR_MS);
    client.decide("TB.PEEK k 10 1 2");
    client.decide("TB.TAKE k 10 1 0");
    assert_eq!(client.state("k"), stored);
    server.clock().advance_ms(HOUR_MS + 1000);
    assert_eq!(client.decide("TB.TAKE k 10 1 2"), decided([1, 0, 0, 10_000]));
}

#[test]
fn waits_are_honest_and_no_token_is_lost_or_won_under_any_limit() {
    const LIMITS: u64 = 120;
    const CALLS: u64 = 40;
    let server = Server::with_clock();
    let mut random = Random::new(2);
    for number in 0..LIMITS {
        let limit = walk::limit(&mut random, walk::RATES);
        let mut walk = Walk::new(&server, number);
        for _ in 0..CALLS {
            let take = walk::take(&mut random, &limit);
            let decision = walk.call(&limit, take);
            if decision.retry_after_ms > 0 && random.once_in(2) {
                retry(&mut walk, &server, &limit, take, decision);
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
    let rates = walk::whole_rates();
    let mut random = Random::new(3);
    for number in 0..KEYS {
        let mut limit = walk::limit(&mut random, &rates);
        let mut walk = Walk::new(&server, number);
        for _ in 0..CALLS {
            if random.once_in(4) {
                limit = walk::limit(&mut random, &rates);
            }
            walk.call(&limit, walk::any_operation(&mut random, &limit));
            let pause_us = walk::pause_us(&mut random, &limit);
            server.clock().advance_us(if random.once_in(6) { -pause_us } else { pause_us });
        }
    }
}
