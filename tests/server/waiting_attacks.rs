//! Waiting clients that are killed, closed, unblocked and served at the same moments: no slot is lost, none is granted
//! twice, and each client gets its one reply.
//!
//! `WAITERS=10000` lets as many be killed at once, where the system lets a process open as many connections.

use super::holds::uuid;
use super::is_refused_before;
use crate::common::{environment, integer, text, wait_until, Connection, Random, Server};
use std::collections::BTreeMap;

const SLOTS: usize = 3;
/// As replies are shown.
const PONG: &str = "simple-string(\"PONG\")";
const HOLD: &str = "TB.BHOLD p 3 0 1 86400000";

/// A client whose call waits, with a call behind it that has to come after it.
struct Waiter {
    client: Connection,
    id: i64,
}

impl Waiter {
    fn new(server: &Server, name: &str) -> Self {
        let mut client = server.connect();
        let id = integer(&client.say("CLIENT ID"));
        client.send(&format!("{HOLD} {name} 86400000"));
        client.send("PING");
        Self { client, id }
    }

    /// Its reply, and nothing but the reply to the call behind it.
    fn reply(mut self) -> String {
        let told = self.client.receive();
        assert_eq!(self.client.receive(), PONG, "after {told}");
        assert_eq!(text(&self.client.say("ECHO last")), "last", "after {told}");
        told
    }
}

/// The ids of those who hold a slot.
pub fn holders(client: &mut Connection) -> Vec<String> {
    let rows: Vec<(String, String, i64)> = redis::from_redis_value(client.say("TB.HOLDS p")).unwrap();
    rows.into_iter().map(|(id, ..)| id).collect()
}

#[test]
fn a_thousand_kills_lose_no_slot_and_grant_none_twice() {
    const KILLS: u32 = 1000;
    const WAITERS: usize = 5;
    let server = Server::start();
    let (mut client, mut random) = (server.connect(), Random::new(25));
    let mut known: Vec<String> = (0..SLOTS).map(|slot| format!("first:{slot}")).collect();
    for name in &known {
        client.say(&format!("TB.HOLD p 3 0 1 86400000 {name}"));
    }
    // In order of arrival.
    let mut waiters: BTreeMap<String, Waiter> = BTreeMap::new();
    let (mut kills, mut number) = (0, 0);
    while kills < KILLS {
        while waiters.len() < WAITERS {
            let name = uuid(number);
            waiters.insert(name.clone(), Waiter::new(&server, &name));
            number += 1;
            wait_until("it waits", || client.waiting() == waiters.len() as i64);
        }
        let place = if random.once_in(2) { 0 } else { random.below(WAITERS as u64) as usize };
        let victim = waiters.keys().nth(place).unwrap().clone();
        let id = waiters[&victim].id;
        let attack = *random.pick(&["", "UNBLOCK", "close", "KILL ID", "KILL ID"]);
        let (is_attacked, is_killed) = (!attack.is_empty(), attack == "close" || attack == "KILL ID");
        if attack == "close" {
            waiters.get_mut(&victim).unwrap().client = server.connect();
        }
        // A slot becomes free in the same turn, before or after.
        let settled = random.once_in(2).then(|| known.swap_remove(random.below(SLOTS as u64) as usize));
        let settle = settled.map(|name| format!("TB.SETTLE p 3 0 {name} 0"));
        let attack = (is_attacked && attack != "close").then(|| format!("CLIENT {attack} {id}"));
        let mut calls: Vec<String> = settle.into_iter().chain(attack).collect();
        if random.once_in(2) {
            calls.reverse();
        }
        let mut batch = redis::pipe();
        for words in calls.iter().map(|call| call.split(' ').collect::<Vec<_>>()) {
            batch.cmd(words[0]).arg(&words[1..]);
        }
        if random.once_in(3) {
            batch.atomic();
        }
        if !calls.is_empty() {
            batch.query::<redis::Value>(client.inner()).unwrap();
        }
        let mut granted = Vec::new();
        wait_until("all slots are taken, and the rest waits", || {
            let holders = holders(&mut client);
            assert!(holders.len() <= SLOTS, "granted twice: {holders:?}");
            granted = holders.iter().filter(|holder| !known.contains(holder)).cloned().collect();
            let gone = usize::from(is_attacked && !granted.contains(&victim));
            holders.len() == SLOTS && client.waiting() == (WAITERS - granted.len() - gone) as i64
        });
        for name in granted {
            let waiter = waiters.remove(&name).expect("somebody who waits");
            if !is_killed || name != victim {
                let told = waiter.reply();
                assert!(told.starts_with("[1 "), "{name} has a slot, and was told {told}");
            }
            known.push(name);
        }
        if let Some(waiter) = waiters.remove(&victim) {
            if is_killed {
                kills += 1;
            } else if is_attacked {
                let told = waiter.reply();
                assert!(told.starts_with("[0 "), "{victim} has no slot, and was told {told}");
            } else {
                waiters.insert(victim, waiter);
            }
        }
    }
    drop(waiters);
    wait_until("all are gone", || client.waiting() == 0);
    for name in known {
        assert_eq!(client.decide(&format!("TB.SETTLE p 3 0 {name} 0")).allowed, 1);
    }
    assert_eq!(client.keys(), 0, "all slots are free");
}

