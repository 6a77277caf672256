//! Several servers that form a cluster, made and changed by the tool that operators have, `redis-cli --cluster`, and
//! called by a client that applications have, redis-rs.

use crate::common::engine::redis_cli;
use crate::common::server::reply_or_error;
use crate::common::stored::wait_until_linked;
use crate::common::{text, wait_until, Connection, Server};
use redis::cluster::ClusterConnection;
use redis::{ConnectionLike, Value};

/// Fewer make no cluster, says `redis-cli`.
pub const MASTERS: usize = 3;

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
        let replicas_each = replicas_each.to_string();
        let mut create = vec!["create"];
        create.extend(addresses.iter().map(String::as_str));
        create.extend(["--cluster-replicas", &replicas_each, "--cluster-yes"]);
        manage(&create);
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

fn start_node() -> Server {
    Server::builder()
        .option("cluster-enabled", "yes")
        .option("cluster-node-timeout", 2000)
        .option("repl-diskless-sync-delay", 0)
        .start()
}

fn address(node: &Server) -> String {
    format!("127.0.0.1:{}", node.port())
}

/// Runs `redis-cli --cluster`.
fn manage(arguments: &[&str]) {
    let output = std::process::Command::new(redis_cli()).arg("--cluster").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{arguments:?}: {said}");
}

/// Moves the lowest slots of a node, key by key, both nodes serving meanwhile.
pub fn reshard(from: &Server, to: &Server, slots: u16) {
    let [from_id, to_id] = [from, to].map(|node| node.connect().node_id());
    let (address, slots) = (address(from), slots.to_string());
    let ends = ["reshard", &address, "--cluster-from", &from_id, "--cluster-to", &to_id];
    manage(&[ends.as_slice(), &["--cluster-slots", &slots, "--cluster-yes"]].concat());
}

/// Who serves what in which epoch, as one node believes. A slot that goes back before this has spread can be
/// claimed by both nodes in the same epoch.
fn ownership(node: &Server) -> Vec<(String, String, Vec<String>)> {
    let masters = node.connect().cluster_nodes().into_iter().filter(|line| line.contains("master"));
    let mut owners: Vec<_> = masters
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let slots = fields[8..].iter().filter(|slots| !slots.starts_with('['));
            (fields[0].to_owned(), fields[6].to_owned(), slots.map(ToString::to_string).collect())
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
}

impl Connection {
    /// This node's id.
    pub fn node_id(&mut self) -> String {
        text(&self.run(&["CLUSTER", "MYID"]))
    }

    /// The lines of `CLUSTER NODES`.
    pub fn cluster_nodes(&mut self) -> Vec<String> {
        text(&self.run(&["CLUSTER", "NODES"])).lines().map(ToOwned::to_owned).collect()
    }
}
