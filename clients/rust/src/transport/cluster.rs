//! Which node of a cluster has which slot, as its nodes tell by redirections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use redis::cluster_routing::Slot;
use redis::{ConnectionInfo, RedisError, RedisResult};

use crate::transport::address::at;
use crate::transport::locked::locked;
use crate::transport::node::Node;

pub(crate) struct Cluster {
    /// The first of those from which the others are found.
    pub(crate) first: Arc<Node>,
    /// How it is connected to, and so the others.
    like: ConnectionInfo,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    nodes: HashMap<String, Arc<Node>>,
    of_slots: HashMap<Slot, Arc<Node>>,
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
        Ok(Self { first, like, known })
    }

    /// Returns the node of the key; while that is unknown, one that redirects to it unless it is the one.
    pub(crate) fn node_of(&self, key: &str) -> Arc<Node> {
        let Known { nodes, of_slots } = &mut *locked(&self.known);
        let there = || nodes.values().find(|node| !node.is_away()).unwrap_or(&self.first).clone();
        of_slots.entry(Slot::for_key(key)).or_insert_with(there).clone()
    }

    /// Lets the nodes that are there tell which node has the slots of this one.
    pub(crate) fn forget(&self, away: &Arc<Node>) {
        locked(&self.known).of_slots.retain(|_, node| !Arc::ptr_eq(node, away));
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
}
