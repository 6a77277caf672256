//! One server.

use super::{decision, text, wait_until, Clock, Decision};
use redis::{ConnectionLike, Value};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// The executable under test.
pub fn executable() -> PathBuf {
    std::env::var_os("SERVER").map_or_else(|| PathBuf::from("redis-server"), PathBuf::from)
}

/// The module under test.
pub fn module() -> PathBuf {
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/release/libtokenbucket.so");
    let module = std::env::var_os("MODULE").map_or_else(built, PathBuf::from);
    assert!(module.exists(), "{} is missing: run 'cargo build --release' first", module.display());
    module
}

/// A port that is free, and the one of a cluster bus 10,000 above it too. Never the same one twice, and none that the
/// system gives to outgoing connections: a server that was killed has to find it free when it comes back.
pub fn free_port() -> u16 {
    const LOWEST: u16 = 10_000;
    const COUNT: u32 = 12_000;
    static TURN: AtomicU32 = AtomicU32::new(0);
    // Test programs that run side by side begin at different ports.
    let first = std::process::id().wrapping_mul(97) % COUNT;
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        let turn = (first + TURN.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = LOWEST + u16::try_from(turn).unwrap();
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}

/// The name of a server's configuration file in its folder, if it has one.
const CONFIGURATION_FILE: &str = "redis.conf";

/// What a server is to be started with.
pub struct ServerBuilder {
    options: Vec<(String, String)>,
    module_arguments: Option<Vec<String>>,
    controlled_clock: bool,
    shared_clock: Option<Arc<Clock>>,
    files: Option<PathBuf>,
    configuration_file: Option<String>,
}

impl ServerBuilder {
    /// Starts it with a configuration file, `redis.conf` in its folder, whose lines count less than the options.
    pub fn configuration_file(mut self, lines: &str) -> Self {
        self.configuration_file = Some(lines.to_owned());
        self
    }

    /// Adds a line of configuration, as in `--name value`. An empty value stands for `""`.
    pub fn option(mut self, name: &str, value: impl Display) -> Self {
        self.options.push((name.to_owned(), value.to_string()));
        self
    }

    /// Adds arguments of `loadmodule`.
    pub fn module_arguments(mut self, arguments: &[&str]) -> Self {
        self.module_arguments = Some(arguments.iter().map(ToString::to_string).collect());
        self
    }

    /// Starts without the module.
    pub fn without_module(mut self) -> Self {
        self.module_arguments = None;
        self
    }

    /// Gives the server a clock that only the test moves.
    pub fn controlled_clock(mut self) -> Self {
        self.controlled_clock = true;
        self
    }

    /// Gives the server the clock of another.
    pub fn clock_of(mut self, other: &Server) -> Self {
        self.shared_clock = other.clock.clone();
        self
    }

    /// Lets it begin on a copy of the data files in `folder`.
    pub fn files_in(mut self, folder: &Path) -> Self {
        self.files = Some(folder.to_owned());
        self
    }

    /// Starts it and waits until it answers.
    pub fn start(self) -> Server {
        let mut server = self.prepare();
        server.start_on_a_free_port();
        server
    }

    /// Starts it, expecting it to refuse; returns what it logged.
    pub fn start_expecting_refusal(self) -> String {
        let mut server = self.prepare();
        server.port = free_port();
        server.spawn();
        // Whichever exit code: a server that cannot read its snapshot ends with that of the tool that looks at it.
        server.wait_for_exit();
        server.log()
    }

    fn prepare(self) -> Server {
        let folder = tempfile::tempdir().unwrap();
        if let Some(files) = &self.files {
            copy_data_files(files, folder.path());
        }
        if let Some(lines) = &self.configuration_file {
            fs::write(folder.path().join(CONFIGURATION_FILE), lines).unwrap();
        }
        let clock =
            self.shared_clock.or_else(|| self.controlled_clock.then(|| Arc::new(Clock::new(folder.path()))));
        Server {
            child: None,
            port: 0,
            folder,
            options: self.options,
            module_arguments: self.module_arguments,
            clock,
        }
    }
}

/// Copies snapshots and append-only files, wherever the servers keep them.
pub fn copy_data_files(from: &Path, to: &Path) {
    const KINDS: [&str; 3] = [".rdb", ".aof", ".manifest"];
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        let shown = name.to_string_lossy();
        if entry.file_type().unwrap().is_dir() {
            fs::create_dir(to.join(&name)).unwrap();
            copy_data_files(&entry.path(), &to.join(&name));
        } else if KINDS.iter().any(|end| shown.ends_with(end)) && !shown.starts_with("temp-") {
            fs::copy(entry.path(), to.join(&name)).unwrap();
        }
    }
}

/// A running server in a folder of its own. Ended when it goes out of scope.
pub struct Server {
    child: Option<Child>,
    port: u16,
    folder: TempDir,
    options: Vec<(String, String)>,
    module_arguments: Option<Vec<String>>,
    clock: Option<Arc<Clock>>,
}

