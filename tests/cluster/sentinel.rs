//! A failover that Sentinel decides on.

use crate::common::engine::executable;
use crate::common::server::free_port;
use crate::common::stored::{begin_to_follow, wait_until_linked};
use crate::common::{decision, text, texts, wait_until, Connection, Server};
use redis::Value;
use std::process::{Child, Command, Stdio};

const CAPACITY: i64 = 1000;

#[test]
fn after_a_sentinel_failover_a_bucket_holds_what_was_last_replicated() {
    let mut master = Server::builder().option("repl-diskless-sync-delay", 0).start();
    let replica = Server::builder().option("repl-diskless-sync-delay", 0).start();
    begin_to_follow(&replica, &master);
    wait_until_linked(&replica);
    let sentinel = Sentinel::watch(&master);
    sentinel.wait_until_the_replica_is_known();

    let mut client = master.connect();
    take(&mut client, 400);
    assert_eq!(client.run(&["WAIT", "1", "10000"]), Value::Int(1), "the replica has followed");
    take(&mut client, 100); // May be lost with the master.
    master.kill();

    wait_until("Sentinel names the replica as the master", || sentinel.master_port() == replica.port());
    let mut client = replica.connect();
    wait_until("the replica is the master", || client.info("replication", "role") == "master");
    let (level, _) = client.state("user:1").expect("the bucket is there");
    let level: f64 = level.parse().unwrap();
    // 1000 tokens in 100 years: nothing to speak of flows in while a test runs.
    assert!((500.0..=600.01).contains(&level), "400 to 500 of {CAPACITY} were taken, and {level} are left");
    take(&mut client, 1);
}

fn take(client: &mut Connection, times: usize) {
    for _ in 0..times {
        let capacity = CAPACITY.to_string();
        let reply = client.run(&["TB.TAKE", "user:1", &capacity, "1000/36500d"]);
        assert_eq!(decision(&reply).allowed, 1);
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
        let lines = [
            format!("port {port}"),
            "bind 127.0.0.1".to_owned(),
            format!("dir {}", folder.path().display()),
            format!("sentinel monitor limits 127.0.0.1 {} 1", master.port()),
            "sentinel down-after-milliseconds limits 1000".to_owned(),
            "sentinel failover-timeout limits 10000".to_owned(),
        ];
        std::fs::write(&file, lines.join("\n")).unwrap();
        let child = Command::new(executable())
            .arg(&file)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let sentinel = Self { child, port, _folder: folder };
        wait_until("Sentinel answers", || Connection::try_open(port).is_ok());
        sentinel
    }

    fn connect(&self) -> Connection {
        Connection::try_open(self.port).unwrap()
    }

    fn wait_until_the_replica_is_known(&self) {
        let mut connection = self.connect();
        wait_until("Sentinel knows the replica", || {
            let report = text(&connection.run(&["INFO", "sentinel"]));
            report.contains("status=ok") && report.contains("slaves=1")
        });
    }

    fn master_port(&self) -> u16 {
        texts(self.connect().run(&["SENTINEL", "get-master-addr-by-name", "limits"]))[1].parse().unwrap()
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
