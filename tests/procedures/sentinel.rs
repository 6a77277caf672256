//! docs/operate/upgrades.md with Sentinel, and what docs/operate/what-fails.md says of masters that Sentinel replaces.

use crate::common::wait::wait_within;
use crate::common::{text, texts, timeout, wait_until, Connection};
use crate::machine::{Machine, Machines};
use crate::traffic::{Traffic, IN_FLIGHT};
use crate::upgrades::{
    assert_kept, both, exhaust, granted_again, pair, start_both, upgrade, wait_until_in_sync, PAGE,
};

#[test]
fn sentinel_fails_over_during_an_upgrade_and_each_node_starts_again() {
    let machines = pair();
    let [master, replica] = both(&machines);
    start_both(&machines);
    exhaust(&mut master.connect());
    master.run("redis-cli CONFIG SET min-replicas-to-write 0");
    start_sentinel(&machines);
    let traffic = Traffic::by_sentinel(&machines);
    upgrade(replica, master);
    fail_over_by_sentinel(&machines);
    let lost = traffic.end_and_count_lost(replica);
    assert!(lost <= IN_FLIGHT, "{lost} grants");
    upgrade(master, replica);
    // As in the wrong order: on a replica.
    master.follow(PAGE, "fail over by Sentinel");
    assert_kept(replica, master);
    for machine in [master, replica] {
        let setting = machine.run("redis-cli CONFIG GET min-replicas-to-write | tail -n 1");
        assert_eq!(setting, "0\n", "{}", machine.name);
    }
}

/// While one of them is promoted, the other still follows the old master.
#[test]
fn a_failover_with_two_replicas_loses_what_was_in_flight() {
    let machines = Machines::new(&["master", "replica", "other", "sentinel"]);
    let [master, replica] = both(&machines);
    let other = machines.get("other");
    other.configure("replica-priority 200");
    master.follow(PAGE, "start with the module");
    for machine in [replica, other] {
        machine.configure(&format!("replicaof 127.0.0.1 {}", master.port()));
        machine.follow(PAGE, "start with the module");
        wait_until_in_sync(machine, master);
    }
    start_sentinel(&machines);
    let traffic = Traffic::by_sentinel(&machines);
    // A master sends its stream to a new replica only once that has confirmed its file, up to a second later.
    [replica, other].into_iter().for_each(|machine| wait_until_in_sync(machine, master));
    fail_over_by_sentinel(&machines);
    let lost = traffic.end_and_count_lost(replica);
    assert!(lost <= IN_FLIGHT, "{lost} grants");
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

/// Its replica has all but the grants that were on their way, and every slot that is held.
#[test]
fn a_master_that_dies_under_sentinel_loses_what_was_in_flight() {
    let machines = watched_pair();
    let [master, replica] = both(&machines);
    exhaust(&mut master.connect());
    wait_until_in_sync(replica, master);
    let traffic = Traffic::by_sentinel(&machines);
    master.signal("KILL");
    let lost = traffic.end_and_count_lost(replica);
    assert!(lost <= IN_FLIGHT, "{lost} grants");
    assert_eq!(granted_again(&mut replica.connect()), 0);
}

/// At least the call that it got before it hung. How many more depends on the speed of the machine.
#[test]
fn a_master_that_hangs_grants_beside_its_successor_when_it_comes_back() {
    assert!(lost_by_a_master_that_hangs(0) > 0);
}

#[test]
fn a_master_that_needs_a_replica_loses_nothing_when_it_comes_back() {
    let lost = lost_by_a_master_that_hangs(1);
    assert!(lost <= IN_FLIGHT, "{lost} grants");
}

/// As a virtual machine that is moved: it takes itself for the master until Sentinel demotes it.
fn lost_by_a_master_that_hangs(least_replicas: usize) -> i64 {
    let machines = watched_pair();
    let [master, replica] = both(&machines);
    master.run(&format!("redis-cli CONFIG SET min-replicas-to-write {least_replicas}"));
    let traffic = Traffic::by_sentinel(&machines);
    master.signal("STOP");
    wait_until_named(&machines, replica);
    master.signal("CONT");
    wait_for_sentinel("the old master follows", || follows(master));
    traffic.end_and_count_lost(replica)
}

/// Returns whether it is linked to its master. Sentinel ends all connections when it demotes a master, this one too.
fn follows(machine: Machine) -> bool {
    let report =
        Connection::try_open(machine.port()).and_then(|mut client| client.attempt("INFO replication"));
    report.is_ok_and(|report| text(&report).contains("master_link_status:up"))
}

/// A master and its replica, whose Sentinel takes a master for dead after a second.
fn watched_pair() -> Machines {
    let machines = pair();
    start_both(&machines);
    start_sentinel(&machines);
    let sentinel = machines.get("sentinel");
    sentinel.connect().say("SENTINEL SET mymaster down-after-milliseconds 1000");
    machines
}

fn start_sentinel(machines: &Machines) {
    let sentinel = machines.get("sentinel");
    sentinel.configure(&format!(
        "sentinel monitor mymaster 127.0.0.1 {} 1\nsentinel down-after-milliseconds mymaster 60000\nsentinel failover-timeout mymaster 10000",
        machines.get("master").port()
    ));
    sentinel.run_with("systemctl start redis-server", "--sentinel");
    let mut watching = sentinel.connect();
    let replicas = machines.get("master").connect().info("replication", "connected_slaves");
    wait_for_sentinel("Sentinel knows the replicas", || {
        let report = text(&watching.say("INFO sentinel"));
        report.contains("status=ok") && report.contains(&format!("slaves={replicas}"))
    });
}

fn fail_over_by_sentinel(machines: &Machines) {
    let [master, replica] = both(machines);
    // At first Sentinel may know too little of the replica.
    wait_for_sentinel("Sentinel fails over", || {
        !master.follow(PAGE, "fail over by Sentinel").contains("still the master")
    });
    wait_until_named(machines, replica);
    let line = format!("replicaof 127.0.0.1 {}", replica.port());
    assert!(master.configuration().contains(&line), "{}", master.configuration());
    wait_for_sentinel("the configuration of the new master is written", || {
        !replica.configuration().contains("replicaof 127.0.0.1")
    });
    wait_until("the old master follows", || follows(master));
}

fn wait_until_named(machines: &Machines, master: Machine) {
    let mut watching = machines.get("sentinel").connect();
    wait_for_sentinel("Sentinel names the new master", || {
        texts(watching.say("SENTINEL get-master-addr-by-name mymaster"))[1] == master.port().to_string()
    });
}

/// Waits for what Sentinel does at intervals of ten seconds.
fn wait_for_sentinel(what: &str, mut condition: impl FnMut() -> bool) {
    wait_within(4 * timeout(), what, || condition().then_some(()));
}
