//! Calls that wait for a bucket whose node changes: nothing is granted where the bucket no longer is.

use crate::common::server::reply_or_error;
use crate::common::stored::{begin_to_follow, on_the_wire, wait_until_linked};
use crate::common::{is_before, shown, text, wait_until, Connection, Server};
use crate::nodes::{node_id, reshard, Cluster, MASTERS};
use crate::resharding::migrate_atomically;

/// In slot 0, which the first node serves.
const KEY: &str = "{t10790}";

/// A client of a node that waits for the one slot of a pool.
fn waiter(node: &Server, key: &str) -> Connection {
    let (mut client, mut waiter) = (node.connect(), node.connect());
    assert_eq!(client.decide(&format!("TB.HOLD {key} 1 0 1 86400000 a")).allowed, 1);
    let call = format!("TB.BHOLD {key} 1 0 1 86400000 b 86400000 SHARE tenant WEIGHT 3");
    waiter.inner().send_packed_command(&on_the_wire(&call)).unwrap();
    wait_until("it waits", || waiting(&mut client) == 1);
    waiter
}

fn waiting(client: &mut Connection) -> i64 {
    client.count("tokenbucket", "tokenbucket_waiting")
}

fn told(waiter: &mut Connection) -> String {
    reply_or_error(waiter.inner().recv_response()).map_or_else(|error| error, |reply| shown(&reply))
}

fn holds(client: &mut Connection, key: &str) -> String {
    shown(&client.say(&format!("TB.HOLDS {key}")))
}

#[test]
fn who_waits_for_a_slot_that_moves_is_sent_after_it_and_gets_nothing_on_the_old_node() {
    let key_by_key = |old: &Server, new: &Server| reshard(old, new, 1);
    for migrate in [key_by_key, migrate_atomically] {
        let cluster = Cluster::start(0);
        let (old, new) = (&cluster.nodes[0], &cluster.nodes[1]);
        let mut waiter = waiter(old, KEY);
        migrate(old, new);
        if old.connect().attempt(&format!("EXISTS {KEY}")).is_ok() {
            continue; // Older servers move no slots atomically.
        }
        let told = told(&mut waiter);
        let expected = if is_before(6, 2) { "UNBLOCKED " } else { "MOVED " };
        assert!(told.starts_with(expected), "{told}");
        cluster.wait_until_agreed();
        let held = holds(&mut new.connect(), KEY);
        assert!(held.starts_with("[[\"a\" \"1\" ") && !held.contains("\"b\""), "{held}");
        // Valkey removes them in the background.
        wait_until("nothing is left on the old node", || {
            let mut client = old.connect();
            (waiting(&mut client), client.keys()) == (0, 0)
        });
    }
}

/// Key by key: while one bucket of a call has moved and the other has not, neither is granted here.
#[test]
fn a_call_of_which_one_bucket_has_moved_gets_nothing() {
    const OTHER: &str = "{t10790}other";
    let cluster = Cluster::start(0);
    let (old, new) = (&cluster.nodes[0], &cluster.nodes[1]);
    let (mut client, mut waiter) = (old.connect(), old.connect());
    let hold = |key: &str| format!("TB.HOLD {key} 1 0 1 86400000 a");
    assert_eq!([KEY, OTHER].map(|key| client.decide(&hold(key)).allowed), [1, 1]);
    let call = format!("TB.BMHOLD 2 86400000 b 86400000 {KEY} 1 0 1 {OTHER} 1 0 1");
    waiter.inner().send_packed_command(&on_the_wire(&call)).unwrap();
    wait_until("it waits", || waiting(&mut client) == 1);
    new.connect().say(&format!("CLUSTER SETSLOT 0 IMPORTING {}", node_id(old)));
    client.say(&format!("CLUSTER SETSLOT 0 MIGRATING {}", node_id(new)));
    client.say(&format!("MIGRATE 127.0.0.1 {} {OTHER} 0 10000", new.port()));
    // A slot of the bucket that is still here becomes free: of the other one none is.
    client.decide(&format!("TB.GIVE {KEY} 1 0 1"));
    assert_eq!((waiting(&mut client), client.keys()), (1, 1), "granted of what has moved");
    client.say(&format!("MIGRATE 127.0.0.1 {} {KEY} 0 10000", new.port()));
    for node in [new, old] {
        node.connect().say(&format!("CLUSTER SETSLOT 0 NODE {}", node_id(new)));
    }
    let told = told(&mut waiter);
    assert!(["MOVED ", "UNBLOCKED "].iter().any(|code| told.starts_with(code)), "{told}");
    assert_eq!(client.keys(), 0, "left on the old node");
}