#[test]
fn many_waiters_are_killed_or_served_at_once() {
    let count = environment("WAITERS", 300);
    let server = Server::builder()
        .option("maxclients", count + 100)
        .module_arguments(&["max-waiters", &count.to_string()])
        .start();
    let mut client = server.connect();
    // The first wants all, and the others one each.
    let wait = |client: &mut Connection| {
        let mut waiters: Vec<Connection> = (0..count).map(|_| server.connect()).collect();
        waiters[0].send(&format!("TB.BTAKE r {count} 1/d {count} 86400000"));
        wait_until("the first waits", || client.waiting() == 1);
        for waiter in &mut waiters[1..] {
            waiter.send(&format!("TB.BTAKE r {count} 1/d 1 86400000"));
        }
        wait_until("all wait", || client.waiting() == count as i64);
        waiters
    };
    client.say(&format!("TB.TAKE r {count} 1/d {count}"));
    let all_killed = wait(&mut client);
    client.say("CLIENT KILL TYPE normal");
    wait_until("all are gone", || client.waiting() == 0);
    drop(all_killed);
    drop(wait(&mut client));
    wait_until("all are gone", || client.waiting() == 0);
    // As it goes, the first one lets all others be served.
    let mut waiters = wait(&mut client);
    client.say(&format!("TB.GIVE r {count} 1/d {}", count - 1));
    assert_eq!(client.waiting(), count as i64);
    drop(waiters.remove(0));
    for waiter in &mut waiters {
        let told = waiter.receive();
        assert!(told.starts_with("[1 "), "{told}");
    }
    assert_eq!(client.waiting(), 0);
}

/// A slice has a bound, and calls come between two of them. Redis 7.2 aborts if the command that blocks a client unblocks it.
#[test]
fn calls_that_come_while_many_are_served_overtake_none_of_them() {
    const LATE: usize = 50;
    let (server, mut client) = Server::start_with_client();
    let mut sleeper = server.connect();
    for (count, share) in (100..1000).step_by(100).flat_map(|count| [(count, ""), (count, " SHARE t")]) {
        let mut callers: Vec<Connection> = (0..count + LATE).map(|_| server.connect()).collect();
        let take = format!("TB.BTAKE r 10000 1/d 1 86400000{share}");
        client.say("TB.TAKE r 10000 1/d 10000");
        callers[..count].iter_mut().for_each(|caller| caller.send(&take));
        wait_until("they wait", || client.waiting() == count as i64);
        // The server reads the calls that come meanwhile in one round of its loop.
        sleeper.send("DEBUG SLEEP 0.1");
        client.send(&format!("TB.GIVE r 10000 1/d {count}"));
        // Half of them are of another tenant, whose calls are next.
        let is_other = |number: usize| !share.is_empty() && number % 2 == 1;
        for (number, caller) in callers[count..].iter_mut().enumerate() {
            caller.send(&if is_other(number) { take.replace("SHARE t", "SHARE u") } else { take.clone() });
        }
        assert_eq!([sleeper.receive(), client.receive()].map(|reply| reply.len() > 2), [true; 2]);
        wait_until("the others wait", || client.waiting() == LATE as i64);
        // What is left of the second gift is more than of the first.
        client.say(&format!("TB.GIVE r 10000 1/d {}", 1000 + LATE));
        let place = |left: i64| if left < 1000 { -left } else { 10_000 - left };
        let places: Vec<i64> =
            callers.iter_mut().map(|caller| place(caller.receive_decision().remaining)).collect();
        let (early, late) = places.split_at(count);
        let last = early.iter().max().unwrap();
        let mut late = (0..LATE).filter(|number| !is_other(*number)).map(|number| late[number]);
        assert!(late.all(|place| place > *last), "of {count}{share}, one that came late is before {last}");
        client.say("DEL r");
    }
}

