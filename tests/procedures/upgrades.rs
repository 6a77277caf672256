//! docs/operate/upgrades.md: a failover after it grants nothing again, and each server starts as what it was.

use crate::common::stored::{buckets_alive, is_linked};
use crate::common::{is_before, text, wait_until, Connection};
use crate::machine::{page, Machine, Machines};
use crate::redis_cell::MOVE;
use crate::removal::delete_all_buckets;
use crate::traffic::Traffic;

pub const PAGE: &str = "docs/operate/upgrades.md";

/// Quotas that refill by 0.02 tokens an hour.
const QUOTA: &str = "1000 1000/36500d";
const QUOTAS: usize = 5;
/// A semaphore whose slots are all held, in another database where there is one.
const SLOTS: usize = 3;

/// Takes 5,000 tokens and all slots of a semaphore.
pub fn exhaust(client: &mut Connection) {
    for n in 0..QUOTAS {
        assert_eq!(client.decide(&format!("TB.TAKE quota:{n} {QUOTA} 1000")).allowed, 1);
    }
    let _ = client.attempt("SELECT 3");
    for holder in 0..SLOTS {
        assert_eq!(client.decide(&format!("TB.HOLD pool {SLOTS} 0 1 86400000 {holder}")).allowed, 1);
    }
    client.say("SELECT 0");
}

/// Returns the tokens and slots that a server grants although [`exhaust`] took all.
pub fn granted_again(client: &mut Connection) -> i64 {
    let tokens =
        (0..QUOTAS).map(|n| client.decide(&format!("TB.TAKE quota:{n} {QUOTA} 1000")).allowed * 1000);
    let tokens: i64 = tokens.sum();
    let _ = client.attempt("SELECT 3");
    let slots =
        (0..SLOTS).map(|n| client.decide(&format!("TB.HOLD pool {SLOTS} 0 1 86400000 late:{n}")).allowed);
    let slots: i64 = slots.sum();
    client.say("SELECT 0");
    tokens + slots
}

/// Starts both with the module.
pub fn start_both(machines: &Machines) {
    let [master, replica] = both(machines);
    for machine in [master, replica] {
        machine.follow(PAGE, "start with the module");
    }
    wait_until_in_sync(replica, master);
}

/// A master and its replica, which have not started.
pub fn pair() -> Machines {
    let machines = Machines::new(&["master", "replica", "sentinel"]);
    let [master, replica] = both(&machines);
    replica.configure(&format!("replicaof 127.0.0.1 {}", master.port()));
    machines
}

pub fn both(machines: &Machines) -> [Machine<'_>; 2] {
    ["master", "replica"].map(|name| machines.get(name))
}

pub fn wait_until_in_sync(replica: Machine, master: Machine) {
    let (mut to, mut from) = (replica.connect(), master.connect());
    let mut sent = || from.count("replication", "master_repl_offset");
    wait_until("the replica has what was written before", || {
        let (least, is_linked) = (sent(), is_linked(&mut to));
        let received = to.count("replication", "slave_repl_offset");
        is_linked && (least..=sent()).contains(&received)
    });
}

/// Steps 1 and 3, twice.
pub fn upgrade(replica: Machine, master: Machine) {
    for is_deleted in [true, false] {
        let said = replica.follow(PAGE, "stop a replica");
        assert_eq!(said.contains("nothing was deleted"), !is_deleted, "{said}");
    }
    assert_eq!(replica.data_files(), 0);
    for _ in 0..2 {
        replica.follow(PAGE, "start with the module");
    }
    assert_eq!(replica.configuration().matches("loadmodule").count(), 1);
    wait_until_in_sync(replica, master);
}

/// Step 2 without Sentinel, twice.
pub fn fail_over(from: Machine) {
    from.follow(PAGE, "fail over");
    let said = from.follow(PAGE, "fail over");
    assert!(!said.contains("still the master"), "{said}");
}

