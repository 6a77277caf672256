//! A sentinel of Redis, for the tests of this package and of the gate.

#![allow(dead_code)] // each test program uses its part

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::servers::{Server, READY_WITHIN};

/// A sentinel that alone decides whether its master, `mymaster`, is down. Ends with the test.
pub struct Sentinel {
    process: Child,
    pub port: u16,
    _folder: tempfile::TempDir,
}

impl Sentinel {
    pub fn of(master: &Server) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let settings = format!(
            "port {port}\nsentinel monitor mymaster 127.0.0.1 {} 1\nsentinel down-after-milliseconds mymaster 200\n",
            master.port
        );
        let file = folder.path().join("sentinel.conf");
        std::fs::write(&file, settings).expect("a file");
        let server = std::env::var("SERVER").unwrap_or("redis-server".to_owned());
        let mut command = Command::new(server);
        command.arg(file).arg("--sentinel").current_dir(folder.path()).stdout(Stdio::null());
        let sentinel = Self { process: command.spawn().expect("a server"), port, _folder: folder };
        let deadline = Instant::now() + READY_WITHIN;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "no sentinel");
            std::thread::sleep(Duration::from_millis(10));
        }
        sentinel
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn knows_a_replica(&self) -> bool {
        self.ask::<String>(&["INFO", "sentinel"]).contains("slaves=1")
    }

    /// Names another server as the master.
    pub fn monitor(&self, master: &Server) {
        self.ask::<()>(&["SENTINEL", "REMOVE", "mymaster"]);
        self.ask::<()>(&["SENTINEL", "MONITOR", "mymaster", "127.0.0.1", &master.port.to_string(), "1"]);
    }

    fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let client = redis::Client::open(self.url()).expect("a URL");
        let mut connection = client.get_connection().expect("a connection");
        redis::Cmd::new().arg(words).query(&mut connection).expect("an answer")
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
