//! A failover that Sentinel decides on.

use crate::common::engine::executable;
use crate::common::server::free_port;
use crate::common::stored::{begin_to_follow, wait_until_linked};
use crate::common::{text, texts, wait_until, Connection, Server};
use crate::nodes::{CAPACITY, RATE, REFILL};
use redis::Value;
use std::process::{Child, Command, Stdio};

#[test]
fn after_a_sentinel_failover_a_bucket_holds_what_was_last_replicated() {
    let [mut master, replica] =
        [(); 2].map(|()| Server::builder().option("repl-diskless-sync-delay", 0).start());
    begin_to_follow(&replica, &master);
    wait_until_linked(&replica);
    let sentinel = Sentinel::watch(&master);
    let mut watching = sentinel.connect();
    wait_until("Sentinel knows the replica", || {
        let report = text(&watching.say("INFO sentinel"));
        report.contains("status=ok") && report.contains("slaves=1")
    });

    let mut client = master.connect();
    take(&mut client, 400);
    assert_eq!(client.say("WAIT 1 10000"), Value::Int(1), "the replica has followed");
    take(&mut client, 100); // May be lost with the master.
    master.kill();

    wait_until("Sentinel names the replica as the master", || {
        let address = texts(watching.say("SENTINEL get-master-addr-by-name limits"));
        address[1] == replica.port().to_string()
    });
    let mut client = replica.connect();
    wait_until("the replica is the master", || client.info("replication", "role") == "master");
    let (level, _) = client.state("user:1").expect("the bucket is there");
    let level: f64 = level.parse().unwrap();
    assert!(
        (500.0..=600.0 + REFILL).contains(&level),
        "400 to 500 of {CAPACITY} were taken, and {level} are left"
    );
    take(&mut client, 1);
}

fn take(client: &mut Connection, times: usize) {
    for _ in 0..times {
        assert_eq!(client.decide(&format!("TB.TAKE user:1 {CAPACITY} {RATE}")).allowed, 1);
    }
}

/// A Sentinel that decides alone. Ended when it goes out of scope.
struct Sentinel {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Sentinel {
    fn watch(master: &Server) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, file) = (free_port(), folder.path().join("sentinel.conf"));
        let lines = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\n\
             sentinel monitor limits 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds limits 1000\n\
             sentinel failover-timeout limits 10000\n",
            folder.path().display(),
            master.port()
        );
        std::fs::write(&file, lines).unwrap();
        let mut command = Command::new(executable());
        command.arg(&file).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null());
        Self { child: command.spawn().unwrap(), port, _folder: folder }
    }

    fn connect(&self) -> Connection {
        wait_until("Sentinel answers", || Connection::try_open(self.port).is_ok());
        Connection::try_open(self.port).unwrap()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
