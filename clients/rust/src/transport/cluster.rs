//! Which node of a cluster has which slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use redis::cluster_routing::Slot;
use redis::{ConnectionInfo, FromRedisValue, RedisError, RedisResult, Value};

use crate::transport::address::at;
use crate::transport::locked::locked;
use crate::transport::node::Node;

pub(crate) struct Cluster {
    /// The first of those from which the others are found.
    pub(crate) first: Arc<Node>,
    /// How it is connected to, and so the others.
    like: ConnectionInfo,
    pub(super) known: Mutex<Known>,
    /// Locked while a task asks where the slots are.
    pub(super) looking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
pub(super) struct Known {
    pub(super) nodes: HashMap<String, Arc<Node>>,
    of_slots: HashMap<Slot, Arc<Node>>,
    /// How often nodes were asked for slots.
    pub(super) looks: u64,
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<ConnectionInfo>) -> RedisResult<Self> {
        let Some(like) = seeds.first().cloned() else {
            return Err((redis::ErrorKind::InvalidClientConfig, "a cluster needs a URL").into());
        };
        let seeds = seeds.into_iter().map(Node::new).collect::<RedisResult<Vec<_>>>()?;
        let first = seeds[0].clone();
        let nodes = seeds.into_iter().map(|node| (node.name.to_string(), node)).collect();
        let known = Mutex::new(Known { nodes, ..Known::default() });
        Ok(Self { first, like, known, looking: tokio::sync::Mutex::default() })
    }

    /// Returns the node of the key; while that is unknown, one that can redirect to it.
    pub(crate) fn node_of(&self, key: &str) -> Arc<Node> {
        let Known { nodes, of_slots, .. } = &*locked(&self.known);
        let there = || nodes.values().find(|node| !node.is_away()).unwrap_or(&self.first);
        of_slots.get(&Slot::for_key(key)).unwrap_or_else(there).clone()
    }

    /// Returns the node to which `asked` redirects, which has the slot from now on if it `moved`.
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

    /// Reads one range of the reply to CLUSTER SLOTS: `[first, last, [host, port, …], replicas…]`.
    pub(super) fn read(&self, range: Value, teller: &Node) -> Option<()> {
        let mut fields = Vec::<Value>::from_redis_value(range).ok()?.into_iter();
        let first = u16::from_redis_value(fields.next()?).ok()?;
        let last = u16::from_redis_value(fields.next()?).ok()?;
        let mut master = Vec::<Value>::from_redis_value(fields.next()?).ok()?.into_iter();
        let host = Option::<String>::from_redis_value(master.next()?).ok()?.unwrap_or_default();
        let node = self.node_at(&host, u16::from_redis_value(master.next()?).ok()?, teller)?;
        let slots = (first..=last).filter_map(Slot::new).map(|slot| (slot, node.clone()));
        locked(&self.known).of_slots.extend(slots);
        Some(())
    }
}
