//! `TB.TAKEUPTO`, `TB.RESERVE`, `TB.CHARGE` and `TB.GIVE` as a client sees them.

mod common;

use common::exact::operation::words;
use common::exact::{number::exact, Operation, MILLION};
use common::walk::{self, Walk};
use common::{decision, integers, text, Decision, Random, Server};
use redis::Value;
use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

const TRILLION: i64 = 1_000_000_000_000;

fn decided(fields: [i64; 4]) -> Decision {
    fields.into()
}

/// A level as `TB.STATE` shows it, that was written now.
fn written_now(server: &Server, level: &str) -> Option<(String, i64)> {
    Some((level.to_owned(), server.clock().now_us()))
}

#[test]
fn takeupto_grants_what_there_is_up_to_the_maximum() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.TAKEUPTO k 10 1 4"), decided([4, 6, 0, 4000]));
    assert_eq!(client.decide("TB.TAKEUPTO k 10 1 100"), decided([6, 0, 0, 10_000]));
    assert_eq!(client.decide("TB.TAKEUPTO k 10 1 100"), decided([0, 0, 1000, 10_000]));
    assert_eq!(client.decide("TB.TAKEUPTO full 10 1 1e12"), decided([10, 0, 0, 10_000]));
}

#[test]
fn takeupto_grants_whole_tokens_and_leaves_the_rest() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE k 10 1 7.3");
    assert_eq!(client.decide("TB.TAKEUPTO k 10 1 5"), decided([2, 0, 0, 9300]));
    assert_eq!(client.state("k"), written_now(&server, "0.7"));
    let denied = decided([0, 0, 300, 9300]);
    assert_eq!(client.decide("TB.TAKEUPTO k 10 1 5"), denied);
    server.clock().advance_ms(299);
    assert_eq!(client.decide("TB.TAKEUPTO k 10 1 5"), decided([0, 0, 1, 9001]));
    server.clock().advance_ms(1);
    assert_eq!(client.decide("TB.TAKEUPTO k 10 1 5"), decided([1, 0, 0, 10_000]));
}

#[test]
fn takeupto_can_never_grant_from_a_bucket_that_holds_less_than_a_token() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.TAKEUPTO k 0.999999 1 1"), decided([0, 0, -1, 0]));
    assert_eq!(client.decide("TB.TAKEUPTO k 0 1 1"), decided([0, 0, -1, 0]));
    assert_eq!(client.state("k"), None);
}

#[test]
fn takeupto_grants_nothing_in_debt_and_says_when_there_is_a_token() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.CHARGE k 10 2 15");
    assert_eq!(client.decide("TB.TAKEUPTO k 10 2 3"), decided([0, -5, 3000, 7500]));
    server.clock().advance_ms(3000);
    assert_eq!(client.decide("TB.TAKEUPTO k 10 2 3"), decided([1, 0, 0, 5000]));
}

#[test]
fn reserve_takes_now_and_tells_how_long_to_wait() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.RESERVE k 2 1 2 0"), decided([1, 0, 0, 2000]));
    assert_eq!(client.decide("TB.RESERVE k 2 1 1 5000"), decided([1, -1, 1000, 3000]));
    assert_eq!(client.decide("TB.RESERVE k 2 1 1 5000"), decided([1, -2, 2000, 4000]));
    assert_eq!(client.decide("TB.RESERVE k 2 1 1.5 5000"), decided([1, -4, 3500, 5500]));
    assert_eq!(client.state("k"), written_now(&server, "-3.5"));
}

#[test]
fn reserve_is_denied_beyond_the_longest_wait_and_changes_nothing() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE k 2 1 2");
    let (state, expiry) = (client.state("k"), client.expires_at_ms("k"));
    assert_eq!(client.decide("TB.RESERVE k 2 1 2 1999"), decided([0, 0, 2000, 2000]));
    assert_eq!(client.decide("TB.RESERVE k 2 1 0.000001 0"), decided([0, 0, 1, 2000]));
    assert_eq!((client.state("k"), client.expires_at_ms("k")), (state, expiry));
    assert_eq!(client.decide("TB.RESERVE k 2 1 2 2000"), decided([1, -2, 2000, 4000]));
}

