//! Calls that wait with shares: that weights and grants are counted, and who waits. Whose turn it is, for all calls and weights,
//! is judged by the model: `core/tests/pure/turns.rs`.

use super::waiting::play_all;
use crate::common::{array, shown, wait_until, Connection, Server};

#[test]
fn the_tenant_with_the_least_is_next() {
    play_all(
        "# slots of a pool, with weights: a slot of a tenant of half the weight is worth two
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
        d => [1 0 0 60000]",
    );
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
    wait_until("all are gone", || client.waiting() == 0);
    assert_eq!((state(&mut client, "p"), info(&mut client)), (String::new(), String::new()));
}
