//! Real servers, which testing/launch.py starts, and ends with each test.
//!
//! SERVER and MODULE say which server and which module.

#![allow(dead_code)] // each test program uses its part

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{json, Value};

pub const READY_WITHIN: Duration = Duration::from_secs(30);

/// A launcher and what it has started. It ends when its input does.
struct Launcher(Mutex<(Child, Lines<BufReader<ChildStdout>>)>);

impl Launcher {
    /// The launcher, and where its servers are.
    fn start(options: &[&str]) -> (Arc<Self>, Value) {
        let mut command = Command::new("python3");
        command.arg(repository().join("testing/launch.py")).arg("serve");
        command.args(options).env("MODULE", module()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3, which runs testing/launch.py");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let first = lines.next().expect("a server that starts").expect("a line");
        (Arc::new(Self(Mutex::new((child, lines)))), serde_json::from_str(&first).expect("JSON"))
    }

    /// Sends a request, and returns the reply.
    fn tell(&self, request: &Value) -> Value {
        let (child, lines) = &mut *self.0.lock().expect("no panic");
        writeln!(child.stdin.as_mut().expect("a pipe"), "{request}").expect("a launcher that runs");
        let line = lines.next().expect("a reply").expect("a line");
        let mut reply: Value = serde_json::from_str(&line).expect("JSON");
        assert!(reply["error"].is_null(), "{request}: {line}");
        reply["reply"].take()
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // This closes its input.
        let _ = self.0.get_mut().expect("no panic").0.wait();
    }
}

fn number<T: TryFrom<u64>>(value: &Value) -> T {
    value.as_u64().and_then(|number| number.try_into().ok()).expect("a number")
}

/// A server with the module, unless told otherwise.
pub struct Server {
    launcher: Arc<Launcher>,
    node: usize,
    pub pid: u32,
    pub port: u16,
    /// Where its clock is, if it has one of its own.
    pub folder: PathBuf,
}

impl Server {
    pub fn start() -> Self {
        Self::started(&[])
    }

    pub fn start_without_module() -> Self {
        Self::started(&["--without-module"])
    }

    /// One that starts at `start_again`.
    pub fn away() -> Self {
        let server = Self::start();
        server.kill();
        server
    }

    /// A server, by options of the launcher.
    pub fn started(options: &[&str]) -> Self {
        Self::all(options).remove(0)
    }

    fn all(options: &[&str]) -> Vec<Self> {
        let (launcher, line) = Launcher::start(options);
        let server = |(node, place): (usize, &Value)| Self {
            launcher: launcher.clone(),
            node,
            pid: number(&place["pid"]),
            port: number(&place["port"]),
            folder: line["folder"].as_str().expect("a folder").into(),
        };
        line["nodes"].as_array().expect("nodes").iter().enumerate().map(server).collect()
    }

    /// Starts it on the same port as ever. It keeps nothing.
    pub fn start_again(&mut self) {
        self.pid = number(&self.launcher.tell(&json!(["start", self.node])));
    }

    /// Ends it without a word to anybody.
    pub fn kill(&self) {
        self.launcher.tell(&json!(["stop", self.node]));
    }

    /// Sends a signal, by the name that kill(1) has for it.
    pub fn signal(&self, signal: &str) {
        let done = Command::new("kill").arg(format!("-{signal}")).arg(self.pid.to_string()).status();
        assert!(done.expect("kill").success());
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A plain connection for what a test has to look up or to prepare.
    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).expect("a URL").get_connection().expect("a connection")
    }
}

/// The built module.
pub fn module() -> PathBuf {
    let built = || repository().join("target/release/libtokenbucket.so");
    std::path::absolute(std::env::var("MODULE").map_or_else(|_| built(), PathBuf::from)).expect("a path")
}

fn repository() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    folders.find(|folder| folder.join("testing/launch.py").exists()).expect("the repository")
}

/// Fails when the condition does not hold although `within` had passed before it was looked at: an
/// answer may take its time on a slow machine, but it must be the right one.
pub async fn wait_for(what: &str, within: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + within;
    loop {
        let late = Instant::now() > deadline;
        if condition().await {
            return;
        }
        assert!(!late, "{what}: not within {within:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Three masters, and whatever a test adds.
pub struct Cluster {
    pub nodes: Vec<Server>,
}

impl Cluster {
    pub fn start() -> Self {
        Self::started(&["--cluster"])
    }

    pub fn started(options: &[&str]) -> Self {
        Self { nodes: Server::all(options) }
    }

    /// Moves a slot in which there is nothing yet.
    pub fn move_slot_of(&self, key: &str, to: usize) {
        self.nodes[0].launcher.tell(&json!(["move_slot", key, to]));
    }

    /// Puts a new node in the place of this one, which keeps no slot.
    pub fn replace(&self, node: usize) {
        let replica = self.nodes[0].launcher.tell(&json!(["replica", node]));
        self.nodes[0].launcher.tell(&json!(["take_over", replica["node"]]));
    }

    pub fn urls(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(Server::url).collect();
        urls.join(",")
    }

    /// Which of the nodes has the bucket.
    pub fn node_of(&self, key: &str) -> usize {
        number(&self.nodes[0].launcher.tell(&json!(["node_of", key])))
    }
}

/// A node's own answer.
pub fn ask<T: redis::FromRedisValue>(node: &Server, words: &[&str]) -> T {
    try_ask(node, words).expect("an answer")
}

/// Asks a node that may cut the connection: Sentinel does so to a server that it promotes.
pub fn try_ask<T: redis::FromRedisValue>(node: &Server, words: &[&str]) -> redis::RedisResult<T> {
    let mut command = redis::Cmd::new();
    command.arg(words).query(&mut node.connection())
}

/// What the node says of the cluster.
pub fn info(node: &Server) -> String {
    ask(node, &["CLUSTER", "INFO"])
}
