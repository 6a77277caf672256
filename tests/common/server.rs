//! One server.

use super::clock::Clock;
use super::engine::{executable, foreign_compiler, is_before};
use super::reply::{self, array, decision, integer, integers, tell, text, unix_us, Decision};
use super::wait::{timeout, wait_for, wait_until};
use redis::{ConnectionLike, Value};
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

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
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut ports = std::iter::repeat_with(|| {
        let turn = (first + TURN.fetch_add(1, Ordering::Relaxed)) % COUNT;
        LOWEST + u16::try_from(turn).unwrap()
    });
    ports.find(|port| is_free(port) && is_free(&(port + 10_000))).unwrap()
}

/// The environment variable by which servers shut down when they go out of scope, rather than are killed.
pub const SHUTS_DOWN: &str = "SERVER_SHUTS_DOWN";

/// The name of a server's configuration file in its folder, if it has one.
const CONFIGURATION_FILE: &str = "redis.conf";

pub struct ServerBuilder(Server);

impl ServerBuilder {
    /// Makes it a server for this machine, with a module for it, rather than the one under test, which may be foreign.
    #[allow(dead_code)] // For tests/portability.
    pub fn native(mut self, server: &Path, module: &Path) -> Self {
        self.0.program = Program { server: server.into(), module: module.into(), compiler: None };
        self
    }

    /// Gives it a configuration file, whose lines count less than the options.
    pub fn configuration_file(self, lines: &str) -> Self {
        fs::write(self.0.folder().join(CONFIGURATION_FILE), lines).unwrap();
        self
    }

    /// Adds a line of configuration, as in `--name value`. An empty value stands for `""`.
    pub fn option(mut self, name: &str, value: impl Display) -> Self {
        self.0.options.extend([format!("--{name}"), value.to_string()]);
        self
    }

    /// Adds lines of configuration, with commas between them.
    pub fn options(self, lines: &str) -> Self {
        let lines = lines.split(',').map(|line| line.trim().split_once(' ').expect(line));
        lines.fold(self, |builder, (name, value)| builder.option(name, value))
    }

    pub fn module_arguments(mut self, arguments: &[&str]) -> Self {
        self.0.module_arguments = Some(arguments.iter().map(ToString::to_string).collect());
        self
    }

    pub fn without_module(mut self) -> Self {
        self.0.module_arguments = None;
        self
    }

    /// Gives the server a clock that only the test moves.
    pub fn controlled_clock(mut self) -> Self {
        self.0.clock = Some(Arc::new(Clock::new(self.0.folder())));
        self
    }

    pub fn clock_of(mut self, other: &Server) -> Self {
        self.0.clock = other.clock.clone();
        self
    }

    /// Lets it begin on a copy of the data files in `folder`.
    pub fn files_in(self, folder: &Path) -> Self {
        copy_data_files(folder, self.0.folder());
        self
    }

    /// Starts it on a free port and waits until it answers.
    pub fn start(mut self) -> Server {
        const TRIES: u32 = 5;
        let is_up = (0..TRIES).any(|_| self.0.spawn(free_port()));
        assert!(is_up, "{} did not start:\n{}", self.0.program.server.display(), self.0.log());
        self.0
    }

    pub fn start_with_client(self) -> (Server, Connection) {
        let server = self.start();
        let client = server.connect();
        (server, client)
    }

    /// Starts it with a controlled clock, as a cluster of one node that serves every slot.
    pub fn start_as_cluster(self) -> Server {
        const SLOTS: u32 = 16_384;
        let (server, mut client) =
            self.controlled_clock().option("cluster-enabled", "yes").start_with_client();
        let slots: Vec<String> = (0..SLOTS).map(|slot| slot.to_string()).collect();
        client.say(&format!("CLUSTER ADDSLOTS {}", slots.join(" ")));
        wait_until("the cluster is up", || {
            // It waits for other nodes, by the clock that we control.
            server.clock().advance_ms(100);
            text(&client.say("CLUSTER INFO")).contains("cluster_state:ok")
        });
        server
    }