#[test]
fn reserve_can_never_have_more_than_the_capacity() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.RESERVE k 2 1 2.000001 3155760000000"), decided([0, 2, -1, 0]));
    assert_eq!(client.decide("TB.RESERVE k 0 1 1 1000"), decided([0, 0, -1, 0]));
    assert_eq!(client.state("k"), None);
}

#[test]
fn a_reservation_of_nothing_waits_for_the_debt_and_writes_nothing() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.RESERVE k 2 1 0 0"), decided([1, 2, 0, 0]));
    assert_eq!(client.state("k"), None);
    client.decide("TB.CHARGE k 2 1 5");
    let state = client.state("k");
    assert_eq!(client.decide("TB.RESERVE k 2 1 0 2999"), decided([0, -3, 3000, 5000]));
    assert_eq!(client.decide("TB.RESERVE k 2 1 0 3000"), decided([1, -3, 3000, 5000]));
    assert_eq!(client.state("k"), state);
}

#[test]
fn a_reserved_slot_is_paid_off_after_the_wait_that_was_told_and_not_before() {
    const A_CENTURY_MS: i64 = 3_155_760_000_000;
    let server = Server::with_clock();
    let mut client = server.connect();
    let mut random = Random::new(1);
    for number in 0..200 {
        let key = format!("k:{number}");
        let limit = walk::limit(&mut random, walk::RATES);
        let all_micro = limit.capacity_micro();
        client.say(&words(Operation::Take { cost_micro: all_micro }, &key, &limit));
        let cost_micro = (random.between(1, 3) * MILLION).min(all_micro);
        let reserve = Operation::Reserve { cost_micro, max_wait_ms: A_CENTURY_MS };
        let told = client.decide(&words(reserve, &key, &limit));
        assert_eq!(told.allowed, 1, "{}", limit.words);
        let mut is_in_debt_after = |ms: i64| {
            server.clock().advance_ms(ms);
            client.decide(&format!("TB.PEEK {key} {} 0", limit.words)).allowed == 0
        };
        assert!(is_in_debt_after(told.retry_after_ms - 1), "{} {told:?}: out of debt early", limit.words);
        assert!(!is_in_debt_after(1), "{} {told:?}: still in debt", limit.words);
    }
}

#[test]
fn reserve_without_a_wait_decides_as_take_does() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let mut random = Random::new(2);
    for number in 0..60 {
        let limit = walk::limit(&mut random, walk::RATES);
        for _ in 0..30 {
            let cost_micro = walk::amount_micro(&mut random, &limit);
            let (take, reserve) =
                (Operation::Take { cost_micro }, Operation::Reserve { cost_micro, max_wait_ms: 0 });
            let take = client.decide(&words(take, &format!("take:{number}"), &limit));
            let key = format!("reserve:{number}");
            let reserve = client.decide(&words(reserve, &key, &limit));
            assert_eq!(take, reserve, "{} {cost_micro}", limit.words);
            assert_eq!(client.state(&format!("take:{number}")), client.state(&key));
            server.clock().advance_us(walk::pause_us(&mut random, &limit));
        }
    }
}

#[test]
fn a_take_behind_reservations_waits_its_turn() {
    let server = Server::with_clock();
    let mut client = server.connect();
    for place in 0..5 {
        assert_eq!(client.decide("TB.RESERVE k 1 1 1 60000").retry_after_ms, place * 1000);
    }
    let state = client.state("k");
    assert_eq!(client.decide("TB.TAKE k 1 1"), decided([0, -4, 5000, 5000]));
    assert_eq!(client.state("k"), state);
    server.clock().advance_ms(4999);
    assert_eq!(client.decide("TB.TAKE k 1 1"), decided([0, 0, 1, 1]));
    server.clock().advance_ms(1);
    assert_eq!(client.decide("TB.TAKE k 1 1"), decided([1, 0, 0, 1000]));
}

