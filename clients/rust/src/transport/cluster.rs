//! Which node of a cluster has which slot.
//!
//! Redirections alone would do. The reply to `CLUSTER SLOTS` names the nodes that no call has met, for the time when a node
//! is away. The driver's cluster client either repeats calls that must happen once, or follows no redirection; it does not
//! find the successor of a master that is silent; and calls that wait need connections of their own.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::cluster_routing::Slot;
use redis::{ConnectionInfo, FromRedisValue, RedisError, RedisResult, Value};

use crate::transport::address::at;
use crate::transport::locked::locked;
use crate::transport::node::{is_due, Node};

pub(crate) struct Cluster {
    /// The first of those from which the others are found.
    pub(crate) first: Arc<Node>,
    /// How it is connected to, and so the others.
    like: ConnectionInfo,
    seeds: Vec<Arc<Node>>,
    known: Mutex<Known>,
    /// When it may be asked for slots again.
    next_look_us: AtomicU64,
}

const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Known {
    nodes: HashMap<String, Arc<Node>>,
    of_slots: HashMap<Slot, Arc<Node>>,
    /// How often one was asked for slots.
    looks: usize,
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<ConnectionInfo>) -> RedisResult<Self> {
        let Some(like) = seeds.first().cloned() else {
            return Err((redis::ErrorKind::InvalidClientConfig, "a cluster needs a URL").into());
        };
        let seeds = seeds.into_iter().map(Node::new).collect::<RedisResult<Vec<_>>>()?;
        let first = seeds[0].clone();
        let nodes = seeds.iter().map(|node| (node.name.to_string(), node.clone())).collect();
        let known = Mutex::new(Known { nodes, ..Known::default() });
        Ok(Self { first, like, seeds, known, next_look_us: AtomicU64::new(0) })
    }

    /// Returns the node of the key; while that is unknown, a guess that can redirect to it, if possible one that was not asked.
    /// Says whether it is a guess.
    pub(crate) fn node_of(&self, key: &str, asked: &[Arc<Node>]) -> (Arc<Node>, bool) {
        let known = locked(&self.known).of_slots.get(&Slot::for_key(key)).cloned();
        let is_guess = known.is_none();
        let guess = || self.one_there(asked).or_else(|| self.one_there(&[]));
        (known.or_else(guess).unwrap_or_else(|| self.first.clone()), is_guess)
    }

    /// Returns a node that is not away and was not asked, if there is one. After each look it is the next: one may refuse the user.
    pub(super) fn one_there(&self, asked: &[Arc<Node>]) -> Option<Arc<Node>> {
        let is_new = |node: &Arc<Node>| asked.iter().all(|one| !Arc::ptr_eq(one, node));
        let known = locked(&self.known);
        let nodes: Vec<_> = known.nodes.values().filter(|node| !node.is_away() && is_new(node)).collect();
        known.looks.checked_rem(nodes.len()).map(|at| nodes[at].clone())
    }

    /// Returns a node to ask for slots, unless one was asked a moment ago.
    pub(super) fn one_to_ask(&self, now: Duration) -> Option<Arc<Node>> {
        is_due(&self.next_look_us, now, BETWEEN_LOOKS).then(|| self.next_to_ask()).flatten()
    }

    /// Returns one after the other: one that has left knows nothing. While all are away, also the seeds, which no call asks if they
    /// have no slot.
    fn next_to_ask(&self) -> Option<Arc<Node>> {
        let mut known = locked(&self.known);
        known.looks = known.looks.wrapping_add(1);
        let mut nodes: Vec<_> = known.nodes.values().filter(|node| !node.is_away()).collect();
        if nodes.is_empty() {
            nodes.extend(known.nodes.values().chain(&self.seeds));
        }
        known.looks.checked_rem(nodes.len()).map(|at| nodes[at].clone())
    }

    /// Forgets the nodes without slots: they left, or are where a slot moves to. A call that is under way keeps its node and
    /// connection.
    pub(super) fn forget_left(&self) {
        let mut known = locked(&self.known);
        let Known { nodes, of_slots, .. } = &mut *known;
        let with_slots: HashSet<_> = of_slots.values().map(Arc::as_ptr).collect();
        if !with_slots.is_empty() {
            nodes.retain(|_, node| with_slots.contains(&Arc::as_ptr(node)));
        }
    }

    /// Returns whether no node was asked for slots yet.
    pub(super) fn is_new(&self) -> bool {
        self.next_look_us.load(Ordering::Acquire) == 0
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
        teller.answers();
        let mut master = Vec::<Value>::from_redis_value(fields.next()?).ok()?.into_iter();
        let host = Option::<String>::from_redis_value(master.next()?).ok()?.unwrap_or_default();
        let node = self.node_at(&host, u16::from_redis_value(master.next()?).ok()?, teller)?;
        if node.is_away() {
            return None; // a redirection may have named its successor since the teller was asked
        }
        let slots = (first..=last).filter_map(Slot::new).map(|slot| (slot, node.clone()));
        locked(&self.known).of_slots.extend(slots);
        Some(())
    }
}