    /// Starts it, expecting it to refuse; returns what it logged.
    pub fn start_expecting_refusal(mut self) -> String {
        assert!(!self.0.spawn(free_port()), "it did not refuse:\n{}", self.0.log());
        // Whichever exit code: a server that cannot read its snapshot ends with that of the tool that looks at it.
        self.0.wait_for_exit();
        self.0.log()
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

/// What is started, and the C compiler for what is preloaded into it, if it is not for this machine.
struct Program {
    server: PathBuf,
    module: PathBuf,
    compiler: Option<PathBuf>,
}

/// A running server in a folder of its own. Ended when it goes out of scope.
pub struct Server {
    program: Program,
    child: Option<Child>,
    port: u16,
    folder: TempDir,
    options: Vec<String>,
    module_arguments: Option<Vec<String>>,
    clock: Option<Arc<Clock>>,
}

impl Server {
    /// A server with the module and nothing else: no file is written unless a test asks for it.
    pub fn builder() -> ServerBuilder {
        ServerBuilder(Self {
            program: Program { server: executable(), module: module(), compiler: foreign_compiler() },
            child: None,
            port: 0,
            folder: tempfile::tempdir().unwrap(),
            options: Vec::new(),
            module_arguments: Some(Vec::new()),
            clock: None,
        })
        .option("save", "")
    }

    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A server with a clock that only the test moves.
    pub fn with_clock() -> Self {
        Self::builder().controlled_clock().start()
    }

    pub fn start_with_client() -> (Self, Connection) {
        Self::builder().start_with_client()
    }

    pub fn with_clock_and_client() -> (Self, Connection) {
        Self::builder().controlled_clock().start_with_client()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn process_id(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Returns whether its memory comes from jemalloc, built in or preloaded, instead of from its C library.
    pub fn has_jemalloc(&self) -> bool {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.process_id())).unwrap();
        maps.contains("libjemalloc") || self.connect().info("memory", "mem_allocator").starts_with("jemalloc")
    }

    /// Returns whether it was started, and not killed since.
    #[allow(dead_code)] // For tests/cluster and tests/redis_cell.
    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// The clock that [`ServerBuilder::controlled_clock`] gave it.
    pub fn clock(&self) -> &Clock {
        self.clock.as_deref().expect("this server has the real clock")
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder().join("log")).unwrap_or_default()).into_owned()
    }

    pub fn connect(&self) -> Connection {
        self.connect_as("resp2")
    }

    /// A new connection, RESP3 (from 6.0 on).
    pub fn connect_resp3(&self) -> Connection {
        self.connect_as("resp3")
    }

    fn connect_as(&self, protocol: &str) -> Connection {
        wait_for("there is a connection", || Connection::try_open_as(self.port, protocol).ok())
    }

    /// Kills the server as a power cut would, and starts it again on its files.
    pub fn kill_and_restart(&mut self) {
        self.kill();
        self.start_again();
    }