#[test]
fn a_cancelled_reservation_leaves_the_bucket_as_if_it_had_never_been() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.RESERVE k 5 1 3 0");
    assert_eq!(client.decide("TB.GIVE k 5 1 3"), decided([1, 5, 0, 0]));
    assert_eq!(text(&client.say("EXISTS k")), "0");

    client.decide("TB.TAKE k 5 1 4.5");
    client.decide("TB.TAKE twin 5 1 4.5");
    client.decide("TB.RESERVE k 5 1 2.25 60000");
    server.clock().advance_ms(1100);
    client.decide("TB.GIVE k 5 1 2.25");
    assert_eq!(client.decide("TB.PEEK k 5 1 5"), client.decide("TB.PEEK twin 5 1 5"));
    assert_eq!(client.state("k"), written_now(&server, "1.6"));
}

#[test]
fn charge_takes_whatever_the_level_and_tells_when_the_debt_is_paid() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.CHARGE k 10 2 4"), decided([1, 6, 0, 2000]));
    assert_eq!(client.decide("TB.CHARGE k 10 2 6"), decided([1, 0, 0, 5000]));
    assert_eq!(client.decide("TB.CHARGE k 10 2 30.5"), decided([1, -31, 15_250, 20_250]));
    assert_eq!(client.state("k"), written_now(&server, "-30.5"));
    server.clock().advance_ms(15_249);
    assert_eq!(client.decide("TB.TAKE k 10 2 0"), decided([0, -1, 1, 5001]));
    server.clock().advance_ms(1);
    assert_eq!(client.decide("TB.TAKE k 10 2 0"), decided([1, 0, 0, 5000]));
}

#[test]
fn charge_of_nothing_tells_the_same_and_takes_nothing() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.CHARGE k 10 2 0"), decided([1, 10, 0, 0]));
    client.decide("TB.CHARGE k 10 2 13");
    assert_eq!(client.decide("TB.CHARGE k 10 2 0"), decided([1, -3, 1500, 6500]));
    assert_eq!(client.state("k"), written_now(&server, "-3"));
}

#[test]
fn charge_reaches_a_bucket_that_can_hold_nothing() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.CHARGE k 0 1 3"), decided([1, -3, 3000, 3000]));
    assert_eq!(client.decide("TB.TAKE k 0 1 0"), decided([0, -3, 3000, 3000]));
    server.clock().advance_ms(3000);
    assert_eq!(client.decide("TB.TAKE k 0 1 0"), decided([1, 0, 0, 0]));
}

#[test]
fn debt_ends_at_a_trillion_tokens() {
    let server = Server::with_clock();
    let mut client = server.connect();
    let error = "ERR amount would put the bucket more than 1e12 tokens into debt";
    assert_eq!(client.decide("TB.CHARGE k 10 1e12 1e12").remaining, 10 - TRILLION);
    assert_eq!(client.decide("TB.CHARGE k 10 1e12 10").remaining, -TRILLION);
    let (state, expiry) = (client.state("k"), client.expires_at_ms("k"));
    assert_eq!(client.refusal("TB.CHARGE k 10 1e12 0.000001"), error);
    assert_eq!(client.refusal("TB.CHARGE k 10 1e12 1e12"), error);
    assert_eq!(client.refusal("TB.CHARGE k 0 1e12 1e12"), error);
    // A reservation there is denied, whatever the wait: it would be a debt deeper than any.
    assert_eq!(client.decide("TB.RESERVE k 10 1e12 1 60000").allowed, 0);
    assert_eq!((client.state("k"), client.expires_at_ms("k")), (state, expiry));
    server.clock().advance_ms(1);
    assert_eq!(client.decide("TB.CHARGE k 10 1e12 1e9").remaining, -TRILLION);
}

#[test]
fn the_key_of_a_debt_lives_until_it_is_paid_and_the_bucket_is_full() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.CHARGE k 10 1 110");
    let full_at_us = server.clock().now_us() + 110_000_000;
    let expires_at_us = client.expires_at_ms("k").unwrap() * 1000;
    assert!((full_at_us..=full_at_us + 27_500_000 + 1_001_000).contains(&expires_at_us));
    server.clock().set_us(full_at_us - 1);
    assert_eq!(client.decide("TB.PEEK k 10 1 10"), decided([0, 9, 1, 1]));
    server.clock().set_us(full_at_us);
    assert_eq!(client.decide("TB.PEEK k 10 1 10"), decided([1, 0, 0, 10_000]));
    server.clock().set_us(expires_at_us + 1000);
    assert_eq!(text(&client.say("EXISTS k")), "0");
}

