//! Programs that a test starts on free ports, each ended with it.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub use crate::gate::free_port;
use crate::gate::{Gate, Reply, Setup, PATIENCE};
use crate::http::Backend;
use crate::servers::Server;

pub fn answers(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// A program in a folder of its own.
pub struct Program {
    child: Child,
    pub port: u16,
    folder: tempfile::TempDir,
}

impl Program {
    /// Starts a program that listens on the port; `command` may name files in the folder.
    pub fn start(port: u16, folder: tempfile::TempDir, command: &[&str]) -> Self {
        let log = std::fs::File::create(folder.path().join("log")).expect("a file");
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .args(command)
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut program = Self { child, port, folder };
        program.wait_until_ready(command);
        program
    }

    fn wait_until_ready(&mut self, command: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        while !answers(self.port) {
            let ended = self.child.try_wait().expect("a child").is_some();
            assert!(!ended && Instant::now() < deadline, "{command:?} does not answer:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the log of the proxy on port {}:\n{}", self.port, self.log());
        }
    }
}

/// A file of gate/examples or gate/tests with other addresses than its own.
pub fn configured(path: &str, replaced: &[(&str, &str)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut text =
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for (from, to) in replaced {
        assert!(text.contains(from), "{} has no {from:?}", path.display());
        text = text.replace(from, to);
    }
    text
}

/// A new folder with these files.
pub fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    folder
}

/// The program of a proxy, by a variable that the Makefile sets.
pub fn program(variable: &str, default: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| default.to_owned())
}

/// Redis, a backend and limits: what every test needs.
pub struct World {
    pub redis: Server,
    pub backend: Backend,
    pub limits: String,
}

impl World {
    /// With limits of one domain.
    pub fn new(limits: &str) -> Self {
        Self::with(Server::start(), limits)
    }

    pub fn with(redis: Server, limits: &str) -> Self {
        Self { redis, backend: Backend::start("from the backend"), limits: limits.to_owned() }
    }

    /// A gate that is ready.
    pub fn gate(&self, settings: &[(&str, &str)]) -> Gate {
        // A busy machine may be slower than the default.
        let setup = Setup::redis(&self.redis.url()).set("REDIS_TIMEOUT", "10s").set_all(settings);
        let gate = setup.file("limits.yaml", &self.limits).start();
        gate.wait_until_healthy();
        gate
    }
}

/// The statuses of as many requests.
pub fn statuses(times: usize, mut ask: impl FnMut() -> Reply) -> Vec<u16> {
    (0..times).map(|_| ask().status).collect()
}