/// Restarts both, and checks that one is the master, and that it grants nothing again.
pub fn assert_kept(master: Machine, replica: Machine) {
    assert_eq!(granted_again(&mut master.connect()), 0);
    for machine in [replica, master] {
        machine.run("systemctl restart redis-server");
    }
    wait_until_in_sync(replica, master);
    assert_eq!(granted_again(&mut master.connect()), 0);
    assert_eq!(buckets_alive(&mut replica.connect()), buckets_alive(&mut master.connect()));
}

#[test]
fn an_upgrade_keeps_every_token_and_leaves_one_master() {
    if is_before(6, 2) {
        return; // It has no FAILOVER.
    }
    let machines = pair();
    let [master, replica] = both(&machines);
    start_both(&machines);
    exhaust(&mut master.connect());
    let traffic = Traffic::on([master, replica]);
    upgrade(replica, master);
    fail_over(master);
    traffic.wait_for_grants();
    upgrade(master, replica);
    assert_kept(replica, master);
    assert_eq!(traffic.end_and_count_lost(replica), 0);
}

/// The old master follows a master with buckets before it has the module.
#[test]
fn the_module_is_added_without_a_gap() {
    if is_before(6, 2) {
        return; // It has no FAILOVER.
    }
    let machines = pair();
    let [master, replica] = both(&machines);
    for machine in [master, replica] {
        machine.run("systemctl start redis-server");
    }
    wait_until_in_sync(replica, master);
    upgrade(replica, master);
    fail_over(master);
    exhaust(&mut replica.connect());
    wait_until_in_sync(master, replica);
    upgrade(master, replica);
    fail_over(replica);
    assert_kept(master, replica);
}

#[test]
fn a_replica_that_loads_the_module_late_says_so_and_resynchronises() {
    let machines = pair();
    let [master, replica] = both(&machines);
    master.follow(PAGE, "start with the module");
    replica.run("install -m 755 libtokenbucket.so /usr/lib/redis/modules/");
    if !is_before(7, 0) {
        replica.configure("enable-module-command local");
    }
    replica.run("systemctl start redis-server");
    wait_until_in_sync(replica, master);
    exhaust(&mut master.connect());
    wait_until_in_sync(replica, master);
    replica.follow(PAGE, "load without a restart");
    assert_eq!(buckets_alive(&mut replica.connect()), 0);
    assert!(replica.log().contains("this replica lacks the buckets that its master has already"));
    replica.follow(PAGE, "resynchronise");
    wait_until_in_sync(replica, master);
    assert_eq!(buckets_alive(&mut replica.connect()), buckets_alive(&mut master.connect()));
    replica.run("redis-cli REPLICAOF NO ONE");
    assert_eq!(granted_again(&mut replica.connect()), 0);
}

/// With the data of before it would resume behind the buckets that it refused.
#[test]
fn a_replica_that_exited_without_the_module_gets_every_bucket() {
    let machines = pair();
    let [master, replica] = both(&machines);
    master.follow(PAGE, "start with the module");
    replica.configure("repl-diskless-load swapdb");
    replica.run("systemctl start redis-server");
    wait_until_in_sync(replica, master);
    exhaust(&mut master.connect());
    wait_until_in_sync(replica, master);
    replica.run("redis-cli SAVE; redis-cli CONFIG REWRITE");
    replica.follow(PAGE, "resynchronise");
    wait_until("the replica exits", || replica.run("redis-cli PING 2>/dev/null || true").is_empty());
    replica.follow(PAGE, "delete the data of a stopped replica");
    replica.follow(PAGE, "start with the module");
    wait_until_in_sync(replica, master);
    assert_eq!(buckets_alive(&mut replica.connect()), buckets_alive(&mut master.connect()));
    replica.run("redis-cli REPLICAOF NO ONE");
    assert_eq!(granted_again(&mut replica.connect()), 0);
}

