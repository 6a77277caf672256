//! Programs that a test starts on free ports, each ended with it.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use crate::http::{Backend, Reply};
use crate::servers::Server;

/// A test fails when what it waits for takes longer: a slow machine may be slow.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns once the condition holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A port below those that the kernel gives to clients, so that it stays free for a restart.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % 9000).expect("below 9000");
    loop {
        let port = 21_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 9000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

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

/// A gate with a folder of files. It may be killed and started again.
pub struct Gate {
    child: Option<Child>,
    settings: Vec<(String, String)>,
    /// Not with the limits: the gate watches those.
    log_folder: tempfile::TempDir,
    pub http_port: u16,
    pub grpc_port: u16,
}

impl Gate {
    /// Starts a gate whose limits are in `folder`.
    pub fn start(redis: &Server, folder: &Path, settings: &[(&str, &str)]) -> Self {
        let [http_port, grpc_port, debug_port] = [free_port(), free_port(), free_port()];
        let own = [
            ("REDIS_SOCKET_TYPE", "tcp".to_owned()),
            ("REDIS_URL", format!("127.0.0.1:{}", redis.port)),
            // A busy machine may be slower than the default.
            ("REDIS_TIMEOUT", "10s".to_owned()),
            ("RUNTIME_ROOT", folder.display().to_string()),
            ("RUNTIME_WATCH_ROOT", "false".to_owned()),
            ("PORT", http_port.to_string()),
            ("GRPC_PORT", grpc_port.to_string()),
            ("DEBUG_PORT", debug_port.to_string()),
            ("HOST", "127.0.0.1".to_owned()),
            ("GRPC_HOST", "127.0.0.1".to_owned()),
        ];
        let given = settings.iter().map(|(name, value)| (*name, (*value).to_owned()));
        let settings = own.into_iter().chain(given).map(|(name, value)| (name.to_owned(), value)).collect();
        let mut gate = Self { child: None, settings, log_folder: self::folder(&[]), http_port, grpc_port };
        gate.start_again();
        gate
    }

    pub fn start_again(&mut self) {
        let log = std::fs::File::options().create(true).append(true).open(self.log_file()).expect("a file");
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_tokenbucket-gate")])
            .envs(self.settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file"))
            .stderr(log)
            .spawn()
            .expect("the gate");
        self.child = Some(child);
        wait_until("the gate is healthy", || {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            assert!(ended.is_none(), "the gate ended: {}", self.log());
            crate::http::get(self.http_port, "/healthcheck", &[]).status == 200 && answers(self.grpc_port)
        });
    }

    /// Ends it without a word, as kill -9 does.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn log_file(&self) -> PathBuf {
        self.log_folder.path().join("log")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    pub fn metrics(&self) -> String {
        crate::http::get(self.http_port, "/metrics", &[]).body
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("the log of the gate:\n{}", self.log());
        }
    }
}

/// Redis, a backend and a folder with limits: what every test needs.
pub struct World {
    pub redis: Server,
    pub backend: Backend,
    pub folder: tempfile::TempDir,
}

impl World {
    /// With limits of one domain.
    pub fn new(limits: &str) -> Self {
        Self::with(Server::start(), limits)
    }

    pub fn with(redis: Server, limits: &str) -> Self {
        let world = Self { redis, backend: Backend::start("from the backend"), folder: folder(&[]) };
        std::fs::create_dir(world.folder.path().join("config")).expect("a folder");
        world.set_limits(limits);
        world
    }

    /// Replaces the file of limits.
    pub fn set_limits(&self, limits: &str) {
        let config = self.folder.path().join("config");
        // Under its name at once: the gate must not read half a file.
        std::fs::write(self.folder.path().join("new"), limits).expect("a file");
        std::fs::rename(self.folder.path().join("new"), config.join("limits.yaml")).expect("a file");
    }

    pub fn gate(&self, settings: &[(&str, &str)]) -> Gate {
        Gate::start(&self.redis, self.folder.path(), settings)
    }
}

/// The statuses of as many requests.
pub fn statuses(times: usize, mut ask: impl FnMut() -> Reply) -> Vec<u16> {
    (0..times).map(|_| ask().status).collect()
}