impl Server {
    /// A server with the module and nothing else: no file is written unless a test asks for it.
    pub fn builder() -> ServerBuilder {
        ServerBuilder {
            options: vec![("save".to_owned(), String::new())],
            module_arguments: Some(Vec::new()),
            controlled_clock: false,
            shared_clock: None,
            files: None,
            configuration_file: None,
        }
    }

    /// A server with the module and the defaults of the tests.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// The same with a clock that only the test moves.
    pub fn with_clock() -> Self {
        Self::builder().controlled_clock().start()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder in which the server runs and writes.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process id, that of the server itself.
    pub fn process_id(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Whether it was started, and not killed since.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// The clock that [`ServerBuilder::controlled_clock`] gave it.
    pub fn clock(&self) -> &Clock {
        self.clock.as_deref().expect("this server has the real clock")
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder().join("log")).unwrap_or_default()).into_owned()
    }

    /// A new connection, RESP2.
    pub fn connect(&self) -> Connection {
        Connection::open(&format!("redis://127.0.0.1:{}/", self.port))
    }

    /// A new connection, RESP3 (from 6.0 on).
    pub fn connect_resp3(&self) -> Connection {
        Connection::open(&format!("redis://127.0.0.1:{}/?protocol=resp3", self.port))
    }

    /// Kills the server as a power cut would, and starts it again on its files.
    pub fn kill_and_restart(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Kills the server as a power cut would.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Waits until the server has ended by itself, and returns its exit code.
    pub fn wait_for_exit(&mut self) -> i32 {
        let mut status = None;
        wait_until("the server ends", || {
            status = self.child.as_mut().unwrap().try_wait().unwrap();
            status.is_some()
        });
        self.child = None;
        let status = status.unwrap();
        status.code().unwrap_or_else(|| panic!("the server crashed: {status}\n{}", self.log()))
    }

    /// Lets the server shut down (saving or not), and starts it again on its files.
    pub fn restart(&mut self, save: bool) {
        let mut connection = self.connect();
        // The connection breaks instead of a reply.
        let _ = connection.try_run(&["SHUTDOWN", if save { "SAVE" } else { "NOSAVE" }]);
        self.child.take().unwrap().wait().unwrap();
        self.start_again();
    }

    /// Starts a server that was killed, on its files and its port.
    pub fn start_again(&mut self) {
        self.spawn();
        assert!(self.answers(), "the server did not come back:\n{}", self.log());
        self.wait_until_loaded();
    }

    /// Replaces or adds a line of configuration, for the next start.
    pub fn set_option(&mut self, name: &str, value: &str) {
        self.options.retain(|(known, _)| known != name);
        self.options.push((name.to_owned(), value.to_owned()));
    }

    fn start_on_a_free_port(&mut self) {
        const TRIES: u32 = 5;
        for _ in 0..TRIES {
            self.port = free_port();
            self.spawn();
            if self.answers() {
                self.wait_until_loaded();
                return;
            }
        }
        panic!("{} did not start:\n{}", executable().display(), self.log());
    }

    fn spawn(&mut self) {
        let log = File::options().create(true).append(true).open(self.folder().join("log")).unwrap();
        let mut command = Command::new(executable());
        let configuration_file = self.folder().join(CONFIGURATION_FILE);
        if configuration_file.exists() {
            command.arg(configuration_file);
        }
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--dir"])
            .arg(self.folder())
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log);
        if !is_before_7() {
            // 6.x has no such options, and needs none.
            command.args(["--enable-debug-command", "yes", "--enable-module-command", "yes"]);
        }
        for (name, value) in &self.options {
            command.arg(format!("--{name}")).arg(value);
        }
        if let Some(arguments) = &self.module_arguments {
            command.arg("--loadmodule").arg(module()).args(arguments);
        }
        if let Some(clock) = &self.clock {
            // This thread sleeps until a time of the clock, and would not sleep at all by one that is behind.
            command.args(["--jemalloc-bg-thread", "no"]);
            clock.govern(&mut command);
        }
        self.child = Some(command.spawn().unwrap_or_else(|error| {
            panic!("{} cannot be run: {error}; say which server with SERVER=path", executable().display())
        }));
    }

