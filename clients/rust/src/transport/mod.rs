//! How a request reaches its server, and its reply the caller.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use redis::RedisError;

use crate::api::options::{Fallback, ServerOptions};
use crate::transport::clock::Clock;
use crate::transport::cluster::Cluster;
use crate::transport::node::{Node, Probe};
use crate::transport::silence::Silence;
use crate::values::error::Failure;

pub(crate) mod address;
pub(crate) mod background;
pub(crate) mod calls;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod connections;
pub(crate) mod late;
pub(crate) mod locked;
pub(crate) mod node;
#[cfg(feature = "sync")]
pub(crate) mod park;
pub(crate) mod reply;
pub(crate) mod sentinel;
pub(crate) mod silence;
pub(crate) mod waits;

/// Sends requests to a server or a cluster; clones are the same one.
#[derive(Clone)]
pub(crate) struct Transport(Arc<Inner>);

struct Inner {
    topology: Topology,
    silence: Silence,
    retry_every: Duration,
    fallback: Fallback,
}

pub(crate) enum Topology {
    Single(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Transport {
    pub(crate) fn new(topology: Topology, clock: Clock, options: ServerOptions) -> Self {
        let ServerOptions { timeout, retry_every, fallback } = options;
        Self(Arc::new(Inner { topology, silence: Silence { clock, timeout }, retry_every, fallback }))
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.silence.clock
    }

    fn timeout(&self) -> Duration {
        self.0.silence.timeout
    }

    /// The node that is no cluster's.
    fn single(&self) -> Option<&Arc<Node>> {
        match &self.0.topology {
            Topology::Single(node) => Some(node),
            Topology::Cluster(_) => None,
        }
    }

    /// Runs a task beside the caller.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.clock().is_real() {
            background::spawn(task);
        } else {
            // A fake server lets no call wait.
            let _ = pin!(task).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.0.topology, Topology::Cluster(_))
    }

    fn of_key(&self, key: &str) -> Arc<Node> {
        match &self.0.topology {
            Topology::Single(node) => node.clone(),
            Topology::Cluster(cluster) => cluster.node_of(key),
        }
    }

    /// Asks where the slots of a cluster are, unless that is known.
    async fn learn_slots(&self) {
        if let Topology::Cluster(cluster) = &self.0.topology {
            if cluster.are_slots_unknown() {
                // Goes on if the caller leaves: the next one need not begin again.
                let _ = self.0.silence.patiently(background::spawn(cluster.clone().look())).await;
            }
        }
    }

    /// Asks in the background where the slots of a cluster are.
    fn look_at_slots(&self) {
        if let Topology::Cluster(cluster) = &self.0.topology {
            self.spawn(cluster.clone().look());
        }
    }

    /// The node to which `asked` redirects.
    fn redirected(&self, asked: &Node, error: &RedisError) -> Option<Arc<Node>> {
        let Topology::Cluster(cluster) = &self.0.topology else { return None };
        let other = cluster.redirected(asked, error)?;
        self.look_at_slots();
        Some(other)
    }

    /// Lets a call through, or not while the node is away: see [`Node::admit`].
    fn admit(&self, node: &Arc<Node>, always: bool) -> Option<Probe> {
        if !node.is_away() {
            return Some(Probe::none());
        }
        node.admit(self.clock().now(), self.0.retry_every, always)
    }

    fn away(&self, node: &Node, failure: &Failure) {
        node.away(self.clock().now() + self.0.retry_every, failure);
        self.look_at_slots();
    }
}
