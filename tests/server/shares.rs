//! Calls that wait with shares: whose turn it is, and who waits. (The order for all calls and weights, by the model:
//! `core/tests/pure/turns.rs`.)
//!
//! `WAITERS=10000` lets as many calls wait, where the system lets a process open as many connections.

use super::waiting::{play_all, receive, send, waiting};
use super::waiting_attacks::holders;
use crate::common::wait::wait_for;
use crate::common::{array, environment, shown, wait_until, Connection, Random, Server};
use std::collections::HashMap;

#[test]
fn the_tenant_with_the_least_is_next() {
    play_all(
        "# the one call of another tenant is served second
        TB.TAKE r 1 1 1 => [1 0 0 1000]
        a: TB.BTAKE r 1 1 1 60000 SHARE loud
        b: TB.BTAKE r 1 1 1 60000 SHARE loud
        c: TB.BTAKE r 1 1 1 60000 SHARE loud
        d: TB.BTAKE r 1 1 1 60000 SHARE quiet
        (1 second later)
        a => [1 0 0 1000]
        (1 second later)
        d => [1 0 0 1000]
        (1 second later)
        b => [1 0 0 1000]
        (1 second later)
        c => [1 0 0 1000]

        # slots of a pool, with weights: a slot of a tenant of half the weight is worth two
        TB.HOLD p 2 0 2 60000 x => [1 0 0 60000]
        a: TB.BHOLD p 2 0 1 60000 a 60000 SHARE loud
        b: TB.BHOLD p 2 0 1 60000 b 60000 SHARE loud
        c: TB.BHOLD p 2 0 1 60000 c 60000 share loud
        d: TB.BHOLD p 2 0 1 60000 d 60000 share quiet weight 0.5
        e: TB.BHOLD p 2 0 1 60000 e 60000 SHARE quiet WEIGHT 0.5
        TB.SETTLE p 2 0 x 0 => [1 2 0 0]
        a => [1 1 0 60000]
        d => [1 0 0 60000]
        TB.SETTLE p 2 0 a 0 => [1 1 0 60000]
        b => [1 0 0 60000]
        TB.SETTLE p 2 0 b 0 => [1 1 0 60000]
        c => [1 0 0 60000]
        TB.SETTLE p 2 0 c 0 => [1 1 0 60000]
        e => [1 0 0 60000]

        # calls without a share are one tenant of weight 1
        TB.TAKE r 1 1 1 => [1 0 0 1000]
        a: TB.BTAKE r 1 1 1 60000
        b: TB.BTAKE r 1 1 1 60000
        c: TB.BTAKE r 1 1 1 60000 SHARE ann
        d: TB.BTAKE r 1 1 1 60000 SHARE ann
        (1 second later)
        a => [1 0 0 1000]
        (1 second later)
        c => [1 0 0 1000]
        (1 second later)
        b => [1 0 0 1000]
        (1 second later)
        d => [1 0 0 1000]

        # waits that end without a grant do not count
        TB.HOLD p 1 0 1 60000 x => [1 0 0 60000]
        a: TB.BHOLD p 1 0 1 60000 a 1000 SHARE loud
        b: TB.BHOLD p 1 0 1 60000 b 60000 SHARE loud
        c: TB.BHOLD p 1 0 1 60000 c 60000 SHARE loud
        d: TB.BHOLD p 1 0 1 60000 d 60000 SHARE quiet
        (1 second later)
        a => [0 0 59000 59000]
        b closes
        TB.SETTLE p 1 0 x 0 => [1 1 0 0]
        c => [1 0 0 60000]
        TB.SETTLE p 1 0 c 0 => [1 1 0 0]
        d => [1 0 0 60000]

        # what the next one lacks, no other takes
        TB.TAKE r 4 1 4 => [1 0 0 4000]
        large: TB.BTAKE r 4 1 4 60000 SHARE ann
        small: TB.BTAKE r 4 1 1 60000 SHARE bob
        (2 seconds later)
        TB.TAKE r 4 1 1 => [0 2 4000 2000]
        (2 seconds later)
        large => [1 0 0 4000]
        (1 second later)
        small => [1 0 0 4000]

        # a tenant that was away has saved nothing up
        TB.TAKE r 1 1 1 => [1 0 0 1000]
        b: TB.BTAKE r 1 1 1 60000 SHARE bob
        c: TB.BTAKE r 1 1 1 60000 SHARE bob
        d: TB.BTAKE r 1 1 1 60000 SHARE bob
        e: TB.BTAKE r 1 1 1 60000 SHARE bob
        (1 second later)
        b => [1 0 0 1000]
        (1 second later)
        c => [1 0 0 1000]
        a: TB.BTAKE r 1 1 1 60000 SHARE ann
        f: TB.BTAKE r 1 1 1 60000 SHARE ann
        (1 second later)
        d => [1 0 0 1000]
        (1 second later)
        a => [1 0 0 1000]
        (1 second later)
        e => [1 0 0 1000]
        (1 second later)
        f => [1 0 0 1000]

        # nor is it rid of what it was granted
        TB.TAKE r 4 1 4 => [1 0 0 4000]
        a: TB.BTAKE r 4 1 3 60000 SHARE ann
        b: TB.BTAKE r 4 1 1 60000 SHARE bob
        c: TB.BTAKE r 4 1 1 60000 SHARE bob
        d: TB.BTAKE r 4 1 1 60000 SHARE bob
        (3 seconds later)
        a => [1 0 0 4000]
        a: TB.BTAKE r 4 1 3 60000 SHARE ann
        (1 second later)
        b => [1 0 0 4000]
        (1 second later)
        c => [1 0 0 4000]
        (1 second later)
        d => [1 0 0 4000]
        (3 seconds later)
        a => [1 0 0 4000]",
    );
}