/// The server keeps two inner clients for each, and the arguments. A name is kept once.
#[test]
fn a_call_that_waits_keeps_its_arguments_once() {
    const BUCKETS: usize = 1024;
    const LONG: usize = 64 << 20;
    let server = Server::start();
    let mut client = server.connect();
    let mut grown = |key: &[u8], call: &[Vec<u8>]| {
        client.run(&[b"TB.HOLD".as_slice(), key, b"1", b"0", b"1", b"86400000", b"a"]);
        let mut waiter = server.connect();
        waiter.say("PING");
        let before = client.used_memory();
        let packed = call.iter().fold(redis::Cmd::new(), |packed, word| packed.clone().arg(word).to_owned());
        waiter.inner().send_packed_command(&packed.get_packed_command()).unwrap();
        wait_until("it waits", || client.waiting() == 1);
        let grown = client.used_memory() - before;
        drop(waiter);
        wait_until("it is gone", || client.waiting() == 0);
        grown
    };
    let head = |words: &str| words.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let buckets = (0..BUCKETS).flat_map(|number| head(&format!("bucket:{number:08} 1 0 1")));
    let wide: Vec<_> =
        head(&format!("TB.BMHOLD {BUCKETS} 86400000 b 86400000")).into_iter().chain(buckets).collect();
    let bytes = grown(b"bucket:00000000", &wide);
    assert!(bytes <= 900_000, "{bytes} bytes for {BUCKETS} buckets");
    let key = vec![b'k'; LONG];
    let mut long = head("TB.BHOLD key 1 0 1 86400000 b 86400000");
    long[1].clone_from(&key);
    let bytes = grown(&key, &long);
    assert!(bytes <= 170_000_000, "{bytes} bytes for a key of {LONG}");
}

/// The server disconnects them in the turn in which one of them gets a slot.
#[test]
fn waiters_that_are_evicted_go_away_and_the_rest_is_served() {
    const WAITERS: usize = 30;
    let server = Server::start();
    let mut client = server.connect();
    if is_refused_before((7, 0), &mut client, "CONFIG SET maxmemory-clients 0") {
        return;
    }
    client.say("CLIENT NO-EVICT ON");
    (0..SLOTS).for_each(|slot| drop(client.say(&format!("TB.HOLD p 3 0 1 86400000 first:{slot}"))));
    let mut waiters: Vec<Connection> = (0..WAITERS).map(|_| server.connect()).collect();
    for (number, waiter) in waiters.iter_mut().enumerate() {
        waiter.send(&format!("{HOLD} {number} 86400000"));
        wait_until("it waits", || client.waiting() == number as i64 + 1);
    }
    let mut batch = redis::pipe();
    batch.cmd("TB.SETTLE").arg(&["p", "3", "0", "first:0", "0"]);
    batch.cmd("CONFIG").arg(&["SET", "maxmemory-clients", "200000"]);
    batch.query::<redis::Value>(client.inner()).unwrap();
    wait_until("some are gone", || client.waiting() < WAITERS as i64 - 1);
    client.say("CONFIG SET maxmemory-clients 0");
    // For a moment nobody holds a slot, until those are served that wait.
    while client.keys() > 0 || client.waiting() > 0 {
        wait_until("no slot is free", || holders(&mut client).len() == SLOTS || client.waiting() == 0);
        holders(&mut client).iter().for_each(|id| drop(client.say(&format!("TB.SETTLE p 3 0 {id} 0"))));
    }
    let told: Vec<String> = waiters.iter_mut().map(Connection::receive).collect();
    let served = told.iter().filter(|told| told.starts_with("[1 ")).count();
    assert!((1..WAITERS).contains(&served) && !told.iter().any(|told| told.starts_with("[0 ")), "{told:?}");
}
