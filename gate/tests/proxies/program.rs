//! Programs that a test starts on free ports, each ended with it.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A slow machine may be slow.
const PATIENCE: Duration = Duration::from_secs(60);

fn answers(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// A program in a folder of its own.
pub struct Program {
    child: Child,
    pub port: u16,
    pub folder: tempfile::TempDir,
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

/// A new folder with these files.
pub fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    folder
}

/// The name of a program, by a variable that the Makefile sets.
pub fn program(variable: &str, default: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| default.to_owned())
}