#[test]
fn give_puts_back_and_never_above_the_capacity() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE k 10 1 8");
    assert_eq!(client.decide("TB.GIVE k 10 1 3.5"), decided([1, 5, 0, 4500]));
    assert_eq!(client.state("k"), written_now(&server, "5.5"));
    assert_eq!(client.decide("TB.GIVE k 10 1 1e12"), decided([1, 10, 0, 0]));
    assert_eq!(text(&client.say("EXISTS k")), "0", "a full bucket has no key");
    assert_eq!(client.decide("TB.GIVE k 10 1 1"), decided([1, 10, 0, 0]));
    assert_eq!(text(&client.say("EXISTS k")), "0");
}

#[test]
fn give_of_exactly_what_is_missing_fills_the_bucket_and_a_micro_token_less_does_not() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.TAKE k 10 1 4");
    server.clock().advance_ms(1000);
    assert_eq!(client.decide("TB.GIVE k 10 1 2.999999"), decided([1, 9, 0, 1]));
    assert_eq!(client.state("k"), written_now(&server, "9.999999"));
    assert_eq!(client.decide("TB.GIVE k 10 1 0.000001"), decided([1, 10, 0, 0]));
    assert_eq!(client.state("k"), None);
}

#[test]
fn give_pays_off_debt_and_needs_no_wait() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.CHARGE k 10 1 15");
    assert_eq!(client.decide("TB.GIVE k 10 1 2"), decided([1, -3, 0, 13_000]));
    assert_eq!(client.decide("TB.GIVE k 10 1 3"), decided([1, 0, 0, 10_000]));
    assert_eq!(client.decide("TB.GIVE k 10 1 0"), decided([1, 0, 0, 10_000]));
}

#[test]
fn charges_are_rounded_up_and_refunds_down() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.CHARGE k 10 1 1.0000001");
    assert_eq!(client.state("k"), written_now(&server, "8.999999"));
    client.decide("TB.GIVE k 10 1 0.9999999");
    assert_eq!(client.state("k"), written_now(&server, "9.999998"));
    client.decide("TB.RESERVE k 10 1 0.0000011 0");
    assert_eq!(client.state("k"), written_now(&server, "9.999996"));
    client.decide("TB.GIVE k 10 1 1e-7");
    assert_eq!(client.state("k"), written_now(&server, "9.999996"));
}

#[test]
fn give_cannot_make_a_bucket_of_no_capacity_hold_anything() {
    let server = Server::with_clock();
    let mut client = server.connect();
    assert_eq!(client.decide("TB.GIVE k 0 1 5"), decided([1, 0, 0, 0]));
    assert_eq!(client.decide("TB.TAKE k 0 1 1"), decided([0, 0, -1, 0]));
    assert_eq!(client.state("k"), None);
}

#[test]
fn a_step_back_of_the_clock_leaves_debt_as_it_is() {
    let server = Server::with_clock();
    let mut client = server.connect();
    client.decide("TB.CHARGE k 10 1 15");
    server.clock().advance_ms(-3_600_000);
    assert_eq!(client.decide("TB.RESERVE k 10 1 1 5999"), decided([0, -5, 6000, 15_000]));
    server.clock().advance_ms(1000);
    assert_eq!(client.decide("TB.RESERVE k 10 1 1 5999"), decided([1, -5, 5000, 15_000]));
    server.clock().advance_ms(-3_600_000);
    assert_eq!(client.decide("TB.CHARGE k 10 1 1"), decided([1, -6, 6000, 16_000]));
    server.clock().advance_ms(-3_600_000);
    assert_eq!(client.decide("TB.GIVE k 10 1 2"), decided([1, -4, 0, 14_000]));
    assert_eq!(client.state("k"), written_now(&server, "-4"));
}

