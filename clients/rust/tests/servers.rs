//! Processes and servers, all of them real: each test starts what it needs and ends it.
//!
//! SERVER and MODULE say which server and which module.

#![allow(dead_code)] // each test program uses its part

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub const READY_WITHIN: Duration = Duration::from_secs(30);

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

    /// Sends a signal, by the name that kill(1) has for it.
    pub fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().expect("started").id();
        let done = Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).status();
        assert!(done.expect("kill").success());
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

/// A server with the module, unless told otherwise.
pub struct Server {
    pub process: Process,
    pub port: u16,
}

impl Server {
    pub async fn start() -> Self {
        Self::new(&[], true).started().await
    }

    pub async fn start_without_module() -> Self {
        Self::new(&[], false).started().await
    }

    /// A server that is yet to be started.
    pub fn new(options: &[&str], with_module: bool) -> Self {
        let wanted = std::env::var("SERVER").unwrap_or("redis-server".to_owned());
        // A relative path is relative to the package, not to the server's folder.
        let server = if wanted.contains('/') { absolute(&wanted) } else { wanted.into() };
        let port = free_port();
        let mut process = Process::new("the server", server);
        process.command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        process.command.args(["--save", "", "--appendonly", "no"]).args(options);
        if with_module {
            process.command.arg("--loadmodule").arg(module());
        }
        Self { process, port }
    }

    /// Itself, once it is up.
    pub async fn started(mut self) -> Self {
        self.restart().await;
        self
    }

    /// Starts it, on the same port as ever. It keeps nothing.
    pub async fn restart(&mut self) {
        self.process.spawn();
        let port = self.port;
        self.process.until_ready(|_| answers(port).then_some(())).await;
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
    absolute(&std::env::var("MODULE").unwrap_or("../../target/release/libtokenbucket.so".to_owned()))
}

/// Links are kept: where redis-server is one, its name decides what the program does.
fn absolute(path: &str) -> PathBuf {
    assert!(Path::new(path).exists(), "{path} does not exist: set SERVER and MODULE");
    std::path::absolute(path).expect("a path")
}

/// A port that is free, as is the one of a cluster's bus, 10000 above it. Both are below those that
/// the kernel hands out, so that they are still free for a restart.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Spread by the process, because others may look for ports at the same time.
        let number = std::process::id().wrapping_mul(97) + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 11_000 + (number % 10_000) as u16;
        if !answers(port) && !answers(port + 10_000) {
            return port;
        }
    }
}

fn answers(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
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

const SLOTS: u16 = 16384;
const SHARE: u16 = SLOTS.div_ceil(3);

/// Three masters, and whatever a test adds.
pub struct Cluster {
    pub nodes: Vec<Server>,
    with_module: bool,
}

impl Cluster {
    pub async fn start() -> Self {
        Self::start_nodes(true).await
    }

    pub async fn start_without_module() -> Self {
        Self::start_nodes(false).await
    }

    async fn start_nodes(with_module: bool) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..3 {
            nodes.push(node(with_module).await);
        }
        for (index, node) in nodes.iter().enumerate() {
            let index = index as u16;
            command(node, redis::cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(index + 1));
            let first = SHARE * index;
            let slots: Vec<u16> = (first..(first + SHARE).min(SLOTS)).collect();
            command(node, redis::cmd("CLUSTER").arg("ADDSLOTS").arg(slots));
            meet(node, &nodes[0]);
        }
        let cluster = Self { nodes, with_module };
        for node in &cluster.nodes {
            wait_for("the cluster", READY_WITHIN, async || {
                let info = info(node);
                info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
            })
            .await;
        }
        cluster
    }

    /// A replica that has all that its master has.
    pub async fn replica_of(&self, master: usize) -> Server {
        let replica = node(self.with_module).await;
        meet(&replica, &self.nodes[0]);
        let id: String = ask(&self.nodes[master], &["CLUSTER", "MYID"]);
        let nodes = || ask::<String>(&replica, &["CLUSTER", "NODES"]);
        wait_for("the master's name", READY_WITHIN, async || nodes().contains(&id)).await;
        command(&replica, redis::cmd("CLUSTER").arg("REPLICATE").arg(&id));
        let link = || ask::<String>(&replica, &["INFO", "replication"]);
        wait_for("the replica", READY_WITHIN, async || link().contains("master_link_status:up")).await;
        // Or it would take over before it knows which slots its master has.
        let slots = format!("cluster_slots_assigned:{SLOTS}");
        wait_for("the slots", READY_WITHIN, async || info(&replica).contains(&slots)).await;
        replica
    }

    /// Makes it the master in place of `gone`, and waits until the others know.
    pub async fn take_over(&self, replica: &Server, gone: usize) {
        command(replica, redis::cmd("CLUSTER").arg("FAILOVER").arg("TAKEOVER"));
        let address = format!(":{}@", replica.port);
        for (index, node) in self.nodes.iter().enumerate() {
            let knows = || {
                let nodes: String = ask(node, &["CLUSTER", "NODES"]);
                nodes.lines().any(|line| line.contains(&address) && line.contains("master"))
            };
            if index != gone {
                wait_for("the new master", READY_WITHIN, async || knows()).await;
            }
        }
    }

    /// Moves a slot in which there is nothing yet.
    pub fn move_slot_of(&self, key: &str, to: usize) {
        let slot: u16 = ask(&self.nodes[0], &["CLUSTER", "KEYSLOT", key]);
        let owner = self.node_of(key);
        let set = |node: usize, how: &str, other: usize| {
            let id: String = ask(&self.nodes[other], &["CLUSTER", "MYID"]);
            command(&self.nodes[node], redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(how).arg(id));
        };
        // Else an owner of a later epoch might have it back.
        set(to, "IMPORTING", owner);
        set(owner, "MIGRATING", to);
        for step in 0..3 {
            set((to + step) % 3, "NODE", to);
        }
    }

    pub fn urls(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(Server::url).collect();
        urls.join(",")
    }

    /// Which of the nodes has the bucket.
    pub fn node_of(&self, key: &str) -> usize {
        let slot: u16 = ask(&self.nodes[0], &["CLUSTER", "KEYSLOT", key]);
        usize::from(slot / SHARE)
    }
}

async fn node(with_module: bool) -> Server {
    // A node that is away takes its slots with it, and leaves the others at work.
    let mut options = vec!["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"];
    options.extend(["--repl-diskless-sync-delay", "0"]);
    Server::new(&options, with_module).started().await
}

fn meet(node: &Server, other: &Server) {
    command(node, redis::cmd("CLUSTER").arg("MEET").arg("127.0.0.1").arg(other.port));
}

fn command(node: &Server, command: &redis::Cmd) {
    command.exec(&mut node.connection()).expect("CLUSTER");
}

/// A node's own answer.
pub fn ask<T: redis::FromRedisValue>(node: &Server, words: &[&str]) -> T {
    let mut command = redis::Cmd::new();
    command.arg(words).query(&mut node.connection()).expect("an answer")
}

/// What the node says of the cluster.
pub fn info(node: &Server) -> String {
    ask(node, &["CLUSTER", "INFO"])
}