#[test]
fn a_replica_in_a_cluster_gets_the_module_late_and_every_bucket() {
    const COMMAND: &str = "redis-cli CLUSTER FAILOVER";
    if is_before(7, 0) {
        return; // It has no CLUSTER ADDSLOTSRANGE.
    }
    let machines = Machines::new(&["master", "replica"]);
    let [master, replica] = both(&machines);
    for machine in [master, replica] {
        // Longer than a restart, so that none of them causes a failover.
        machine.configure("cluster-enabled yes\ncluster-node-timeout 30000");
    }
    master.follow(PAGE, "start with the module");
    master.run("redis-cli CLUSTER ADDSLOTSRANGE 0 16383");
    let id = master.run("redis-cli CLUSTER MYID");
    replica.run("systemctl start redis-server; redis-cli CLUSTER MEET master 6379");
    wait_until("the replica follows", || replica.run(&format!("redis-cli CLUSTER REPLICATE {id}")) == "OK\n");
    wait_until_in_sync(replica, master);
    wait_until_served(master);
    exhaust(&mut master.connect());
    wait_until_in_sync(replica, master);
    let traffic = Traffic::on([master, replica]);
    upgrade(replica, master);
    assert!(page(PAGE).contains(&format!("`{COMMAND}`")), "the page has another command");
    wait_until_reached(replica, master);
    wait_until("the failover begins", || replica.run(COMMAND) == "OK\n");
    wait_until("the old master follows", || is_linked(&mut master.connect()));
    upgrade(master, replica);
    assert_eq!(granted_again(&mut replica.connect()), 0);
    assert_eq!(traffic.end_and_count_lost(replica), 0);
    delete_all_buckets(replica);
    wait_until_in_sync(master, replica);
    assert_eq!([master, replica].map(|machine| machine.connect().keys()), [0, 0]);
}

/// Or else the master's vote is lost, and the next comes after four times the node timeout.
fn wait_until_reached(replica: Machine, master: Machine) {
    let (id, mut client) = (replica.run("redis-cli CLUSTER MYID"), master.connect());
    wait_until("the master reaches the replica", || {
        let nodes = text(&client.say("CLUSTER NODES"));
        nodes.lines().any(|node| node.starts_with(id.trim()) && node.contains(" connected"))
    });
}

fn wait_until_served(node: Machine) {
    let mut client = node.connect();
    wait_until("the cluster serves", || text(&client.say("CLUSTER INFO")).contains("cluster_state:ok"));
}

/// Carries out steps on machines that they are not for: nothing changes, and nothing waits for ever.
#[test]
fn a_step_in_the_wrong_order_deletes_nothing() {
    let machines = pair();
    let [master, replica] = both(&machines);
    start_both(&machines);
    let mut client = master.connect();
    exhaust(&mut client);
    let traffic = Traffic::on([master, master]);
    let delete = |machine: Machine| {
        for procedure in ["stop a replica", "delete the data of a stopped replica"] {
            let said = machine.follow(PAGE, procedure);
            assert!(said.contains("nothing was deleted"), "{procedure} on {}: {said}", machine.name);
        }
    };
    delete(master);
    master.follow(PAGE, "resynchronise");
    master.follow(MOVE, "synchronise once more");
    // Another master, whose configuration still names the old one. It must have what was written before.
    wait_until_in_sync(replica, master);
    replica.run("redis-cli SAVE; redis-cli REPLICAOF NO ONE");
    delete(replica);
    assert_eq!(granted_again(&mut replica.connect()), 0);
    if !is_before(6, 2) {
        // Without a replica.
        assert!(master.follow(PAGE, "fail over").contains("still the master"));
    }
    assert_eq!(traffic.end_and_count_lost(master), 0);
    // The last copy, where the master has died.
    replica.run(&format!("redis-cli REPLICAOF 127.0.0.1 {}", master.port()));
    wait_until_in_sync(replica, master);
    master.signal("KILL");
    wait_until("the replica misses its master", || !is_linked(&mut replica.connect()));
    delete(replica);
    replica.signal("KILL");
    wait_until("the replica has ended", || replica.run("redis-cli PING 2>/dev/null || true").is_empty());
    assert!(replica.follow(PAGE, "delete the data of a stopped replica").contains("nothing was deleted"));
    assert_eq!(replica.data_files(), 1);
}
