//! docs/operate/upgrades.md: a failover after it grants nothing again, and each server starts as what it was.

use crate::common::stored::{buckets_alive, is_linked};
use crate::common::wait::wait_within;
use crate::common::{is_before, text, texts, timeout, wait_until, Connection};
use crate::machine::{block, page, Machine, Machines};

pub const PAGE: &str = "docs/operate/upgrades.md";

/// Quotas that refill by 0.02 tokens an hour.
const QUOTA: &str = "1000 1000/36500d";
const QUOTAS: usize = 5;
/// A semaphore whose slots are all held, in another database where there is one.
const SLOTS: usize = 3;

/// Takes 5,000 tokens and all slots of a semaphore.
fn exhaust(client: &mut Connection) {
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
fn granted_again(client: &mut Connection) -> i64 {
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
    wait_until("the replica is in sync", || {
        is_linked(&mut to)
            && to.info("replication", "slave_repl_offset") == from.info("replication", "master_repl_offset")
    });
}

/// Steps 1 and 3.
fn upgrade(replica: Machine, master: Machine) {
    replica.follow(PAGE, "stop a replica");
    replica.follow(PAGE, "start with the module");
    wait_until_in_sync(replica, master);
}

/// Step 2 without Sentinel.
pub fn fail_over(from: Machine, to: Machine) {
    from.run(&block(PAGE, "fail over").replace("-h replica", &format!("-h {}", to.name)));
}

/// Restarts both, and checks that one is the master, and that it grants nothing again.
fn assert_kept(master: Machine, replica: Machine) {
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
    for machine in [master, replica] {
        machine.follow(PAGE, "start with the module");
    }
    wait_until_in_sync(replica, master);
    exhaust(&mut master.connect());
    upgrade(replica, master);
    fail_over(master, replica);
    upgrade(master, replica);
    assert_kept(replica, master);
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
    fail_over(master, replica);
    exhaust(&mut replica.connect());
    wait_until_in_sync(master, replica);
    upgrade(master, replica);
    fail_over(replica, master);
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
fn sentinel_fails_over_during_an_upgrade_and_each_node_starts_again() {
    let machines = pair();
    let [master, replica] = both(&machines);
    for machine in [master, replica] {
        machine.follow(PAGE, "start with the module");
    }
    wait_until_in_sync(replica, master);
    exhaust(&mut master.connect());
    start_sentinel(&machines);
    upgrade(replica, master);
    fail_over_by_sentinel(&machines);
    upgrade(master, replica);
    assert_kept(replica, master);
}

/// As in the images: the module comes from the command line, and Sentinel sends `CONFIG REWRITE`.
#[test]
fn nodes_with_the_module_on_the_command_line_start_again_after_a_sentinel_failover() {
    let machines = pair();
    let [master, replica] = both(&machines);
    let start = |machine: Machine, verb| {
        let module = machine.root().join("root/libtokenbucket.so");
        machine.run_with(
            &format!("systemctl {verb} redis-server"),
            &format!("--loadmodule {}", module.display()),
        );
    };
    for machine in [master, replica] {
        start(machine, "start");
    }
    wait_until_in_sync(replica, master);
    exhaust(&mut master.connect());
    wait_until_in_sync(replica, master);
    start_sentinel(&machines);
    fail_over_by_sentinel(&machines);
    for machine in [master, replica] {
        start(machine, "restart");
    }
    wait_until_in_sync(master, replica);
    assert_eq!(granted_again(&mut replica.connect()), 0);
}

fn start_sentinel(machines: &Machines) {
    let sentinel = machines.get("sentinel");
    sentinel.configure(&format!(
        "sentinel monitor mymaster 127.0.0.1 {} 1\nsentinel down-after-milliseconds mymaster 60000\nsentinel failover-timeout mymaster 10000",
        machines.get("master").port()
    ));
    sentinel.run_with("systemctl start redis-server", "--sentinel");
    let mut watching = sentinel.connect();
    wait_for_sentinel("Sentinel knows the replica", || {
        let report = text(&watching.say("INFO sentinel"));
        report.contains("status=ok") && report.contains("slaves=1")
    });
}

fn fail_over_by_sentinel(machines: &Machines) {
    const COMMAND: &str = "redis-cli -p 26379 SENTINEL FAILOVER mymaster";
    assert!(page(PAGE).contains(&format!("`{COMMAND}`")), "the page has another command");
    let [master, replica] = both(machines);
    let mut watching = machines.get("sentinel").connect();
    // At first Sentinel may know too little of the replica.
    wait_for_sentinel("Sentinel begins a failover", || master.run(&format!("{COMMAND} || true")) == "OK\n");
    let named = replica.port().to_string();
    wait_for_sentinel("Sentinel names the new master", || {
        texts(watching.say("SENTINEL get-master-addr-by-name mymaster"))[1] == named
    });
    // With the configuration Sentinel ends all connections, ours too.
    wait_for_sentinel("both configurations are written", || {
        master.configuration().contains(&format!("replicaof 127.0.0.1 {named}"))
            && !replica.configuration().contains("replicaof 127.0.0.1")
    });
    wait_for_sentinel("the old master follows", || is_linked(&mut master.connect()));
}

/// Waits for what Sentinel does at intervals of ten seconds.
fn wait_for_sentinel(what: &str, mut condition: impl FnMut() -> bool) {
    wait_within(4 * timeout(), what, || condition().then_some(()));
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
    upgrade(replica, master);
    assert!(page(PAGE).contains(&format!("`{COMMAND}`")), "the page has another command");
    wait_until_reached(replica, master);
    wait_until("the failover begins", || replica.run(COMMAND) == "OK\n");
    wait_until("the old master follows", || is_linked(&mut master.connect()));
    upgrade(master, replica);
    assert_eq!(granted_again(&mut replica.connect()), 0);
    let delete = || replica.follow(PAGE, "delete all buckets") == "tokenbucket_buckets:0\r\n";
    wait_until("all buckets are freed", delete);
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

/// From all databases, whatever the keys are called, and from both kinds of files.
#[test]
fn a_removal_leaves_servers_that_start_with_all_other_data() {
    let machines = pair();
    let [master, replica] = both(&machines);
    for machine in [master, replica] {
        machine.configure("appendonly yes");
        machine.follow(PAGE, "start with the module");
    }
    wait_until_in_sync(replica, master);
    let mut client = master.connect();
    exhaust(&mut client);
    client.run(&[b"TB.TAKE".as_slice(), b"any\0byte\r\n'\" \xff", b"7", b"1/h"]);
    client.say("SET other data");
    let settings = if is_before(7, 0) { "" } else { "redis-cli CONFIG SET tokenbucket.on-oom allow" };
    master.run(&format!("{settings}\nredis-cli CONFIG REWRITE"));
    let delete = || master.follow(PAGE, "delete all buckets") == "tokenbucket_buckets:0\r\n";
    wait_until("all buckets are freed", delete);
    client.say("TB.TAKE again 10 1/h");
    wait_until("the late bucket is freed too", delete);
    wait_until_in_sync(replica, master);
    for machine in [replica, master] {
        machine.follow(PAGE, "restart without the module");
    }
    wait_until_in_sync(replica, master);
    for machine in [replica, master] {
        let mut client = machine.connect();
        assert_eq!((text(&client.say("GET other")), client.keys()), ("data".to_owned(), 1));
        assert!(!client.has_command("TB.TAKE"));
    }
}
