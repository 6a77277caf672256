//! throttlecrab-server: a rate limiter that is a server of its own, and reads the protocol of Redis.

use crate::common::server::free_port;
use crate::common::wait::wait_until;

use crate::server::version_built;
use crate::target::Target;
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

/// What its command is called in reports: with the release that is built.
pub static THROTTLECRAB_NAME: LazyLock<String> = LazyLock::new(|| {
    format!("throttlecrab-server {}", version_built(include_str!("../build-throttlecrab.sh")))
});

/// A running one, without buckets, which ends with this value.
pub struct ThrottleCrab {
    process: Child,
    port: u16,
}

impl ThrottleCrab {
    /// Starts the program that the environment variable `THROTTLECRAB` names.
    pub fn start() -> Self {
        let program = std::env::var("THROTTLECRAB").expect("THROTTLECRAB names the program");
        let port = free_port();
        let mut command = Command::new(program);
        command.args(["--redis", "--redis-host", "127.0.0.1", "--redis-port", &port.to_string()]);
        let process = command.args(["--log-level", "error"]).stdout(Stdio::null()).spawn();
        let process = process.expect("throttlecrab-server starts");
        wait_until("throttlecrab-server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { process, port }
    }

    pub fn target(&self) -> Target {
        Target { port: self.port, process_id: self.process.id() }
    }
}

impl Drop for ThrottleCrab {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
