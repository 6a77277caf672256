//! The program as tests start it: on free ports, with files of its own, ended with the test.

#![allow(dead_code)] // each test program uses its part

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokenbucket_gate::messages::{Descriptor, Entry, Request};
use tonic::transport::Channel;

#[path = "ports.rs"]
pub mod ports;

/// A slow machine may be slow; a test that fails takes so long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How a gate is started.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    variables: Vec<(String, String)>,
    files: Vec<(String, String)>,
    most_open_files: Option<u32>,
}

/// A gate that runs.
pub struct Gate {
    child: Child,
    setup: Setup,
    log: Arc<Log>,
    /// Its `RUNTIME_ROOT` is the folder `root` here.
    pub folder: tempfile::TempDir,
    pub grpc: u16,
    pub http: u16,
    pub debug: u16,
    /// 0 without `USE_PROMETHEUS`.
    pub prometheus: u16,
}

/// A program that ends with this, also if a test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lines on standard error so far, and whether there will be no more.
#[derive(Default)]
struct Log {
    lines: Mutex<(Vec<String>, bool)>,
    grown: Condvar,
}

impl Setup {
    pub fn new() -> Self {
        Self::default()
    }

    /// With this Redis, given as `REDIS_URL`.
    pub fn redis(url: &str) -> Self {
        Self::new().set("REDIS_URL", url)
    }

    /// Sets a variable.
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((name.to_owned(), value.to_string()));
        self
    }

    pub fn set_all(self, variables: &[(&str, &str)]) -> Self {
        variables.iter().fold(self, |setup, (name, value)| setup.set(name, value))
    }

    /// A file of limits, in `root/config`; `../../name` is in the folder itself, where the program runs.
    pub fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Lets it open only so many files and connections.
    pub fn most_open_files(self, most: u32) -> Self {
        Self { most_open_files: Some(most), ..self }
    }

    /// Starts it, and returns when it listens. See [`Gate::wait_until_healthy`].
    pub fn start(self) -> Gate {
        let folder = self.folder();
        self.start_in(folder)
    }

    /// Starts it in a folder that has a `root`.
    pub fn start_in(self, folder: tempfile::TempDir) -> Gate {
        let (child, log) = self.spawn(folder.path(), [0; 4]);
        let mut gate = Gate { child, setup: self, log, folder, grpc: 0, http: 0, debug: 0, prometheus: 0 };
        gate.find_ports();
        gate
    }

    /// The exit code and the last line of one that does not start.
    pub fn refused(self) -> (i32, String) {
        let folder = self.folder();
        let (child, log) = self.spawn(folder.path(), [0; 4]);
        let status = wait_for_end(&mut Killed(child).0);
        log.wait_for_end();
        (status.code().expect("no signal"), log.lines().pop().unwrap_or_default())
    }

    fn folder(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("root/config")).expect("a folder");
        for (name, text) in &self.files {
            let path = folder.path().join("root/config").join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            write(&path, text);
        }
        folder
    }

    fn spawn(&self, folder: &Path, ports: [u16; 4]) -> (Child, Arc<Log>) {
        let [grpc, http, debug, prometheus] = ports.map(|port| port.to_string());
        let program = env!("CARGO_BIN_EXE_tokenbucket-gate");
        let mut command = match self.most_open_files {
            None => Command::new(program),
            Some(most) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", &format!("ulimit -n {most} && exec {program:?}")]);
                shell
            }
        };
        command.env_clear().current_dir(folder).stdin(Stdio::null()).stderr(Stdio::piped());
        command.env("HOST", "127.0.0.1").env("GRPC_HOST", "127.0.0.1").env("LOG_LEVEL", "info");
        command.env("PORT", http).env("GRPC_PORT", grpc).env("DEBUG_PORT", debug);
        command.env("PROMETHEUS_ADDR", format!("127.0.0.1:{prometheus}"));
        command.env("RUNTIME_ROOT", folder.join("root"));
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        let mut child = command.spawn().expect("the program");
        let (log, output) = (Arc::<Log>::default(), child.stderr.take().expect("a pipe"));
        let lines = log.clone();
        std::thread::spawn(move || lines.fill(output));
        (child, log)
    }
}

impl Log {
    fn fill(&self, output: impl Read) {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            self.lines.lock().expect("no panic").0.push(line);
            self.grown.notify_all();
        }
        self.lines.lock().expect("no panic").1 = true;
        self.grown.notify_all();
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no panic").0.clone()
    }

    /// The first line with this text, or nothing if there will be none.
    fn wait_for(&self, text: &str) -> Option<String> {
        let find = |lines: &[String]| lines.iter().find(|line| line.contains(text)).cloned();
        let lines = self.lines.lock().expect("no panic");
        let is_open = |(lines, ended): &mut (Vec<String>, bool)| !*ended && find(lines).is_none();
        let (lines, waited) = self.grown.wait_timeout_while(lines, PATIENCE, is_open).expect("no panic");
        assert!(!waited.timed_out(), "no line with {text:?} in {:#?}", lines.0);
        find(&lines.0)
    }

    fn wait_for_end(&self) {
        let lines = self.lines.lock().expect("no panic");
        drop(self.grown.wait_timeout_while(lines, PATIENCE, |(_, ended)| !*ended).expect("no panic"));
    }
}

