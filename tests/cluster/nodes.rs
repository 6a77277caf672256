//! Several servers that form a cluster, and a client that follows their redirections.

use crate::common::stored::wait_until_linked;
use crate::common::{integer, text, wait_until, Connection, Server};
use redis::Value;
use std::collections::hash_map::{Entry, HashMap};

/// Slots in any cluster.
pub const SLOTS: u16 = 16_384;

/// Masters that share the slots evenly, each with as many replicas.
pub struct Cluster {
    /// The masters first, then the replicas, those of the first master first.
    pub nodes: Vec<Server>,
    pub masters: usize,
}

impl Cluster {
    /// Starts the nodes and waits until all agree on who serves what.
    pub fn start(masters: usize, replicas_each: usize) -> Self {
        let nodes: Vec<Server> = (0..masters * (1 + replicas_each)).map(|_| start_node()).collect();
        let cluster = Self { nodes, masters };
        cluster.introduce();
        cluster.assign_slots();
        cluster.wait_until_agreed();
        cluster.attach_replicas();
        cluster
    }

    fn introduce(&self) {
        let mut first = self.nodes[0].connect();
        for node in &self.nodes[1..] {
            first.run(&["CLUSTER", "MEET", "127.0.0.1", &node.port().to_string()]);
        }
        let all = self.nodes.len();
        for node in &self.nodes {
            let mut connection = node.connect();
            wait_until("every node knows every other", || {
                let known = connection.cluster_nodes();
                known.len() == all && known.iter().all(|line| !line.contains("handshake"))
            });
        }
    }

    fn assign_slots(&self) {
        let share = usize::from(SLOTS).div_ceil(self.masters);
        let slots: Vec<String> = (0..SLOTS).map(|slot| slot.to_string()).collect();
        for (node, slots) in self.nodes.iter().zip(slots.chunks(share)) {
            let mut command = vec!["CLUSTER", "ADDSLOTS"];
            command.extend(slots.iter().map(String::as_str));
            node.connect().run(&command);
        }
    }

    fn attach_replicas(&self) {
        for (index, replica) in self.nodes[self.masters..].iter().enumerate() {
            let master = self.nodes[index % self.masters].connect().node_id();
            let mut connection = replica.connect();
            wait_until("the replica knows its master", || {
                connection.try_run(&["CLUSTER", "REPLICATE", &master]).is_ok()
            });
        }
        for replica in &self.nodes[self.masters..] {
            wait_until_linked(replica);
        }
    }

    /// Waits until every living node says that all slots are served.
    pub fn wait_until_agreed(&self) {
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            let mut connection = node.connect();
            wait_until("the cluster is whole", || {
                text(&connection.run(&["CLUSTER", "INFO"])).contains("cluster_state:ok")
            });
        }
    }

    /// A client that knows all masters.
    pub fn client(&self) -> ClusterClient {
        ClusterClient { connections: HashMap::new(), home: HashMap::new(), first: self.nodes[0].port() }
    }
}

fn start_node() -> Server {
    Server::builder()
        .option("cluster-enabled", "yes")
        .option("cluster-node-timeout", 2000)
        .option("repl-diskless-sync-delay", 0)
        .start()
}

/// A client that goes where it is sent.
pub struct ClusterClient {
    connections: HashMap<u16, Connection>,
    /// Where each key was last found.
    home: HashMap<String, u16>,
    first: u16,
}

impl ClusterClient {
    /// Runs a command that concerns `key`, following redirections; an error reply that is none is returned.
    ///
    /// A broken connection counts as an error reply too: whether the command was executed is not known then.
    pub fn try_run(&mut self, key: &str, command: &[&str]) -> Result<Value, String> {
        const MOST: usize = 1000;
        let mut port = *self.home.get(key).unwrap_or(&self.first);
        for _ in 0..MOST {
            match self.connection(port).and_then(|connection| connection.try_run(command)) {
                Err(error) if error.starts_with("MOVED ") => port = redirected(&error),
                Err(error) if error.starts_with("ASK ") => {
                    let target = self.connection(redirected(&error))?;
                    target.run(&["ASKING"]);
                    match target.try_run(command) {
                        Err(error) if error.starts_with("TRYAGAIN") || error.starts_with("MOVED") => {}
                        reply => return reply,
                    }
                }
                Err(error) if error.starts_with("TRYAGAIN") => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                reply => {
                    self.home.insert(key.to_owned(), port);
                    if reply.is_err() {
                        self.connections.remove(&port);
                    }
                    return reply;
                }
            }
        }
        panic!("{command:?} was redirected {MOST} times");
    }

    /// Waits until a replica has everything that this client wrote. `WAIT` speaks of its own connection's writes.
    pub fn wait_for_replicas(&mut self) {
        for connection in self.connections.values_mut() {
            assert_eq!(
                connection.run(&["WAIT", "1", "20000"]),
                Value::Int(1),
                "the replica has not followed"
            );
        }
    }

    /// Goes to another node first, after the one that was known has died.
    pub fn start_from(&mut self, node: &Server) {
        self.home.clear();
        self.connections.clear();
        self.first = node.port();
    }

    fn connection(&mut self, port: u16) -> Result<&mut Connection, String> {
        match self.connections.entry(port) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(unknown) => Ok(unknown.insert(Connection::try_open(port)?)),
        }
    }
}

/// The port in `MOVED 3999 127.0.0.1:6381`.
fn redirected(error: &str) -> u16 {
    error.rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or_else(|| panic!("where to? {error}"))
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

    /// The slot of a key.
    pub fn slot_of(&mut self, key: &str) -> u16 {
        u16::try_from(integer(&self.run(&["CLUSTER", "KEYSLOT", key]))).unwrap()
    }
}
