//! What README.md says to try: `make run`, and the block that loads the module into a server of the reader's own.

use crate::common::{wait_until, Connection};
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

/// With a module that is built already, in a folder whose name has a space.
#[test]
fn make_run_starts_a_server_in_a_folder_of_two_words() {
    let machines = Machines::new(&["own"]);
    let own = machines.get("own");
    let tree = env!("CARGO_MANIFEST_DIR");
    own.run(&format!(
        "mkdir -p 'two words/target/release'; cp libtokenbucket.so 'two words/target/release/'
        (cd '{tree}' && cp -r Makefile Cargo.toml scripts redis.conf.example \"$OLDPWD/two words/\")
        printf '#!/bin/sh\necho cargo 1.99.0\n' >cargo; chmod +x cargo
        PATH=$PWD:${{PATH#*:}} setsid make -C 'two words' run PORT={} SERVER=\"$SERVER\" >\"$ROOT/log\" 2>&1 </dev/null & echo $! >\"$ROOT/pid\"",
        own.port()
    ));
    wait_until("the server listens", || Connection::try_open(own.port()).is_ok());
    assert_eq!(own.connect().decide("TB.TAKE user:1 10 100/m").remaining, 9);
    own.run("redis-cli SHUTDOWN NOSAVE");
}
