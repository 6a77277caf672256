//! A bucket that is full again needs no key. Its key goes then, never before, and little later.

use super::decisions::YEAR_US;
use crate::common::calls::{prepare, Outcome, CALLS};
use crate::common::exact::{number::exact, whole, Limit, MILLION};
use crate::common::Server;

/// When a bucket is full, in Unix microseconds: not yet one before.
fn full_at_us((level, refilled_at_us): &(String, i64), limit: &Limit) -> i64 {
    let level_micro = exact(level) * whole(MILLION);
    let at_us = whole(*refilled_at_us) + limit.reaches_in_us(&level_micro, *refilled_at_us, &limit.capacity);
    at_us.ceil().to_integer().try_into().unwrap()
}

/// Holds the expiry of a bucket that was just written against the promise. `before_ms` is the one that it had.
fn assert_expires_in_time(server: &Server, key: &str, limit: &Limit, before_ms: Option<i64>) {
    let (mut client, now_us) = (server.connect(), server.clock().now_us());
    let state = client.state(key).unwrap();
    let full_at_us = full_at_us(&state, limit);
    let expires_at_ms = client.expires_at_ms(key).unwrap_or_else(|| panic!("{key} {state:?} never expires"));
    let earliest_ms = i64::try_from(full_at_us.unsigned_abs().div_ceil(1000)).unwrap();
    let latest_ms = earliest_ms + (full_at_us - now_us) / 4 / 1000 + 1000;
    // It is only ever lengthened.
    let (earliest_ms, latest_ms) = match before_ms {
        Some(before_ms) => (earliest_ms.max(before_ms), latest_ms.max(before_ms)),
        None => (earliest_ms, latest_ms),
    };
    assert!(
        (earliest_ms..=latest_ms).contains(&expires_at_ms),
        "{key} {state:?}, limit {}, expires at {expires_at_ms}, not from {earliest_ms} to {latest_ms}",
        limit.words,
    );
}

/// One millisecond before the bucket is full is too early, and one behind the latest is too late. One that is right stays:
/// writing it costs the server as much as the rest of a take.
#[test]
fn an_expiry_at_the_edge_is_judged_to_the_millisecond() {
    let limit = Limit::new("100", "1/3s");
    let (server, mut client) = Server::with_clock_and_client();
    for clock_us in [0, 1, 333, 998] {
        server.clock().advance_us(clock_us);
        client.say("TB.CHARGE twin 100 1/3s 50.12345");
        let full_at_us = full_at_us(&client.state("twin").unwrap(), &limit);
        let full_at_ms = i64::try_from(full_at_us.unsigned_abs().div_ceil(1000)).unwrap();
        let latest_ms = client.expires_at_ms("twin").unwrap();
        for expires_at_ms in [full_at_ms - 1, full_at_ms, latest_ms, latest_ms + 1] {
            client.say("TB.CHARGE user:1 100 1/3s 50");
            client.say(&format!("PEXPIREAT user:1 {expires_at_ms}"));
            client.say("TB.CHARGE user:1 100 1/3s 0.12345");
            assert_expires_in_time(&server, "user:1", &limit, Some(expires_at_ms));
            let stays = client.expires_at_ms("user:1") == Some(expires_at_ms);
            assert_eq!(stays, expires_at_ms >= full_at_ms, "{expires_at_ms}, full at {full_at_ms}");
            client.say("DEL user:1");
        }
        client.say("DEL twin");
    }
}

/// Whatever a user has done to the expiry, and however the bucket came under this name: the next write puts it right.
#[test]
fn the_next_write_repairs_an_expiry() {
    let (server, mut client) = Server::with_clock_and_client();
    let per_second = Limit::new("10", "1");
    for call in CALLS.iter().filter(|call| {
        call.keys().contains(&"k") && !matches!(call.outcome, Outcome::Filled | Outcome::Held(_))
    }) {
        for meddling in ["PERSIST k", "EXPIRE k 999999999", "TB.TAKE source 10 1 6;RENAME source k;PERSIST k"]
        {
            prepare(&mut client);
            meddling.split(';').for_each(|meddling| drop(client.say(meddling)));
            let meddled = client.expires_at_ms("k");
            call.make(&mut client);
            if call.outcome.writes() {
                assert_expires_in_time(&server, "k", &per_second, meddled);
            } else {
                assert_eq!(client.expires_at_ms("k"), meddled, "{} has written", call.words);
            }
        }
    }
}

/// A debt that takes longer to pay off than servers can count still has an expiry, far away.
#[test]
fn the_deepest_debt_is_kept() {
    let (_server, mut client) = Server::with_clock_and_client();
    client.say("TB.CHARGE debtor 1 1/365d 1e12");
    let expires_at_ms = client.expires_at_ms("debtor").unwrap();
    assert!(expires_at_ms > 100_000 * YEAR_US / 1000, "{expires_at_ms}");
}
