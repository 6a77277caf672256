//! `TB.TAKEANY` and `TB.HOLDANY`: the first of several alternatives that allows.

use super::acl::limited;
use super::stories::play_all;
use crate::common::clock::START_US;
use crate::common::stored::{assert_same_buckets, buckets};
use crate::common::{array, integer, shown, text, texts, wait_until, Connection, Random, Server};
use redis::Value;

#[test]
fn stories_of_alternatives() {
    play_all(include_str!("stories/one_of.txt"));
}

/// The buckets of the walk, and the limit of each: the last ones are pools.
const LIMITS: [(&str, &str); 6] =
    [("a", "10 1"), ("b", "5 5@10s"), ("c", "4 1/3s"), ("d", "3 3@d"), ("p", "3 0"), ("q", "2 0")];
const POOLS: usize = 2;

/// One bucket of a call: `key capacity rate` and an amount.
type Group = (&'static str, String, String);

fn words(groups: &[Group]) -> String {
    let groups = groups.iter().map(|(key, limit, amount)| format!("{key} {limit} {amount}"));
    groups.collect::<Vec<_>>().join(" ")
}

/// A call on alternatives, of a hold if there is an id.
struct OneOf {
    alternatives: Vec<Vec<Group>>,
    id: Option<u64>,
}

impl OneOf {
    fn random(random: &mut Random) -> Self {
        let id = random.once_in(2).then(|| random.below(3));
        let known = LIMITS.len() - if id.is_some() { 0 } else { POOLS };
        let each = random.between(1, 3) as usize;
        let mut alternative = || {
            let groups = random.shuffled(&LIMITS[..known]).into_iter().take(each);
            let groups = groups.collect::<Vec<_>>().into_iter().map(|(key, limit)| {
                let amount = *random.pick(&["0", "1", "1", "2", "2.5", "4", "9"]);
                (key, limit.to_owned(), amount.to_owned())
            });
            groups.collect()
        };
        let alternatives = (0..4).map(|_| alternative()).collect();
        Self { alternatives, id }
    }

    fn words(&self) -> String {
        let each = self.alternatives[0].len();
        let all = self.alternatives.iter().map(|groups| words(groups)).collect::<Vec<_>>().join(" ");
        let numkeys = self.alternatives.len() * each;
        match self.id {
            None => format!("TB.TAKEANY {numkeys} {each} {all}"),
            Some(id) => format!("TB.HOLDANY {numkeys} {each} 7000 {id} {all}"),
        }
    }

    /// Does it by `TB.MTAKE` or `TB.MHOLD` of one alternative after the other, until one is allowed.
    fn one_by_one(&self, client: &mut Connection) -> Vec<Value> {
        let held = self.held(client);
        let mut soonest: Option<(u64, Vec<Value>)> = None;
        for (place, groups) in self.alternatives.iter().enumerate() {
            if held.is_some_and(|held| held != place) {
                continue;
            }
            let (each, words) = (groups.len(), words(groups));
            let mut reply = array(client.say(&match self.id {
                None => format!("TB.MTAKE {each} {words}"),
                Some(id) => format!("TB.MHOLD {each} 7000 {id} {words}"),
            }));
            if integer(&reply[0]) == 1 {
                reply[0] = Value::Int(place as i64 + 1);
                return reply;
            }
            let wait = integer(&reply[2]) as u64;
            if soonest.as_ref().is_none_or(|(soonest, _)| wait < *soonest) {
                soonest = Some((wait, reply));
            }
        }
        soonest.expect("there is an alternative").1
    }

    /// Returns the place of the alternative that has the hold: the first that wants what is held, or else the first. Looks at no
    /// more buckets than the module: who looks at a key that has expired ends it, even if the clock steps back next.
    fn held(&self, client: &mut Connection) -> Option<usize> {
        let id = self.id?.to_string();
        let mut held = |(key, ..): &Group| {
            let mut holds = array(client.say(&format!("TB.HOLDS {key}"))).into_iter().map(array);
            holds.find(|hold| text(&hold[0]) == id).map_or_else(|| "0".to_owned(), |hold| text(&hold[1]))
        };
        let mut first = None;
        for (place, groups) in self.alternatives.iter().enumerate() {
            let mut wanting = groups.iter().filter(|(.., amount)| amount != "0").peekable();
            let is_held = match wanting.peek() {
                Some(_) => wanting.all(|group| held(group) != "0"),
                None => groups.iter().any(|group| held(group) != "0"),
            };
            if is_held && groups.iter().all(|group| held(group) == group.2) {
                return Some(place);
            }
            first = first.or(is_held.then_some(place));
        }
        first
    }
}

/// A call of another kind, which the walk makes in between.
fn any_other(random: &mut Random) -> String {
    let (key, limit) = *random.pick(&LIMITS);
    let id = random.below(3);
    match random.below(8) {
        0 => format!("TB.HOLD {key} {limit} {} 9000 {id}", random.below(4)),
        1..=2 => format!("TB.SETTLE {key} {limit} {id} 0"),
        3 => format!("TB.OVERRIDE {key} {} 2 {}", random.below(8), random.below(9000)),
        4 => format!("TB.HOLD {key} {limit} 0 9000 {id}"),
        _ if limit.ends_with(" 0") => format!("TB.HOLD {key} {limit} 1 5000 other"),
        5 => format!("TB.GIVE {key} {limit} {}", random.below(4)),
        6 => format!("TB.CHARGE {key} {limit} {}", random.below(4)),
        _ => format!("TB.TAKE {key} {limit} {}", random.below(4)),
    }
}

/// In one database each call is made, in the other one its alternatives one by one, which the exact model judges elsewhere: beside
/// holds, pools, calendar rates, overrides, clocks that step back and calls that wait.
#[test]
fn one_of_several_is_the_first_that_is_allowed_alone() {
    const ROUNDS: u64 = 60;
    const CALLS: u64 = 30;
    let (server, mut client) = Server::with_clock_and_client();
    let mut twin = server.connect();
    twin.say("SELECT 1");
    let (mut random, mut numbers, mut times_waited) = (Random::new(66), [0; 5], 0);
    for _ in 0..ROUNDS {
        client.say("FLUSHALL");
        server.clock().set_us(START_US);
        let mut waiters = Vec::new();
        for _ in 0..CALLS {
            let other = any_other(&mut random);
            assert_eq!(shown(&client.say(&other)), shown(&twin.say(&other)), "{other}");
            settle(&mut client, &mut twin);
            if random.once_in(10) {
                wait_in_both(&server, &mut client, &mut waiters);
            }
            let one_of = OneOf::random(&mut random);
            let (reply, words) = (client.say(&one_of.words()), one_of.words());
            let expected = Value::Array(one_of.one_by_one(&mut twin));
            assert_eq!(shown(&reply), shown(&expected), "{words}");
            assert_same(&mut client, &mut twin, &words);
            numbers[integer(&array(reply)[0]) as usize] += 1;
            let pause_us = random.between(0, 4_000_000);
            server.clock().advance_us(if random.once_in(8) { -pause_us } else { pause_us });
            settle(&mut client, &mut twin);
        }
        times_waited += waiters.len();
        drop(waiters);
        wait_until("nobody waits", || client.waiting() == 0);
    }
    assert!(numbers.iter().all(|times| *times > 20), "{numbers:?}: too few of one kind");
    assert!(times_waited > 20, "too few calls wait");
}

/// Looks twice, as the timer may follow a clock that stepped back after the first database was looked at.
fn assert_same(client: &mut Connection, twin: &mut Connection, words: &str) {
    let mut look = || (buckets(client), buckets(twin));
    let (found, expected) = Some(look()).filter(|(found, expected)| found == expected).unwrap_or_else(look);
    assert_same_buckets(&found, &expected, words);
}

/// Waits until no call is due that waits in one of the databases.
fn settle(client: &mut Connection, twin: &mut Connection) {
    wait_until("the calls that are due are served", || match client.waiting() {
        0 => true,
        2 => [&mut *client, &mut *twin].iter_mut().all(|one| one.decide("TB.PEEK d 3 3@d 0").remaining < 3),
        _ => false,
    });
}

/// Lets a call wait in each database, for more than will be there for long.
fn wait_in_both(server: &Server, client: &mut Connection, waiters: &mut Vec<Connection>) {
    let waiting = client.waiting();
    if waiting > 0 || client.decide("TB.PEEK d 3 3@d 3").allowed == 1 {
        return;
    }
    for db in 0..2 {
        let mut waiter = server.connect();
        waiter.say(&format!("SELECT {db}"));
        waiter.send("TB.BTAKE d 3 3@d 3 86400000");
        wait_until("it waits", || client.waiting() == db + 1);
        waiters.push(waiter);
    }
}

#[test]
fn as_many_alternatives_as_there_may_be_are_found_checked_and_asked() {
    let (server, mut client) = Server::with_clock_and_client();
    for each in [1, 2, 512, 1024] {
        client.say("FLUSHALL");
        let groups = |last: &str| {
            let own = (0..1023).map(|number| format!("key:{number} 1 1/h 2"));
            own.chain([last.to_owned()]).collect::<Vec<_>>().join(" ")
        };
        let call = |last: &str| format!("TB.TAKEANY 1024 {each} {}", groups(last));
        let mut keys: Vec<_> = (0..1023).map(|number| format!("key:{number}")).collect();
        keys.push("key:last".to_owned());
        assert_eq!(texts(client.say(&format!("COMMAND GETKEYS {}", call("key:last 1 1/h 1")))), keys);
        let allowed = integer(&array(client.say(&call("key:last 1 1/h 1")))[0]);
        assert_eq!(allowed, if each == 1 { 1024 } else { 0 });
        let error = limited(&server, "+@all ~key:*").refusal(&call("foreign 1 1/h 1"));
        assert!(error.starts_with("NOPERM"), "{error}");
    }
    assert!(client.refusal(&format!("TB.TAKEANY 1025 1{}", " k 1 1 1".repeat(1025))).contains("1 to 1024"));
}
