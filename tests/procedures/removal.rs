//! docs/operate/upgrades.md, removal: the servers start with all other data and all users, and a server that still has buckets is
//! left as it is.

use crate::common::{is_before, text, wait_until};
use crate::machine::Machine;
use crate::traffic::Traffic;
use crate::upgrades::{both, exhaust, pair, start_both, wait_until_in_sync, PAGE};
use crate::users::{assert_known, create_and_keep, use_acl_file};

pub fn delete_all_buckets(master: Machine) {
    wait_until("all buckets are freed", || {
        master.follow(PAGE, "delete all buckets") == "tokenbucket_buckets:0\r\n"
    });
}

/// From all databases, whatever the keys are called, and from both kinds of files.
#[test]
fn a_removal_leaves_servers_that_start_with_all_other_data() {
    let machines = pair();
    let [master, replica] = both(&machines);
    for machine in [master, replica] {
        machine.configure("appendonly yes");
    }
    use_acl_file(replica);
    start_both(&machines);
    let users = [replica, master].map(create_and_keep);
    let mut client = master.connect();
    exhaust(&mut client);
    client.run(&[b"TB.TAKE".as_slice(), b"any\0byte\r\n'\" \xff", b"7", b"1/h"]);
    client.say("SET other data");
    // A server sends a new replica nothing until the replica has confirmed its first data, which takes up to a second.
    wait_until_in_sync(replica, master);
    let settings = if is_before(7, 0) { "" } else { "redis-cli CONFIG SET tokenbucket.on-oom allow" };
    master.run(&format!("{settings}\nredis-cli CONFIG REWRITE"));
    let traffic = Traffic::on([master, master]);
    for machine in [replica, master] {
        assert!(remove(machine).contains("nothing was changed"), "the clients have not stopped");
    }
    assert_eq!(traffic.end_and_count_lost(master), 0);
    delete_all_buckets(master);
    client.say("TB.TAKE again 10 1/h");
    delete_all_buckets(master);
    wait_until_in_sync(replica, master);
    for machine in [replica, master] {
        remove(machine);
        assert!(remove(machine).contains("nothing was changed"), "twice");
    }
    wait_until_in_sync(replica, master);
    for (machine, users) in [replica, master].into_iter().zip(users) {
        let mut client = machine.connect();
        assert_known(&mut client, &users);
        client.say("AUTH default any");
        assert_eq!((text(&client.say("GET other")), client.keys()), ("data".to_owned(), 1));
        assert!(!client.has_command("TB.TAKE"));
    }
}

fn remove(machine: Machine) -> String {
    machine.follow(PAGE, "restart without the module")
}