    /// Kills the server as a power cut would, and its children with it.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        self.kill_children();
    }

    /// Kills what a dead server was still writing files with. Such a child keeps the connections of clients open, so that
    /// they wait for replies. Before 7.0 it also waits for its parent until a time of the clock that the test moves.
    fn kill_children(&self) {
        let Ok(folder) = self.folder().canonicalize() else { return };
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let children: Vec<OsString> = processes
            .filter(|process| fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == folder))
            .map(|process| process.file_name())
            .collect();
        if !children.is_empty() {
            // A child may have ended since.
            let _ =
                Command::new("sh").args(["-c", "kill -9 \"$@\" 2>/dev/null", "kill"]).args(children).status();
        }
    }

    /// Waits until the server has ended by itself, and returns its exit code.
    pub fn wait_for_exit(&mut self) -> i32 {
        let status = wait_for("the server ends", || self.child.as_mut().unwrap().try_wait().unwrap());
        self.child = None;
        status.code().unwrap_or_else(|| panic!("the server crashed: {status}\n{}", self.log()))
    }

    /// Lets the server shut down (saving or not), and starts it again on its files.
    pub fn restart(&mut self, save: bool) {
        // The connection breaks instead of a reply.
        let _ = self.connect().try_run(&["SHUTDOWN", if save { "SAVE" } else { "NOSAVE" }]);
        self.child.take().unwrap().wait().unwrap();
        self.start_again();
    }

    /// Returns whether it obeys: then the connection breaks instead of a reply.
    fn begins_to_shut_down(&self) -> bool {
        let told = Connection::try_open(self.port).map(|mut client| client.try_run(&["SHUTDOWN", "NOSAVE"]));
        told.is_ok_and(|reply| reply.is_err_and(|error| !error.starts_with("ERR ")))
    }

    /// Starts a server that was killed, on its files and its port.
    pub fn start_again(&mut self) {
        assert!(self.spawn(self.port), "the server did not come back:\n{}", self.log());
    }

    /// Starts the process and waits until it has loaded its data. False if it has ended, as it does where its port was
    /// taken.
    fn spawn(&mut self, port: u16) -> bool {
        self.port = port;
        let mut command = self.command();
        self.child = Some(command.spawn().unwrap_or_else(|error| {
            panic!("{:?} cannot be run: {error}; say which server with SERVER=path", command.get_program())
        }));
        wait_for("the server is up or ends", || {
            let has_ended = self.child.as_mut().unwrap().try_wait().unwrap().is_some();
            (has_ended || self.answers()).then_some(!has_ended)
        })
    }

    fn command(&self) -> Command {
        let log = File::options().create(true).append(true).open(self.folder().join("log")).unwrap();
        let mut command = Command::new(&self.program.server);
        command.args(Some(self.folder().join(CONFIGURATION_FILE)).filter(|file| file.exists()));
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--dir"])
            .arg(self.folder())
            .stdin(Stdio::null())
            .stderr(log.try_clone().unwrap())
            .stdout(log);
        if !is_before(7, 0) {
            // 6.x has no such options, and needs none.
            command.args(["--enable-debug-command", "yes", "--enable-module-command", "yes"]);
        }
        command.args(&self.options);
        if let Some(arguments) = &self.module_arguments {
            command.arg("--loadmodule").arg(&self.program.module).args(arguments);
        }
        if let Some(clock) = &self.clock {
            // This thread sleeps until a time of the clock, and would not sleep at all by one that is behind.
            command.args(["--jemalloc-bg-thread", "no"]);
            clock.govern(&mut command, self.program.compiler.as_deref());
        }
        command
    }

    /// Returns whether our process answers, and not another test's server that took the port a moment before.
    fn answers(&self) -> bool {
        Connection::try_open(self.port).is_ok_and(|mut client| {
            // Another test's server may end between two calls.
            let report = client.try_run(&["PING"]).and_then(|_| client.try_run(&["INFO", "server"]));
            report
                .is_ok_and(|report| text(&report).contains(&format!("process_id:{}\r\n", self.process_id())))
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            if std::env::var_os(SHUTS_DOWN).is_none() || !self.begins_to_shut_down() {
                let _ = child.kill();
            }
            let _ = child.wait();
            self.kill_children();
        }
    }
}

/// A reply, or an error reply as the text on the wire. Panics if none comes in time.
pub fn reply_or_error(reply: redis::RedisResult<Value>) -> Result<Value, String> {
    reply.and_then(Value::extract_error).map_err(|error| {
        assert!(!error.is_timeout(), "no reply comes");
        match (error.code(), error.detail()) {
            (Some(code), Some(detail)) => format!("{code} {detail}"),
            (Some(code), None) => code.to_owned(),
            _ => error.to_string(),
        }
    })
}

pub struct Connection(redis::Connection);

impl Connection {
    /// A connection to whatever listens on a port, or why there is none.
    pub fn try_open(port: u16) -> Result<Self, String> {
        Self::try_open_as(port, "resp2")
    }

    fn try_open_as(port: u16, protocol: &str) -> Result<Self, String> {
        let url = format!("redis://127.0.0.1:{port}/?protocol={protocol}");
        let connection =
            redis::Client::open(url).unwrap().get_connection_with_timeout(Duration::from_secs(5));
        let connection = connection.map_err(|error| error.to_string())?;
        connection.set_read_timeout(Some(2 * timeout())).unwrap();
        Ok(Self(connection))
    }

    /// The connection itself, for what is not offered here (pipelines, subscriptions).
    pub fn inner(&mut self) -> &mut redis::Connection {
        &mut self.0
    }

    /// Sends a command; panics on an error reply.
    pub fn run<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Value {
        self.try_run(command).unwrap_or_else(|error| {
            let shown: Vec<_> = command.iter().map(|word| String::from_utf8_lossy(word.as_ref())).collect();
            panic!("{shown:?} failed: {error}")
        })
    }

    /// Sends a command; an error reply is returned as the text on the wire.
    pub fn try_run<A: AsRef<[u8]>>(&mut self, command: &[A]) -> Result<Value, String> {
        let words: Vec<&[u8]> = command.iter().map(AsRef::as_ref).collect();
        reply_or_error(self.0.req_command(redis::Cmd::new().arg(words)))
    }

    /// Sends a command given as words; panics on an error reply.
    pub fn say(&mut self, words: &str) -> Value {
        self.run(&words.split_whitespace().collect::<Vec<_>>())
    }

