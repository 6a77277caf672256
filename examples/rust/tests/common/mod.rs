//! The app and HTTP, all of it real.

use std::collections::HashMap;
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

#[path = "../../../../clients/rust/tests/servers.rs"]
mod servers;

use servers::READY_WITHIN;
pub use servers::{wait_for, Cluster, Server};

/// One token in six minutes: nothing flows in while a test runs.
pub const STILL: &str = "10/1h";

/// A process that logs into a folder of its own; both are gone when this is dropped.
pub struct Process {
    name: String,
    pub folder: PathBuf,
    pub command: Command,
    child: Option<Child>,
}

impl Process {
    pub fn new(name: &str, program: impl AsRef<Path>) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("tokenbucket-{}-{number}", std::process::id()));
        fs::create_dir(&folder).expect("a temporary folder");
        let mut command = Command::new(program.as_ref());
        command.current_dir(&folder).stdin(Stdio::null());
        Self { name: name.to_owned(), folder, command, child: None }
    }

    pub fn spawn(&mut self) {
        let log = File::options().create(true).append(true).open(self.log()).expect("a log");
        self.command.stdout(log.try_clone().expect("a handle")).stderr(log);
        self.child = Some(self.command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.name)));
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// What it has written, of all its starts.
    pub fn output(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    fn ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| child.try_wait().expect("a child").is_some())
    }

    pub async fn until_ready<T>(&mut self, mut ready: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + READY_WITHIN;
        loop {
            if let Some(value) = ready(self) {
                return value;
            }
            assert!(!self.ended(), "{} ended at its start:\n{}", self.name, self.output());
            assert!(Instant::now() < deadline, "{} is not ready:\n{}", self.name, self.output());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until it has ended by itself; whether it succeeded.
    pub async fn exit_status(&mut self) -> bool {
        wait_for("the end", READY_WITHIN, async || self.ended()).await;
        self.child.as_mut().expect("started").wait().expect("a child").success()
    }

    /// Ends it without a word to anybody.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            child.wait().expect("a child");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The app as a process of its own.
pub struct App {
    pub process: Process,
    pub address: SocketAddr,
}

impl App {
    pub async fn start(environment: &[(&str, &str)]) -> Self {
        let mut process = Self::spawn(environment);
        let address = process
            .until_ready(|process| {
                let output = process.output();
                let (_, rest) = output.split_once("listening on http://")?;
                rest.split_once('\n')?.0.parse().ok()
            })
            .await;
        Self { process, address }
    }

    /// Starts it without waiting for it.
    pub fn spawn(environment: &[(&str, &str)]) -> Process {
        let mut process = Process::new("the app", env!("CARGO_BIN_EXE_tokenbucket-axum"));
        // A slow machine is no outage, except to the tests that say when it is one.
        process.command.env_clear().env("PORT", "0").env("REDIS_TIMEOUT_MS", "10000");
        process.command.envs(environment.iter().copied());
        process.spawn();
        process
    }

    pub async fn get(&self, path: &str) -> Answer {
        get(self.address, path, Ipv4Addr::LOCALHOST).await
    }

    /// As the client with this address, of 127.0.0.0/8.
    pub async fn get_as(&self, path: &str, client: [u8; 4]) -> Answer {
        get(self.address, path, client.into()).await
    }

    /// One after the other; their statuses.
    pub async fn statuses(&self, count: usize, path: &str) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..count {
            statuses.push(self.get(path).await.status);
        }
        statuses
    }

    /// What the limiter logged.
    pub fn warnings(&self) -> Vec<String> {
        self.process.output().lines().filter(|line| line.starts_with("WARN")).map(str::to_owned).collect()
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: HashMap<String, String>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The limit's capacity, its tokens left, or the seconds until it is full: `q`, `r` and `t` of the RateLimit headers. The
    /// limit nearest to the handler comes last in them.
    pub fn rate_limit(&self, parameter: &str) -> u64 {
        let headers = ["ratelimit-policy", "ratelimit"].map(|name| self.header(name).unwrap_or_default());
        let headers = headers.map(|header| header.rsplit(", ").next().unwrap_or_default().to_owned());
        let mut parameters = headers.iter().flat_map(|header| header.split(';'));
        let text = parameters.find_map(|each| each.strip_prefix(parameter)?.strip_prefix('='));
        text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no {parameter} in {self:?}"))
    }

    pub fn number(&self, name: &str) -> u64 {
        let text = self.header(name).unwrap_or_else(|| panic!("no {name} in {self:?}"));
        text.parse().unwrap_or_else(|_| panic!("{name}: {text}"))
    }
}

async fn get(app: SocketAddr, path: &str, client: Ipv4Addr) -> Answer {
    let exchange = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((client, 0).into())?;
        let mut stream = socket.connect(app).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {app}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer =
        tokio::time::timeout(READY_WITHIN, exchange).await.expect("an answer in time").expect("HTTP");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status line");
    let headers = lines.filter_map(|line| line.split_once(": "));
    Answer {
        status: status.parse().expect("a status"),
        headers: headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect(),
        body: body.to_owned(),
    }
}