#[test]
fn any_mixture_of_calls_grants_what_flowed_in_and_was_given_and_no_more() {
    const KEYS: u64 = 100;
    const CALLS: u64 = 40;
    let server = Server::with_clock();
    let mut random = Random::new(3);
    for number in 0..KEYS {
        let limit = walk::limit(&mut random, walk::RATES);
        let mut walk = Walk::new(&server, number);
        for _ in 0..CALLS {
            walk.call(&limit, walk::any_operation(&mut random, &limit));
            server.clock().advance_us(walk::pause_us(&mut random, &limit));
        }
    }
}

/// A reservation as the server made it.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// When it was asked for, on the server's clock.
    asked_at_us: i64,
    /// When its tokens have flowed in.
    due_at_us: i64,
    /// When the worker acted, on the server's clock.
    acted_at_us: i64,
}

const SLOT_US: i64 = 10_000;

/// Asks for one slot, sleeps as told, and acts. Returns the place in the order of asking, and the slot.
fn work_once(client: &mut common::Connection) -> (i64, Slot) {
    client.say("MULTI");
    for command in ["INCR asked", "TB.RESERVE queue 1 100 1 60000", "TB.STATE queue"] {
        client.say(command);
    }
    let Value::Array(replies) = client.say("EXEC") else { panic!("no transaction") };
    let [Value::Int(place), reservation, Value::Array(state)] = replies.as_slice() else {
        panic!("not the three replies: {replies:?}")
    };
    let told = decision(reservation);
    assert_eq!(told.allowed, 1);
    let [asked_at_us] = integers(&Value::Array(state[1..].to_vec()))[..] else { panic!("no time") };
    // The level is a debt of so many tokens; at 100 a second, each takes one slot to pay off.
    let debt_us: i64 = (-exact(&text(&state[0])) * exact("10000")).to_integer().try_into().unwrap();
    let told_us = told.retry_after_ms * 1000;
    assert!((debt_us..debt_us + 1000).contains(&told_us), "told {told_us}, the debt takes {debt_us}");
    thread::sleep(Duration::from_millis(told.retry_after_ms.try_into().unwrap()));
    let slot = Slot { asked_at_us, due_at_us: asked_at_us + debt_us, acted_at_us: client.time_us() };
    (*place, slot)
}

#[test]
fn concurrent_reservers_that_sleep_as_told_are_served_in_order_at_the_full_rate_and_never_early() {
    const WORKERS: usize = 32;
    const SLOTS_EACH: usize = 6;
    let server = Server::start();
    let slots: BTreeMap<i64, Slot> = thread::scope(|scope| {
        let worker = || {
            let mut client = server.connect();
            (0..SLOTS_EACH).map(|_| work_once(&mut client)).collect::<Vec<_>>()
        };
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(slots.len(), WORKERS * SLOTS_EACH);
    let slots: Vec<Slot> = slots.into_values().collect();
    let mut idle_us = 0;
    for pair in slots.windows(2) {
        let [before, after] = pair else { panic!("no pair") };
        // The next slot, in the order of asking, begins where the last one ended; unless nobody asked in time.
        // (A clock that stepped back by a microsecond starts to count anew.)
        let stepped_back_us = (before.asked_at_us - after.asked_at_us).max(0);
        let next_us = before.due_at_us + SLOT_US - stepped_back_us;
        idle_us += (after.asked_at_us - next_us).max(0);
        assert_eq!(after.due_at_us, next_us.max(after.asked_at_us), "after {before:?}");
    }
    for slot in &slots {
        assert!(slot.acted_at_us >= slot.due_at_us, "early: {slot:?}");
    }
    let [first, .., last] = slots.as_slice() else { panic!("no slots") };
    let took_us = last.due_at_us - first.due_at_us - idle_us;
    let should_take_us = SLOT_US * i64::try_from(slots.len() - 1).unwrap();
    assert!(
        (took_us - should_take_us).abs() <= should_take_us / 100,
        "{took_us} us for {should_take_us} us of slots"
    );
}