/// A client that waits for tokens of the pool `p`.
fn waiter(server: &Server, amount: i64, id: &str, share: &str) -> Connection {
    let mut client = server.connect();
    send(&mut client, &format!("TB.BHOLD p 10 0 {amount} 86400000 {id} 86400000 SHARE {share}"));
    client
}

/// Ends the only hold of `p`, and returns the id of the next one.
fn next_holder(client: &mut Connection, holder: &str) -> String {
    client.say(&format!("TB.SETTLE p 10 0 {holder} 0"));
    wait_for("the pool is held", || holders(client).pop())
}

#[test]
fn two_tenants_get_what_their_weights_say_within_the_bound() {
    const WEIGHTS: [i64; 2] = [1, 3];
    const WAITING: usize = 3;
    let server = Server::start();
    let (mut client, mut random) = (server.connect(), Random::new(38));
    client.say("TB.HOLD p 10 0 10 86400000 first");
    let mut holder = "first".to_owned();
    let mut waiters: HashMap<String, (Connection, usize, i64)> = HashMap::new();
    // Divided by the weight, and multiplied by both.
    let (mut granted, mut largest) = ([0; 2], 0);
    for number in 0..300 {
        for tenant in 0..2 {
            while waiters.values().filter(|(_, of, _)| *of == tenant).count() < WAITING {
                // One at a time has room.
                let amount = random.between(6, 10);
                let id = format!("{number}:{tenant}:{}", waiters.len());
                let share = format!("{tenant} WEIGHT {}", WEIGHTS[tenant]);
                let by_weight = amount * WEIGHTS[1 - tenant];
                largest = largest.max(by_weight);
                waiters.insert(id.clone(), (waiter(&server, amount, &id, &share), tenant, by_weight));
            }
        }
        wait_until("all wait", || waiting(&mut client) == waiters.len() as i64);
        holder = next_holder(&mut client, &holder);
        let (mut served, tenant, by_weight) = waiters.remove(&holder).expect("a call that waits");
        assert!(receive(&mut served).starts_with("[1 "));
        granted[tenant] += by_weight;
        assert!((granted[0] - granted[1]).abs() <= 2 * largest, "{granted:?}, after {number}");
    }
}

