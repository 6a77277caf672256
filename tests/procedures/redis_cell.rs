//! docs/how-to/move-from-redis-cell.md, with replicas: no limited caller gets anything again.

use crate::common::Connection;
use crate::machine::Machine;
use crate::upgrades::{both, fail_over, pair, wait_until_in_sync, PAGE};
use std::ops::Range;

const MOVE: &str = "docs/how-to/move-from-redis-cell.md";

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

fn change_module(replica: Machine, master: Machine) {
    replica.follow(PAGE, "stop a replica");
    replica.follow(MOVE, "delete the line of redis-cell");
    replica.follow(PAGE, "start with the module");
    wait_until_in_sync(replica, master);
}
