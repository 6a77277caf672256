//! `TB.MTAKE`: several buckets, all or nothing.

use super::acl::limited;
use super::decisions::any_limit;
use crate::common::clock::START_US;
use crate::common::judged_calls::{pause_us, take, JudgedCalls};
use crate::common::model::call::Wanted;
use crate::common::model::{Limit, Operation};
use crate::common::{decided, multi_decision, texts, Connection, Decision, Random, Server};
use tokenbucket_core::error::Error;

/// A call on all groups, each the words `key capacity rate cost`.
fn words(groups: &[String]) -> String {
    format!("TB.MTAKE {} {}", groups.len(), groups.join(" "))
}

fn take_all(client: &mut Connection, groups: &[String]) -> (Decision, Vec<Decision>) {
    multi_decision(&client.say(&words(groups)))
}

/// Many groups with a key of their own each.
fn many(count: usize, group: &str) -> Vec<String> {
    (0..count).map(|number| format!("key:{number} {group}")).collect()
}

#[test]
fn several_buckets_are_taken_from_together_or_not_at_all() {
    judge_takes_from_several(&Server::with_clock(), JudgedCalls::new, any_limit);
}

/// Whenever all buckets allow: as one take after the other. Otherwise nothing, but that each of them counts on from a
/// clock that stepped back.
pub fn judge_takes_from_several<'a>(
    server: &'a Server,
    walk: fn(&'a Server, u64) -> JudgedCalls<'a>,
    any_limit: fn(&mut Random) -> Limit,
) {
    const ROUNDS: u64 = 50;
    const CALLS: u64 = 12;
    let mut random = Random::new(2);
    let mut times_allowed = 0;
    for round in 0..ROUNDS {
        server.clock().set_us(START_US);
        let limits: Vec<_> = (0..random.between(2, 20)).map(|_| any_limit(&mut random)).collect();
        let mut walks: Vec<_> =
            (round * 100..).zip(&limits).map(|(number, _)| walk(server, number)).collect();
        for _ in 0..CALLS {
            // Mostly little, so that many buckets at once now and then allow.
            let takes: Vec<_> = limits
                .iter()
                .map(|limit| match random.once_in(8) {
                    true => take(&mut random, limit),
                    false => Operation::Take { cost_micro: limit.capacity_micro() / 20 },
                })
                .collect();
            if walks[0].has_overrides() && random.once_in(3) {
                let ttl_ms = random.between(0, 100_000);
                let overridden = random.below(walks.len() as u64) as usize;
                walks[overridden].call(&any_limit(&mut random), Wanted::Override { ttl_ms, fills: false });
            }
            times_allowed += u64::from(JudgedCalls::take_together(&mut walks, &limits, &takes));
            let pause_us = pause_us(&mut random, &limits[0]);
            server.clock().advance_us(if random.once_in(6) { -pause_us } else { pause_us });
        }
    }
    let both_ways = ROUNDS * CALLS / 10..ROUNDS * CALLS * 9 / 10;
    assert!(both_ways.contains(&times_allowed), "{times_allowed}: the costs do not try both ways");
}

#[test]
fn as_many_buckets_as_there_may_be_are_found_checked_and_taken_from_together() {
    let (server, mut client) = Server::with_clock_and_client();
    for count in [2, 17, 100, 1024] {
        let mut groups = many(count, "10 1 6");
        let keys: Vec<_> = (0..count).map(|number| format!("key:{number}")).collect();
        assert_eq!(texts(client.say(&format!("COMMAND GETKEYS {}", words(&groups)))), keys);
        let told = decided([1, 4, 0, 6000]);
        assert_eq!(take_all(&mut client, &groups), (told, vec![told; count]));
        assert_eq!(client.keys(), count as i64);
        assert_eq!(take_all(&mut client, &groups).0, decided([0, 4, 2000, 6000]));
        client.say("FLUSHALL");

        // The last of them can deny them all; be one of the others; or be none of the user's.
        let last = count - 1;
        client.decide(&format!("TB.TAKE key:{last} 10 1 5"));
        let (binding, own) = take_all(&mut client, &groups);
        assert_eq!(binding, decided([0, 5, 1000, 5000]));
        assert_eq!(own.iter().filter(|one| one.allowed == 1).count(), last);
        groups[last] = "key:0 20 5/m 2".to_owned();
        let refused = client.refusal(&words(&groups));
        assert_eq!(refused, format!("{}: 'key:0' is bucket 1 and bucket {count}", Error::DuplicateKey));
        groups[last] = "foreign 10 1 1".to_owned();
        let error = limited(&server, "+@all ~key:*").refusal(&words(&groups));
        assert!(error.starts_with("NOPERM"), "the last of {count}: {error}");
        assert_eq!(client.keys(), 1);
        client.say("FLUSHALL");
    }
    let refused = client.refusal(&words(&many(1025, "10 1 6")));
    assert_eq!(refused, format!("{}, not '1025'", Error::NumKeys));
}

/// The server finds the keys by their places, for its ACL and for cluster routing. If the module took another number of them,
/// there would be a key that nobody checked.
#[test]
fn whatever_numkeys_says_no_key_slips_past_the_acl() {
    let server = Server::start();
    let (mut client, mut anybody) = (limited(&server, "+@all ~a*"), server.connect());
    let spellings = "0,1,2,3,00,02,-2,+2, 2,2 ,2.0,2.,2e0,20e-1,0x2,1025,999999999999,9223372036854775807,\
        18446744073709551618,100000000000000000000000000000002,two,2\n,２,";
    for numkeys in spellings.split(',') {
        let call = ["TB.MTAKE", numkeys, "a", "10", "1", "1", "b", "10", "1", "1"];
        assert!(client.try_run(&call).is_err(), "{numkeys:?}");
        if numkeys != "2" {
            let refused = anybody.try_run(&call).unwrap_err();
            assert!(refused.starts_with("ERR numkeys"), "{numkeys:?}: {refused}");
        }
    }
    assert_eq!(anybody.keys(), 0);
}
