//! Several servers that form a cluster, made and changed by the tool that operators have, `redis-cli --cluster`, and
//! called by a client that applications have, redis-rs.

use crate::common::engine::redis_cli;
use crate::common::server::reply_or_error;
use crate::common::stored::is_linked;
use crate::common::{decision, reply, text, wait_until, Server};
use redis::cluster::ClusterConnection;
use redis::{ConnectionLike, Value};

/// Fewer make no cluster, says `redis-cli`.
pub const MASTERS: usize = 3;

/// Tokens of every bucket here.
pub const CAPACITY: i64 = 1000;
/// The capacity of an override.
pub const RAISED: i64 = 2 * CAPACITY;
/// So slow that a test sees what was taken, and next to nothing of what flowed in: 0.02 tokens an hour.
pub const RATE: &str = "1000/36500d";
/// More than can flow in while a test runs, in tokens.
pub const REFILL: f64 = 0.01;

/// Masters that share the slots evenly, the lowest on the first, each with as many replicas.
pub struct Cluster {
    /// The masters first.
    pub nodes: Vec<Server>,
}

impl Cluster {
    /// Starts the nodes and waits until all agree on who serves what.
    pub fn start(replicas_each: usize) -> Self {
        let nodes: Vec<Server> = (0..MASTERS * (1 + replicas_each)).map(|_| start_node()).collect();
        let addresses: Vec<String> = nodes.iter().map(address).collect();
        manage(&format!("create {} --cluster-replicas {replicas_each}", addresses.join(" ")));
        let cluster = Self { nodes };
        cluster.nodes[MASTERS..].iter().for_each(wait_until_linked);
        cluster.wait_until_agreed();
        cluster
    }

    /// Waits until every living node says that all slots are served, and that the same nodes serve them.
    pub fn wait_until_agreed(&self) {
        let living = || self.nodes.iter().filter(|node| node.is_running());
        wait_until("the cluster is whole", || {
            let first = ownership(living().next().expect("a living node"));
            living().all(|node| {
                let state = text(&node.connect().say("CLUSTER INFO"));
                state.contains("cluster_state:ok") && ownership(node) == first
            })
        });
    }

    /// A client that has asked the living nodes for the slots of all.
    pub fn client(&self) -> ClusterClient {
        const MOST_REDIRECTIONS: u32 = 1000;
        let living = self.nodes.iter().filter(|node| node.is_running());
        let urls = living.map(|node| format!("redis://{}/", address(node)));
        let client = redis::cluster::ClusterClient::builder(urls).retries(MOST_REDIRECTIONS).build();
        ClusterClient(client.unwrap().get_connection().unwrap())
    }
}

pub fn wait_until_linked(replica: &Server) {
    let mut client = replica.connect();
    wait_until("the replica is linked", || is_linked(&mut client));
}

fn start_node() -> Server {
    let options = "cluster-enabled yes,cluster-node-timeout 2000,repl-diskless-sync-delay 0";
    Server::builder().options(options).start()
}

fn address(node: &Server) -> String {
    format!("127.0.0.1:{}", node.port())
}

/// Runs `redis-cli --cluster`.
fn manage(words: &str) {
    let mut command = std::process::Command::new(redis_cli());
    let output = command.arg("--cluster").args(words.split(' ')).arg("--cluster-yes").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words}: {said}");
}

/// Moves the lowest slots of a node, key by key, both nodes serving meanwhile.
pub fn reshard(from: &Server, to: &Server, slots: u16) {
    let ends = format!("--cluster-from {} --cluster-to {}", node_id(from), node_id(to));
    manage(&format!("reshard {} {ends} --cluster-slots {slots}", address(from)));
}

pub fn node_id(node: &Server) -> String {
    text(&node.connect().say("CLUSTER MYID"))
}

/// The slots of each master, as one node believes, in which epoch: id, epoch and ranges of slots.
///
/// A slot that goes back before this has spread can be claimed by both nodes in the same epoch.
pub fn ownership(node: &Server) -> Vec<[String; 3]> {
    let nodes = text(&node.connect().say("CLUSTER NODES"));
    let masters = nodes.lines().filter(|line| line.contains("master"));
    let mut owners: Vec<_> = masters
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let slots: Vec<&str> =
                fields[8..].iter().copied().filter(|slots| !slots.starts_with('[')).collect();
            [fields[0].to_owned(), fields[6].to_owned(), slots.join(" ")]
        })
        .collect();
    owners.sort();
    owners
}

/// A client that goes where it is sent.
pub struct ClusterClient(ClusterConnection);

impl ClusterClient {
    /// Sends a command given as words; an error reply that is no redirection is returned.
    pub fn attempt(&mut self, words: &str) -> Result<Value, String> {
        let words: Vec<&str> = words.split(' ').collect();
        reply_or_error(self.0.req_command(redis::Cmd::new().arg(words)))
    }

    /// Takes one token; whether it was allowed.
    pub fn take(&mut self, key: &str) -> bool {
        decision(&self.attempt(&format!("TB.TAKE {key} {CAPACITY} {RATE}")).unwrap()).allowed == 1
    }

    /// Overrides the limit of a full bucket.
    pub fn raise(&mut self, key: &str) {
        self.attempt(&format!("TB.OVERRIDE {key} {RAISED} {RAISED}/36500d 86400000")).unwrap();
    }

    /// The level that is stored, in tokens.
    pub fn level(&mut self, key: &str) -> f64 {
        let state = reply::state(&self.attempt(&format!("TB.STATE {key}")).unwrap());
        state.map_or(CAPACITY as f64, |(level, _)| level.parse().unwrap())
    }
}
