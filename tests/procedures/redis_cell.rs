//! docs/how-to/move-from-redis-cell.md, with replicas: no limited caller gets anything again.

use crate::common::Connection;
use crate::machine::{Machine, Machines};
use crate::removal::delete_all_buckets;
use crate::upgrades::{both, fail_over, pair, wait_until_in_sync, PAGE};
use crate::users::create_and_keep;
use std::fs;
use std::ops::Range;

pub const MOVE: &str = "docs/how-to/move-from-redis-cell.md";

/// 1,000 tokens of each of these, which refill in 100 years.
const CALL: &str = "999 1000 3153600000 1000";

/// Returns how many of these users' quotas were full.
fn take_all(client: &mut Connection, users: Range<usize>) -> usize {
    users.filter(|n| client.throttle(&format!("user:{n} {CALL}"))[0] == 0).count()
}

#[test]
#[ignore = "make test-redis-cell builds redis-cell and runs it"]
fn the_move_from_redis_cell_keeps_every_limit() {
    let library = std::env::var("REDIS_CELL").expect("REDIS_CELL has to name redis-cell's library");
    let machines = pair();
    let [master, replica] = both(&machines);
    for machine in [master, replica] {
        machine.configure(&format!("loadmodule {library}"));
        machine.run("systemctl start redis-server");
    }
    wait_until_in_sync(replica, master);
    assert_eq!(take_all(&mut master.connect(), 0..5), 5);
    wait_until_in_sync(replica, master);
    change_module(replica, master);
    // redis-cell 0.2.2 does not replicate these.
    assert_eq!(take_all(&mut master.connect(), 5..10), 5);
    master.follow(MOVE, "pause redis-cell");
    replica.follow(MOVE, "synchronise once more");
    fail_over(master);
    master.run("redis-cli CLIENT UNPAUSE");
    let mut client = replica.connect();
    assert_eq!(take_all(&mut client, 0..10), 0);
    assert_eq!(client.decide("TB.TAKE new 1000 1000/36500d 1000").allowed, 1);
    change_module(master, replica);
    fail_over(replica);
    let mut client = master.connect();
    assert_eq!(take_all(&mut client, 0..10), 0);
    assert_eq!(client.decide("TB.TAKE new 1000 1000/36500d").allowed, 0);
    replica.run("systemctl restart redis-server");
    wait_until_in_sync(replica, master);
}

#[test]
#[ignore = "make test-redis-cell builds redis-cell and runs it"]
fn the_way_back_to_redis_cell_keeps_the_users() {
    let library = std::env::var("REDIS_CELL").expect("REDIS_CELL has to name redis-cell's library");
    let machines = Machines::new(&["master"]);
    let master = machines.get("master");
    master.follow(PAGE, "start with the module");
    master.connect().say("ACL SETUSER cell on >secret ~* +ping +cl.throttle +tb.take +tb.state");
    create_and_keep(master);
    assert_eq!(take_all(&mut master.connect(), 0..5), 5);
    delete_all_buckets(master);
    for _ in 0..2 {
        master.follow(MOVE, "add the line of redis-cell");
    }
    let configuration = master.configuration().replace("/path/to/libredis_cell.so", &library);
    assert_eq!(configuration.matches(&library).count(), 1);
    fs::write(master.root().join("etc/redis/redis.conf"), configuration).unwrap();
    master.follow(PAGE, "restart without the module");
    let mut client = master.connect();
    assert!(!client.has_command("TB.TAKE"));
    assert_eq!(take_all(&mut client, 0..5), 5);
    client.say("ACL SETUSER cell +cl.throttle");
    client.say("AUTH cell secret");
    client.throttle("user:6 1 1 1");
}

fn change_module(replica: Machine, master: Machine) {
    replica.follow(PAGE, "stop a replica");
    replica.follow(MOVE, "delete the line of redis-cell");
    replica.follow(PAGE, "start with the module");
    wait_until_in_sync(replica, master);
}