/// Clients come with `ASKING` to the node that a slot is moving to: nothing is different there, for buckets that have moved.
#[test]
fn a_call_that_waits_where_its_slot_is_imported_is_served_in_its_turn() {
    const REFILLED: &str = "{t10790}refilled";
    let cluster = Cluster::start(0);
    let (old, new) = (&cluster.nodes[0], &cluster.nodes[1]);
    new.connect().say(&format!("CLUSTER SETSLOT 0 IMPORTING {}", node_id(old)));
    old.connect().say(&format!("CLUSTER SETSLOT 0 MIGRATING {}", node_id(new)));
    let asking = |client: &mut Connection, call: &str| {
        client.say("ASKING");
        client.inner().send_packed_command(&on_the_wire(call)).unwrap();
    };
    let mut client = new.connect();
    let mut ask = |call: &str| {
        asking(&mut client, call);
        told(&mut client)
    };
    let mut waiters = [(); 3].map(|()| new.connect());
    let mut waiting = new.connect();
    // When it flows in, a hold is settled, or the time is over.
    assert!(ask(&format!("TB.TAKE {REFILLED} 1 5 1")).starts_with("[1 "));
    assert!(ask(&format!("TB.HOLD {KEY} 1 0 1 86400000 a")).starts_with("[1 "));
    asking(&mut waiters[0], &format!("TB.BTAKE {REFILLED} 1 5 1 86400000"));
    asking(&mut waiters[1], &format!("TB.BHOLD {KEY} 1 0 1 86400000 b 86400000"));
    asking(&mut waiters[2], &format!("TB.BHOLD {KEY} 1 0 1 86400000 c 100"));
    assert!(told(&mut waiters[0]).starts_with("[1 "));
    assert!(told(&mut waiters[2]).starts_with("[0 "));
    assert_eq!(self::waiting(&mut waiting), 1);
    assert!(ask(&format!("TB.HOLD {KEY} 1 0 1 86400000 late")).starts_with("[0 "));
    assert!(ask(&format!("TB.SETTLE {KEY} 1 0 a 0")).starts_with("[1 "));
    assert!(told(&mut waiters[1]).starts_with("[1 "));
    assert!(ask(&format!("TB.HOLD {KEY} 1 0 1 86400000 late")).starts_with("[0 "));
}

#[test]
fn a_cluster_failover_ends_the_waits_of_the_old_master() {
    let cluster = Cluster::start(1);
    let master = &cluster.nodes[0];
    let id = node_id(master);
    let is_its_replica = |node: &&Server| {
        let nodes = text(&node.connect().say("CLUSTER NODES"));
        nodes.lines().any(|line| line.contains("myself,slave") && line.contains(&id))
    };
    let replica = cluster.nodes[MASTERS..].iter().find(is_its_replica).expect("a replica of it");
    let mut waiter = waiter(master, KEY);
    replica.connect().say("CLUSTER FAILOVER");
    let told = told(&mut waiter);
    assert!(told.starts_with("UNBLOCKED ") || told.starts_with("MOVED "), "{told}");
    wait_until("the replica is the master", || {
        replica.connect().info("replication", "role") == "master"
            && master.connect().info("replication", "role") == "slave"
    });
    assert_eq!(waiting(&mut master.connect()), 0);
    cluster.wait_until_agreed();
    let mut client = replica.connect();
    let held = holds(&mut client, KEY);
    assert!(held.starts_with("[[\"a\" \"1\" ") && !held.contains("\"b\""), "{held}");
    assert_eq!(client.decide(&format!("TB.SETTLE {KEY} 1 0 a 0")).allowed, 1);
}

#[test]
fn a_failover_that_an_operator_asks_for_ends_the_waits_of_the_old_master() {
    let start = || Server::builder().option("repl-diskless-sync-delay", 0).start();
    let (master, replica) = (start(), start());
    begin_to_follow(&replica, &master);
    wait_until_linked(&replica);
    let mut client = master.connect();
    if is_before(6, 2) {
        return assert!(client.refusal("FAILOVER").contains("unknown command"));
    }
    let mut waiter = waiter(&master, "p");
    wait_until("the replica has everything", || {
        client.info("replication", "master_repl_offset")
            == replica.connect().info("replication", "slave_repl_offset")
    });
    client.say("FAILOVER");
    let told = told(&mut waiter);
    assert!(told.starts_with("UNBLOCKED ") || told.starts_with("REDIRECT "), "{told}");
    wait_until("they have changed places", || {
        replica.connect().info("replication", "role") == "master"
            && master.connect().info("replication", "role") == "slave"
    });
    wait_until_linked(&master);
    let tenants = replica.connect().info("tokenbucket", "tokenbucket_waiting_tenants");
    assert_eq!(tenants, "", "who waits is not replicated");
    let held = holds(&mut replica.connect(), "p");
    assert!(held.starts_with("[[\"a\" \"1\" ") && !held.contains("\"b\""), "{held}");
    replica.connect().say("TB.SETTLE p 1 0 a 0");
    assert_eq!(replica.connect().keys(), 0);
}
