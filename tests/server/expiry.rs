//! A bucket that is full again needs no key. Its key goes then, never before, and little later: `common/judged_calls.rs` judges
//! that of every write; here is what a user has done to the key meanwhile.

use crate::common::calls::{prepare, Outcome, CALLS};
use crate::common::clock::START_US;
use crate::common::model::{Bucket, Limit, Model, Operation};
use crate::common::{judged_calls, Connection, Server};

/// The model of a bucket that has just been written, on a key that was not there.
fn written(limit: &Limit, Bucket { level_micro, refilled_at_us }: Bucket) -> Model {
    let (mut model, amount_micro) = (Model::default(), limit.capacity_micro() - level_micro);
    model.apply(limit, Operation::Charge { amount_micro }, refilled_at_us, 1, false);
    model
}

/// Holds the expiry of `k`, which was just written, against the promise. `before_ms` is the one that it had: it is only
/// ever lengthened.
pub fn assert_expires_in_time(client: &mut Connection, limit: &Limit, before_ms: Option<i64>) {
    let bucket = judged_calls::stored(client.state("k")).unwrap();
    let window_ms = written(limit, bucket).expires_ms().unwrap();
    let [earliest_ms, latest_ms] = [window_ms.0, window_ms.1].map(|ms| ms.max(before_ms.unwrap_or(0)));
    let expires_at_ms = client.expires_at_ms("k");
    let in_time = expires_at_ms.is_some_and(|at_ms| (earliest_ms..=latest_ms).contains(&at_ms));
    assert!(in_time, "{bucket:?} of {limit:?}: {expires_at_ms:?} is not in {earliest_ms} to {latest_ms}");
}

/// Whatever a user has done to the expiry, and however the bucket came under this name: the next write puts it right.
#[test]
fn the_next_write_repairs_an_expiry() {
    let (_server, mut client) = Server::with_clock_and_client();
    let per_second = Limit::new("10", "1");
    for call in CALLS.iter().filter(|call| {
        call.keys().contains(&"k")
            && !matches!(call.outcome, Outcome::Filled | Outcome::Held(_) | Outcome::Overrode)
    }) {
        for meddling in [
            "PERSIST k",
            "EXPIRE k 999999999",
            "PEXPIRE k 1",
            "TB.TAKE source 10 1 6;RENAME source k;PERSIST k",
        ] {
            prepare(&mut client);
            meddling.split(';').for_each(|meddling| drop(client.say(meddling)));
            let meddled = client.expires_at_ms("k");
            call.make(&mut client);
            if call.outcome.writes() {
                assert_expires_in_time(&mut client, &per_second, meddled);
            } else {
                assert_eq!(client.expires_at_ms("k"), meddled, "{} has written", call.words);
            }
        }
    }
}

/// The tokens flow back within a second; the hold stays for an hour.
#[test]
fn the_next_write_keeps_the_key_until_its_last_hold_ends() {
    let (_server, mut client) = Server::with_clock_and_client();
    let ends_at_ms = START_US / 1000 + 3_600_000;
    for write in
        ["TAKE k 10 5 1", "TAKEUPTO k 10 5 1", "RESERVE k 10 5 1 0", "CHARGE k 10 5 1", "GIVE k 10 5 0.5"]
    {
        client.say("DEL k");
        client.decide("TB.HOLD k 10 5 1 3600000 id");
        client.say("PEXPIRE k 5000");
        client.decide(&format!("TB.{write}"));
        let expires_at_ms = client.expires_at_ms("k");
        assert!(expires_at_ms.is_some_and(|at_ms| at_ms >= ends_at_ms), "{write}: {expires_at_ms:?}");
    }
}
