//! Calls that wait with shares: that they are counted, and who waits. Whose turn it is, for all calls and weights, is judged by the
//! model: `core/tests/pure/turns.rs`.
//!
//! `WAITERS=10000` lets as many calls wait, where the system lets a process open as many connections.

use super::waiting::play_all;
use super::waiting_attacks::holders;
use crate::common::wait::wait_for;
use crate::common::{array, environment, shown, wait_until, Connection, Server};

#[test]
fn the_tenant_with_the_least_is_next() {
    play_all(include_str!("stories/shares.txt"));
}

/// A client that waits for all tokens of the pool `p`.
fn waiter(server: &Server, id: &str, share: &str) -> Connection {
    let mut client = server.connect();
    client.send(&format!("TB.BHOLD p 10 0 10 86400000 {id} 86400000 SHARE {share}"));
    client
}

/// Ends the only hold of `p`, and returns the id of the next one.
fn next_holder(client: &mut Connection, holder: &str) -> String {
    client.say(&format!("TB.SETTLE p 10 0 {holder} 0"));
    wait_for("the pool is held", || holders(client).pop())
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
    let _loud: Vec<_> = (1..count).map(|number| waiter(&server, &format!("l{number}"), "loud")).collect();
    wait_until("all wait", || client.waiting() == count as i64 - 1);
    let _quiet = waiter(&server, "quiet", "quiet");
    wait_until("it waits", || client.waiting() == count as i64);
    let first = next_holder(&mut client, "first");
    assert_ne!(first, "quiet");
    assert_eq!(next_holder(&mut client, &first), "quiet");
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
        wait_until("it waits", || client.waiting() == waiters.len() as i64);
    };
    let state = |client: &mut Connection, key: &str| {
        let elements = array(client.run(&["TB.STATE", key]));
        elements.get(3).map_or_else(String::new, shown)
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
    wait_until("all are gone", || client.waiting() == 0);
    assert_eq!((state(&mut client, "p"), info(&mut client)), (String::new(), String::new()));
}