#[test]
fn however_many_calls_of_a_tenant_wait_the_first_of_another_is_served_second() {
    let count = environment("WAITERS", 300);
    let server = Server::builder()
        .option("maxclients", count + 100)
        .module_arguments(&["max-waiters", &count.to_string()])
        .start();
    let mut client = server.connect();
    client.say("TB.HOLD p 10 0 10 86400000 first");
    let loud: Vec<_> =
        (1..count).map(|number| waiter(&server, 10, &format!("loud:{number}"), "loud")).collect();
    wait_until("all wait", || waiting(&mut client) == loud.len() as i64);
    let mut quiet = waiter(&server, 10, "quiet", "quiet");
    wait_until("it waits", || waiting(&mut client) == count as i64);
    let first = next_holder(&mut client, "first");
    assert!(first.starts_with("loud:"), "{first} came before all others");
    assert_eq!(next_holder(&mut client, &first), "quiet");
    assert!(receive(&mut quiet).starts_with("[1 "));
}

#[test]
fn the_ten_tenants_with_most_waiting_calls_are_shown() {
    let server = Server::start();
    let mut client = server.connect();
    for key in ["p", "q"] {
        client.say(&format!("TB.HOLD {key} 1 0 1 86400000 x"));
    }
    let mut waiters = Vec::new();
    let mut wait = |client: &mut Connection, key: &str, share: &[&str]| {
        let id = waiters.len().to_string();
        let mut call = redis::cmd("TB.BHOLD");
        call.arg(&[key, "1", "0", "1", "86400000", &id, "86400000"]).arg(share);
        let mut waiter = server.connect();
        waiter.inner().send_packed_command(&call.get_packed_command()).unwrap();
        waiters.push(waiter);
        wait_until("it waits", || waiting(client) == waiters.len() as i64);
    };
    let state = |client: &mut Connection, key: &str| {
        let elements = array(client.run(&["TB.STATE", key]));
        elements.get(2).map_or_else(String::new, shown)
    };
    let info = |client: &mut Connection| client.info("tokenbucket", "tokenbucket_waiting_tenants");
    wait(&mut client, "p", &[]);
    assert_eq!((state(&mut client, "p"), info(&mut client)), (String::new(), String::new()));
    for tenant in 'a'..='k' {
        wait(&mut client, "p", &["SHARE", &tenant.to_string()]);
    }
    wait(&mut client, "p", &["SHARE", "k"]);
    let others =
        |row: fn(char) -> String, between: &str| ('a'..='h').map(row).collect::<Vec<_>>().join(between);
    let expected = format!("[[\"k\" 2] [\"\" 1] {}]", others(|tenant| format!("[\"{tenant}\" 1]"), " "));
    assert_eq!(state(&mut client, "p"), expected);
    assert_eq!(state(&mut client, "q"), "");
    wait(&mut client, "q", &["SHARE", "k"]);
    let expected = format!("\"k\"=3,\"\"=1,{}", others(|tenant| format!("\"{tenant}\"=1"), ","));
    assert_eq!(info(&mut client), expected);
    // A name that would be more lines and more tenants.
    let lines = "a\r\nb,c:1";
    (0..4).for_each(|_| wait(&mut client, "q", &["SHARE", lines, "WEIGHT", "7"]));
    assert_eq!(state(&mut client, "q"), "[[\"a\\r\\nb,c:1\" 4] [\"k\" 1]]");
    assert!(info(&mut client).starts_with("\"a\\r\\nb\\x2cc:1\"=4,\"k\"=3,"));
    drop(waiters);
    wait_until("all are gone", || waiting(&mut client) == 0);
    assert_eq!((state(&mut client, "p"), info(&mut client)), (String::new(), String::new()));
}
