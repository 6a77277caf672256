//! Which node of a cluster has which slot.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use redis::cluster_routing::Slot;
use redis::{ConnectionInfo, FromRedisValue, RedisError, RedisResult, Value};

use crate::transport::address::at;
use crate::transport::locked::locked;
use crate::transport::node::Node;

pub(crate) struct Cluster {
    /// From which the others are found.
    seeds: Vec<Arc<Node>>,
    /// How the seeds are connected to, and so the others.
    like: ConnectionInfo,
    next_seed: AtomicUsize,
    known: Mutex<Known>,
    /// Locked while a task asks where the slots are.
    looking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Known {
    nodes: HashMap<String, Arc<Node>>,
    of_slots: HashMap<Slot, Arc<Node>>,
    /// How often a node replied.
    looks: u64,
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<ConnectionInfo>) -> RedisResult<Arc<Self>> {
        let Some(like) = seeds.first().cloned() else {
            return Err((redis::ErrorKind::InvalidClientConfig, "a cluster needs a URL").into());
        };
        let seeds = seeds.into_iter().map(Node::new).collect::<RedisResult<Vec<_>>>()?;
        let nodes = seeds.iter().map(|node| (node.name.to_string(), node.clone())).collect();
        let known = Mutex::new(Known { nodes, ..Known::default() });
        let (next_seed, looking) = (AtomicUsize::new(0), tokio::sync::Mutex::default());
        Ok(Arc::new(Self { seeds, like, next_seed, known, looking }))
    }

    pub(crate) fn are_slots_unknown(&self) -> bool {
        locked(&self.known).looks == 0
    }

    /// Returns the node of the key; a seed while that is unknown.
    pub(crate) fn node_of(&self, key: &str) -> Arc<Node> {
        let known = locked(&self.known).of_slots.get(&Slot::for_key(key)).cloned();
        known.unwrap_or_else(|| {
            let next = self.next_seed.load(Ordering::Relaxed);
            self.seeds[next % self.seeds.len()].clone()
        })
    }

    /// The node to which `asked` redirects, which has the slot from now on if it `moved`.
    pub(crate) fn redirected(&self, asked: &Node, error: &RedisError) -> Option<Arc<Node>> {
        let (address, slot) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        let node = self.node_at(host, port.parse().ok()?, asked)?;
        if error.code() == Some("MOVED") {
            locked(&self.known).of_slots.insert(Slot::new(slot)?, node.clone());
        }
        Some(node)
    }

    /// Returns the node at this address, which without a host is that of `teller`.
    fn node_at(&self, host: &str, port: u16, teller: &Node) -> Option<Arc<Node>> {
        let host = if host.is_empty() { teller.name.rsplit_once(':')?.0 } else { host };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let info = at(&self.like, host, port);
        let mut known = locked(&self.known);
        if let Some(node) = known.nodes.get(&info.addr().to_string()) {
            return Some(node.clone());
        }
        let node = Node::new(info).ok()?;
        known.nodes.insert(node.name.to_string(), node.clone());
        Some(node)
    }

    /// Asks one node after the other where the slots are, until one answers.
    pub(crate) async fn look(self: Arc<Self>) {
        let looks = locked(&self.known).looks;
        let _only_one = self.looking.lock().await;
        if locked(&self.known).looks != looks {
            return;
        }
        let nodes: Vec<Arc<Node>> = locked(&self.known).nodes.values().cloned().collect();
        for node in nodes {
            let Some(reply) = node.ask_for_slots().await else { continue };
            // A user that may not ask learns by redirections.
            locked(&self.known).looks += 1;
            if let Ok(reply) = reply.extract_error() {
                self.read(reply, &node);
                return;
            }
        }
        self.next_seed.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads the reply to CLUSTER SLOTS: `[first, last, [host, port, …], replicas…]` each.
    fn read(&self, reply: Value, teller: &Node) {
        let Ok(ranges) = Vec::<Vec<Value>>::from_redis_value(reply) else { return };
        let mut of_slots = HashMap::new();
        for range in ranges {
            let Some((slots, host, port)) = read_range(range) else { return };
            let Some(node) = self.node_at(&host, port, teller) else { return };
            of_slots.extend(slots.filter_map(Slot::new).map(|slot| (slot, node.clone())));
        }
        locked(&self.known).of_slots = of_slots;
    }
}

fn read_range(range: Vec<Value>) -> Option<(RangeInclusive<u16>, String, u16)> {
    let mut fields = range.into_iter();
    let first = u16::from_redis_value(fields.next()?).ok()?;
    let last = u16::from_redis_value(fields.next()?).ok()?;
    let mut node = Vec::<Value>::from_redis_value(fields.next()?).ok()?.into_iter();
    let host = Option::<String>::from_redis_value(node.next()?).ok()?.unwrap_or_default();
    let port = u16::from_redis_value(node.next()?).ok()?;
    Some((first..=last, host, port))
}
