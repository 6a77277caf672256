//! Calls that wait for a bucket whose node changes: nothing is granted where the bucket no longer is.

use crate::common::{is_before, shown, text, wait_until, Connection, Server};
use crate::nodes::{node_id, reshard, Cluster, MASTERS};
use crate::resharding::migrate_atomically;

/// In slot 0, which the first node serves.
const KEY: &str = "{t10790}";

/// A client of a node that waits for the one slot of the pool [`KEY`].
fn waiter(node: &Server) -> Connection {
    let (mut client, mut waiter) = (node.connect(), node.connect());
    assert_eq!(client.decide(&format!("TB.HOLD {KEY} 1 0 1 86400000 a")).allowed, 1);
    let call = format!("TB.BHOLD {KEY} 1 0 1 86400000 b 86400000 SHARE tenant WEIGHT 3");
    waiter.send(&call);
    wait_until("it waits", || client.waiting() == 1);
    waiter
}

fn assert_a_alone_is_held(server: &Server) {
    let held = shown(&server.connect().say(&format!("TB.HOLDS {KEY}")));
    assert!(held.starts_with("[[\"a\" \"1\" ") && !held.contains("\"b\""), "{held}");
}

#[test]
fn who_waits_for_a_slot_that_moves_is_sent_after_it_and_gets_nothing_on_the_old_node() {
    let key_by_key = |old: &Server, new: &Server| reshard(old, new, 1);
    for migrate in [key_by_key, migrate_atomically] {
        let cluster = Cluster::start(0);
        let (old, new) = (&cluster.nodes[0], &cluster.nodes[1]);
        let mut waiter = waiter(old);
        migrate(old, new);
        if old.connect().attempt(&format!("EXISTS {KEY}")).is_ok() {
            continue; // Older servers move no slots atomically.
        }
        let told = waiter.receive();
        let expected = if is_before(6, 2) { "UNBLOCKED " } else { "MOVED " };
        assert!(told.starts_with(expected), "{told}");
        cluster.wait_until_agreed();
        assert_a_alone_is_held(new);
        // Valkey removes them in the background.
        wait_until("nothing is left on the old node", || {
            let mut client = old.connect();
            (client.waiting(), client.keys()) == (0, 0)
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
    waiter.send(&call);
    wait_until("it waits", || client.waiting() == 1);
    new.connect().say(&format!("CLUSTER SETSLOT 0 IMPORTING {}", node_id(old)));
    client.say(&format!("CLUSTER SETSLOT 0 MIGRATING {}", node_id(new)));
    client.say(&format!("MIGRATE 127.0.0.1 {} {OTHER} 0 10000", new.port()));
    // A slot of the bucket that is still here becomes free: of the other one none is.
    client.decide(&format!("TB.OVERRIDE {KEY} 2 0 86400000"));
    assert_eq!((client.waiting(), client.keys()), (1, 1), "granted of what has moved");
    client.say(&format!("MIGRATE 127.0.0.1 {} {KEY} 0 10000", new.port()));
    let newcomer = client.attempt(&format!("TB.TAKE {KEY} 1 0 1"));
    assert!(newcomer.is_err_and(|error| error.starts_with("ASK")));
    assert!(is_before(6, 2) || client.waiting() == 1, "it waits until the slot has moved");
    for node in [new, old] {
        node.connect().say(&format!("CLUSTER SETSLOT 0 NODE {}", node_id(new)));
    }
    let told = waiter.receive();
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
        client.send(call);
    };
    let mut client = new.connect();
    let mut ask = |call: &str| {
        asking(&mut client, call);
        client.receive()
    };
    let mut waiters = [(); 3].map(|()| new.connect());
    let mut waiting = new.connect();
    // When it flows in, a hold is settled, or the time is over.
    assert!(ask(&format!("TB.TAKE {REFILLED} 1 5 1")).starts_with("[1 "));
    assert!(ask(&format!("TB.HOLD {KEY} 1 0 1 86400000 a")).starts_with("[1 "));
    asking(&mut waiters[0], &format!("TB.BTAKE {REFILLED} 1 5 1 86400000"));
    asking(&mut waiters[1], &format!("TB.BHOLD {KEY} 1 0 1 86400000 b 86400000"));
    asking(&mut waiters[2], &format!("TB.BHOLD {KEY} 1 0 1 86400000 c 100"));
    assert!(waiters[0].receive().starts_with("[1 "));
    assert!(waiters[2].receive().starts_with("[0 "));
    assert_eq!(waiting.waiting(), 1);
    assert!(ask(&format!("TB.HOLD {KEY} 1 0 1 86400000 late")).starts_with("[0 "));
    assert!(ask(&format!("TB.SETTLE {KEY} 1 0 a 0")).starts_with("[1 "));
    assert!(waiters[1].receive().starts_with("[1 "));
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
    let mut waiter = waiter(master);
    replica.connect().say("CLUSTER FAILOVER");
    let told = waiter.receive();
    assert!(["UNBLOCKED ", "MOVED "].iter().any(|code| told.starts_with(code)), "{told}");
    cluster.wait_until_agreed();
    assert_eq!(master.connect().waiting(), 0);
    assert_a_alone_is_held(replica);
    assert_eq!(replica.connect().decide(&format!("TB.SETTLE {KEY} 1 0 a 0")).allowed, 1);
}
