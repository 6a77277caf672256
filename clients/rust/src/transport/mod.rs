//! How a request reaches its server, and its reply the caller.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::transport::clock::Clock;
use crate::transport::cluster::Cluster;
use crate::transport::node::Node;
use crate::values::rules::{RETRY_EVERY, TIMEOUT};
use crate::values::By;

pub(crate) mod address;
pub(crate) mod ask;
pub(crate) mod background;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod link;
pub(crate) mod locked;
pub(crate) mod node;
pub(crate) mod send;
pub(crate) mod sentinel;
pub(crate) mod silence;

/// Sends requests to a server or a cluster; clones are the same one.
#[derive(Clone)]
pub(crate) struct Transport {
    shared: Arc<Shared>,
    pub(crate) options: ServerOptions,
}

struct Shared {
    /// The server, or a node of the cluster.
    first: Arc<Node>,
    cluster: Option<Cluster>,
    clock: Clock,
}

/// What [`Server`](crate::Server) says of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerOptions {
    pub(crate) timeout: Duration,
    pub(crate) retry_every: Duration,
    pub(crate) by: By,
}

impl Transport {
    pub(crate) fn new(first: Arc<Node>, cluster: Option<Cluster>, clock: Clock) -> Self {
        let options = ServerOptions { timeout: TIMEOUT, retry_every: RETRY_EVERY, by: By::Module };
        Self { shared: Arc::new(Shared { first, cluster, clock }), options }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    fn now(&self) -> Duration {
        self.clock().now()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.shared.cluster.is_some()
    }

    /// Runs a task beside the caller.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.clock().is_real() {
            let _ = background::spawn(task);
        } else {
            // A fake server lets no call wait.
            let _ = pin!(task).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }
}