    /// Whether the process accepts connections. False once it has ended.
    fn answers(&mut self) -> bool {
        let deadline = std::time::Instant::now() + super::PATIENCE;
        while std::time::Instant::now() < deadline {
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                return false;
            }
            if self.holds_its_port() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// Whether it is our process that listens, and not another test's server that took the port a moment before.
    fn holds_its_port(&self) -> bool {
        let report = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(super::PATIENCE))?;
            stream.write_all(b"INFO server\r\nQUIT\r\n")?;
            let mut report = String::new();
            stream.read_to_string(&mut report)?;
            Ok(report)
        };
        let ours = format!("process_id:{}\r\n", self.process_id());
        // A server that wants a password first was asked for one by its own test.
        report().is_ok_and(|report| report.starts_with('-') || report.contains(&ours))
    }

    fn wait_until_loaded(&self) {
        let mut connection = self.connect();
        wait_until("the data is loaded", || connection.try_run(&["PING"]).is_ok());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether the server under test is older than 7.0.
pub fn is_before_7() -> bool {
    static BEFORE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *BEFORE.get_or_init(|| {
        let output = Command::new(executable()).arg("--version").output().unwrap_or_else(|error| {
            panic!("{} cannot be run: {error}; say which server with SERVER=path", executable().display())
        });
        String::from_utf8_lossy(&output.stdout).contains("v=6.")
    })
}

/// A client's connection.
pub struct Connection {
    connection: redis::Connection,
    _client: redis::Client,
}

impl Connection {
    fn open(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        let mut last_error = None;
        for _ in 0..100 {
            match client.get_connection_with_timeout(Duration::from_secs(5)) {
                Ok(connection) => {
                    connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                    return Self { connection, _client: client };
                }
                Err(error) => last_error = Some(error),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("no connection to {url}: {last_error:?}");
    }

    /// A connection to whatever listens on a port, or why there is none.
    pub fn try_open(port: u16) -> Result<Self, String> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
        let connection =
            client.get_connection_with_timeout(Duration::from_secs(5)).map_err(|error| error.to_string())?;
        connection.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Ok(Self { connection, _client: client })
    }

    /// The connection itself, for what is not offered here (pipelines, subscriptions).
    pub fn inner(&mut self) -> &mut redis::Connection {
        &mut self.connection
    }

    /// Sends a command; panics on an error reply.
    pub fn run<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Value {
        self.try_run(command).unwrap_or_else(|error| {
            let shown: Vec<_> =
                command.iter().map(|a| String::from_utf8_lossy(a.as_ref()).into_owned()).collect();
            panic!("{shown:?} failed: {error}")
        })
    }

    /// Sends a command; an error reply is returned as the text on the wire.
    pub fn try_run<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Result<Value, String> {
        let mut packed = redis::Cmd::new();
        for argument in command {
            packed.arg(argument.as_ref());
        }
        let reply = self.connection.req_command(&packed).and_then(Value::extract_error);
        reply.map_err(|error| match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}"),
            (Some(code), None) => code.to_owned(),
            _ => error.to_string(),
        })
    }

    /// Sends a command given as words; panics on an error reply.
    pub fn say(&mut self, words: &str) -> Value {
        self.run(&words.split_whitespace().collect::<Vec<_>>())
    }

    /// Sends a command given as words; returns its decision.
    pub fn decide(&mut self, words: &str) -> Decision {
        decision(&self.say(words))
    }

    /// Sends a command given as words; returns its error line, and panics if there is none.
    pub fn refusal(&mut self, words: &str) -> String {
        match self.try_run(&words.split_whitespace().collect::<Vec<_>>()) {
            Err(error) => error,
            Ok(reply) => panic!("'{words}' was not refused: {reply:?}"),
        }
    }

    /// `TB.STATE`: level and refill time in Unix microseconds, or `None` for a full bucket.
    pub fn state(&mut self, key: &str) -> Option<(String, i64)> {
        super::reply::state(&self.run(&["TB.STATE", key]))
    }

    /// When the key expires, in Unix milliseconds; `None` if it does not, or is not there.
    pub fn expires_at_ms(&mut self, key: &str) -> Option<i64> {
        // PEXPIRETIME is 7.0; PTTL counts from the same clock.
        let Value::Int(left_ms) = self.run(&["PTTL", key]) else { panic!("no PTTL") };
        (left_ms >= 0).then(|| self.time_us() / 1000 + left_ms)
    }

    /// The server's clock, in Unix microseconds.
    pub fn time_us(&mut self) -> i64 {
        let Value::Array(parts) = self.run(&["TIME"]) else { panic!("no TIME") };
        let number = |index: usize| text(&parts[index]).parse::<i64>().unwrap();
        number(0) * 1_000_000 + number(1)
    }

    /// A field of `INFO`.
    pub fn info(&mut self, section: &str, field: &str) -> String {
        let report = text(&self.run(&["INFO", section]));
        let prefix = format!("{field}:");
        report
            .lines()
            .find_map(|line| line.strip_prefix(&prefix).map(|value| value.trim().to_owned()))
            .unwrap_or_else(|| panic!("INFO {section} has no {field}:\n{report}"))
    }

    /// Whether the server has a command.
    pub fn has_command(&mut self, name: &str) -> bool {
        match self.run(&["COMMAND", "INFO", name]) {
            Value::Array(replies) => matches!(replies.as_slice(), [Value::Array(_)]),
            other => panic!("no command info: {other:?}"),
        }
    }
}