    /// Sends a command given as words; an error reply is returned as the text on the wire.
    pub fn attempt(&mut self, words: &str) -> Result<Value, String> {
        self.try_run(&words.split_whitespace().collect::<Vec<_>>())
    }

    /// Sends a command given as words, and does not wait for its reply.
    pub fn send(&mut self, words: &str) {
        let command = redis::Cmd::new().arg(words.split_whitespace().collect::<Vec<_>>()).take();
        self.0.send_packed_command(&command.get_packed_command()).unwrap();
    }

    /// Reads the reply of what was sent.
    pub fn receive(&mut self) -> String {
        tell(reply_or_error(self.0.recv_response()))
    }

    /// Reads the decision that was sent for.
    pub fn receive_decision(&mut self) -> Decision {
        decision(&self.0.recv_response().unwrap())
    }

    /// Sends commands given as words as one transaction; returns the replies, errors among them.
    pub fn transaction(&mut self, commands: &[&str]) -> Vec<Value> {
        self.say("MULTI");
        for command in commands {
            assert_eq!(text(&self.say(command)), "QUEUED", "{command}");
        }
        array(self.0.req_command(&redis::cmd("EXEC")).unwrap())
    }

    pub fn decide(&mut self, words: &str) -> Decision {
        decision(&self.say(words))
    }

    /// Sends a command given as words; returns its error line, and panics if there is none.
    pub fn refusal(&mut self, words: &str) -> String {
        match self.attempt(words) {
            Err(error) => error,
            Ok(reply) => panic!("'{words}' was not refused: {reply:?}"),
        }
    }

    /// Sends `CL.THROTTLE` with arguments given as words; returns limited, limit, remaining, retry after and reset after.
    pub fn throttle(&mut self, words: &str) -> [i64; 5] {
        let fields = integers(&self.say(&format!("CL.THROTTLE {words}")));
        fields.try_into().unwrap_or_else(|fields| panic!("not five fields: {fields:?}"))
    }

    /// `TB.STATE`: level and refill time in Unix microseconds, or `None` for a full bucket.
    pub fn state(&mut self, key: &str) -> Option<(String, i64)> {
        reply::state(&self.run(&["TB.STATE", key]))
    }

    /// When the key expires, in Unix milliseconds; `None` if it does not, or is not there.
    pub fn expires_at_ms(&mut self, key: &str) -> Option<i64> {
        // PEXPIRETIME is 7.0; PTTL counts from the same clock.
        let Value::Int(left_ms) = self.run(&["PTTL", key]) else { panic!("no PTTL") };
        (left_ms >= 0).then(|| self.time_us() / 1000 + left_ms)
    }

    /// The server's clock, in Unix microseconds.
    pub fn time_us(&mut self) -> i64 {
        unix_us(&self.run(&["TIME"]))
    }

    pub fn info(&mut self, section: &str, field: &str) -> String {
        let report = text(&self.run(&["INFO", section]));
        let value = report.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("INFO {section} has no {field}:\n{report}")).trim().to_owned()
    }

    /// A field of `INFO` that is a whole number.
    pub fn count(&mut self, section: &str, field: &str) -> i64 {
        let value = self.info(section, field);
        value.parse().unwrap_or_else(|_| panic!("{field} is no whole number: {value}"))
    }

    /// How many calls wait in the server.
    pub fn waiting(&mut self) -> i64 {
        self.count("tokenbucket", "tokenbucket_waiting")
    }

    /// Memory that the server uses, in bytes.
    pub fn used_memory(&mut self) -> i64 {
        self.count("memory", "used_memory")
    }

    pub fn changes(&mut self) -> i64 {
        self.count("persistence", "rdb_changes_since_last_save")
    }

    pub fn keys(&mut self) -> i64 {
        integer(&self.run(&["DBSIZE"]))
    }

    pub fn dump(&mut self, key: &str) -> Vec<u8> {
        match self.run(&["DUMP", key]) {
            Value::BulkString(bytes) => bytes,
            other => panic!("no dump: {other:?}"),
        }
    }

    /// `RESTORE` of a payload, without an expiry.
    pub fn restore(&mut self, key: &str, payload: &[u8]) -> Result<Value, String> {
        self.try_run(&[b"RESTORE".as_slice(), key.as_bytes(), b"0", payload, b"REPLACE"])
    }

    pub fn has_command(&mut self, name: &str) -> bool {
        matches!(array(self.run(&["COMMAND", "INFO", name])).as_slice(), [Value::Array(_)])
    }
}