impl Gate {
    fn find_ports(&mut self) {
        let log = self.log.clone();
        let port = |door: &str| {
            let line = log.wait_for(&format!("listens for {door} on "));
            let line = line.unwrap_or_else(|| panic!("it does not start: {:#?}", log.lines()));
            line.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_default()
        };
        (self.grpc, self.http, self.debug) = (port("gRPC"), port("HTTP"), port("debug"));
        if self.setup.variables.iter().any(|(name, _)| name == "USE_PROMETHEUS") {
            self.prometheus = port("Prometheus");
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The lines that it logged so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lines()
    }

    /// Waits for a line with this text.
    pub fn wait_for_line(&self, text: &str) -> String {
        self.log.wait_for(text).unwrap_or_else(|| panic!("no line with {text:?} in {:#?}", self.log()))
    }

    /// Waits until Redis has answered.
    pub fn wait_until_healthy(&self) {
        wait_until("healthy", || self.http("GET", "/healthcheck", "").status == 200);
    }

    /// Sends a signal, by the name that kill(1) has for it.
    pub fn signal(&self, signal: &str) {
        let done = Command::new("kill").arg(format!("-{signal}")).arg(self.pid().to_string()).status();
        assert!(done.expect("kill").success());
    }

    /// Waits for its end.
    pub fn wait_for_end(&mut self) -> ExitStatus {
        wait_for_end(&mut self.child)
    }

    /// Ends it without a word to anybody.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it on the same ports as ever, after [`kill`](Self::kill) or an end.
    pub fn start_again(&mut self) {
        let ports = [self.grpc, self.http, self.debug, self.prometheus];
        (self.child, self.log) = self.setup.spawn(self.folder.path(), ports);
        self.find_ports();
    }

    /// The path of a file of limits.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("root/config").join(name)
    }

    /// Writes a file of limits.
    pub fn write(&self, name: &str, text: &str) {
        write(&self.file(name), text);
    }

    /// Asks over HTTP on `PORT`.
    pub fn http(&self, method: &str, path: &str, body: &str) -> Reply {
        ask(self.http, method, path, &[], body)
    }

    /// Asks by `/json`.
    pub fn json(&self, request: &str) -> Reply {
        self.http("POST", "/json", request)
    }

    /// The limits that it has loaded.
    pub fn rlconfig(&self) -> String {
        get(self.debug, "/rlconfig", &[]).body
    }

    /// A number of `/metrics`, by all of its line before it; 0 if there is no such line.
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.http("GET", "/metrics", "").body;
        let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        values.next().unwrap_or(0)
    }

    /// A gRPC client on a connection of its own.
    pub async fn client(&self) -> RateLimitServiceClient<Channel> {
        let url = format!("http://127.0.0.1:{}", self.grpc);
        RateLimitServiceClient::connect(url).await.expect("a connection")
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A request of a domain; each descriptor is its keys and values.
pub fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> Request {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    let descriptor = |entries: &&[(&str, &str)]| Descriptor {
        entries: entries.iter().map(entry).collect(),
        ..Descriptor::default()
    };
    let descriptors = descriptors.iter().map(descriptor).collect();
    Request { domain: domain.to_owned(), descriptors, hits_addend: 0 }
}

/// A reply over HTTP; status 0 if none came.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    /// A header by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn number(&self, name: &str) -> Option<u64> {
        self.header(name)?.split(',').next()?.trim().parse().ok()
    }
}

pub fn get(port: u16, path: &str, headers: &[(&str, &str)]) -> Reply {
    ask(port, "GET", path, headers, "")
}

/// Asks on a connection of its own.
pub fn ask(port: u16, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    exchange(port, method, path, headers, body).unwrap_or_default()
}

fn exchange(port: u16, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Option<Reply> {
    let connection = TcpStream::connect(("127.0.0.1", port)).ok()?;
    connection.set_read_timeout(Some(PATIENCE)).ok()?;
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: edge.example\r\nConnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    // Latin-1: a test can send every byte.
    let bytes: Vec<u8> = text.chars().map(|char| char as u8).collect();
    // A refusal may come before the end of what is refused.
    let _ = (&connection).write_all(&bytes);
    let mut replies = BufReader::new(connection);
    let (first, headers) = head(&mut replies)?;
    let status = first.split(' ').nth(1)?.parse().ok()?;
    let mut body = Vec::new();
    // A proxy that ends the connection hard has sent all the same.
    let _ = replies.read_to_end(&mut body);
    Some(Reply { status, headers, body: String::from_utf8_lossy(&body).into_owned() })
}

/// The first line, and the headers with their names in lower case.
fn head(from: &mut impl BufRead) -> Option<(String, Vec<(String, String)>)> {
    let mut lines = from.lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let first = lines.next()?;
    let header = |line: String| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    Some((first, lines.filter_map(header).collect()))
}

/// A connection that says nothing yet.
pub fn connect(port: u16) -> TcpStream {
    TcpStream::connect(("127.0.0.1", port)).expect("a connection")
}

/// Memory of the process in MiB: `VmRSS` is what it uses, `VmHWM` the most that it ever used.
pub fn memory_mib(gate: &Gate, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gate.pid())).expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("a line");
    let kib: u64 = line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().expect("a number");
    kib / 1024
}

/// Returns when the condition holds.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn wait_for_end(child: &mut Child) -> ExitStatus {
    let mut ended = None;
    wait_until("the end of the program", || {
        ended = child.try_wait().expect("a child");
        ended.is_some()
    });
    ended.expect("it ended")
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
