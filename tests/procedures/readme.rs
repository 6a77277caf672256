//! The block of README.md that loads the module into a server of the reader's own.

use crate::machine::{Machine, Machines};
use crate::traffic::Traffic;
use std::fs;

const BLOCK: &str = "install";

/// The module that `make` would have built there, and a configuration whose last line does not end.
fn prepare(machine: Machine) {
    machine.run("mkdir -p target/release && cp libtokenbucket.so target/release/");
    let file = machine.root().join("etc/redis/redis.conf");
    fs::write(&file, machine.configuration().trim_end()).unwrap();
    machine.run("systemctl start redis-server");
}

#[test]
fn the_install_block_can_be_pasted_twice_and_loses_no_grant() {
    let machines = Machines::new(&["own"]);
    let own = machines.get("own");
    prepare(own);
    let before = own.configuration();
    own.follow("README.md", BLOCK);
    assert_eq!(own.configuration().strip_prefix(&before).unwrap().matches("\nloadmodule ").count(), 1);
    let traffic = Traffic::on([own, own]);
    own.follow("README.md", BLOCK);
    assert_eq!(traffic.end_and_count_lost(own), 0);
    assert_eq!(own.configuration().matches("loadmodule").count(), 1);
}

/// Also the one that listens on any port: the stand-in for redis-cli calls it whatever the port.
#[test]
fn the_install_block_spares_every_server_if_the_module_does_not_load() {
    let machines = Machines::new(&["own"]);
    let own = machines.get("own");
    prepare(own);
    own.run("echo no module >target/release/libtokenbucket.so");
    let (before, process) = (own.configuration(), own.connect().info("server", "process_id"));
    own.follow("README.md", BLOCK);
    assert_eq!((own.configuration(), own.connect().info("server", "process_id")), (before, process));
}
