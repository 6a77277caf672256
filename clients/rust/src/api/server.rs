//! A server or a cluster, as limiters use it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo, RedisResult, Value};
use tokio::sync::Semaphore;

use crate::api::options::ServerOptions;
use crate::local::buckets::Buckets;
#[cfg(feature = "fake")]
use crate::local::fake::Fake;
use crate::transport::address::{read, settings};
use crate::transport::clock::Clock;
use crate::transport::cluster::Cluster;
use crate::transport::locked::locked;
use crate::transport::node::Node;
use crate::transport::sentinel::Sentinels;
use crate::transport::Transport;
use crate::values::error::Error;
use crate::values::request::{By, Request};
use crate::values::rules::MOST_UNSETTLED;

/// A server or a cluster, for limiters of tasks and of threads. Clones share its connections and its outages.
#[derive(Clone)]
pub struct Server(pub(super) Arc<Inner>);

pub(super) struct Inner {
    transport: Transport,
    local: Mutex<Buckets>,
    degraded: AtomicU64,
    /// Bounds how many holds wait to be settled.
    pub(super) unsettled: Arc<Semaphore>,
}

impl Server {
    /// Names a single server, with the default options. Connects at the first call, and again whenever the connection is
    /// lost. Speaks RESP3, which reports a closed connection at once.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid.
    pub fn connect(url: impl IntoConnectionInfo) -> RedisResult<Self> {
        Self::connect_with(url, ServerOptions::new())
    }

    /// Does what [`connect`](Self::connect) does, with these options.
    pub fn connect_with(url: impl IntoConnectionInfo, options: ServerOptions) -> RedisResult<Self> {
        Ok(Self::new(Node::new(settings(url)?)?, None, Clock::real(), options))
    }

    /// Names a master that the sentinels know, with the default options. Each connection asks them for the master, so a new
    /// one is found once the old one is gone or has become a replica.
    ///
    /// `master` is a URL with the name of the master as its host, and the user, password and database of the master. What
    /// the sentinels want is in their own URLs.
    ///
    /// ```
    /// use tokenbucket_client::Server;
    ///
    /// let server = Server::sentinel("redis://:secret@mymaster", ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if there is no URL of a sentinel, or a URL is invalid.
    pub fn sentinel<T: IntoConnectionInfo>(
        master: impl IntoConnectionInfo,
        sentinels: impl IntoIterator<Item = T>,
    ) -> RedisResult<Self> {
        Self::sentinel_with(master, sentinels, ServerOptions::new())
    }

    /// Does what [`sentinel`](Self::sentinel) does, with these options.
    pub fn sentinel_with<T: IntoConnectionInfo>(
        master: impl IntoConnectionInfo,
        sentinels: impl IntoIterator<Item = T>,
        options: ServerOptions,
    ) -> RedisResult<Self> {
        let sentinels = sentinels.into_iter().map(read);
        let node = Node::master_of(Sentinels::new(settings(master)?, sentinels)?);
        Ok(Self::new(node, None, Clock::real(), options))
    }

    /// Names a cluster by the URLs of some of its nodes, with the default options.
    ///
    /// A node that is away is an outage of its own buckets alone.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no URL, or one is invalid.
    pub fn cluster<T: IntoConnectionInfo>(urls: impl IntoIterator<Item = T>) -> RedisResult<Self> {
        Self::cluster_with(urls, ServerOptions::new())
    }

    /// Does what [`cluster`](Self::cluster) does, with these options.
    pub fn cluster_with<T: IntoConnectionInfo>(
        urls: impl IntoIterator<Item = T>,
        options: ServerOptions,
    ) -> RedisResult<Self> {
        let seeds = urls.into_iter().map(settings).collect::<RedisResult<Vec<ConnectionInfo>>>()?;
        let cluster = Cluster::new(seeds)?;
        Ok(Self::new(cluster.first.clone(), Some(cluster), Clock::real(), options))
    }

    fn new(first: Arc<Node>, cluster: Option<Cluster>, clock: Clock, options: ServerOptions) -> Self {
        Self(Arc::new(Inner {
            transport: Transport::new(first, cluster, clock, options),
            local: Mutex::new(Buckets::bounded()),
            degraded: AtomicU64::new(0),
            unsettled: Arc::new(Semaphore::new(MOST_UNSETTLED)),
        }))
    }

    /// Returns whether it is a cluster, where the names of one call have to share a hash tag.
    pub fn is_cluster(&self) -> bool {
        self.0.transport.is_cluster()
    }

    /// Returns how many decisions [`OnError`](crate::OnError) made in place of the server.
    pub fn degraded_count(&self) -> u64 {
        self.0.degraded.load(Ordering::Relaxed)
    }

    pub(crate) fn count_degraded(&self) {
        self.0.degraded.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.0.transport
    }

    /// The time since 1970.
    pub(crate) fn now(&self) -> Duration {
        self.0.transport.clock().now()
    }

    /// Decides here, under the same limit.
    pub(crate) fn decide_locally(&self, request: &Request) -> Result<Value, Error> {
        self.decide_in(&mut locked(&self.0.local), request)
    }

    /// Finds what is wrong whatever the buckets hold.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Error> {
        self.decide_in(&mut Buckets::unbounded(), request).map(drop)
    }

    fn decide_in(&self, local: &mut Buckets, request: &Request) -> Result<Value, Error> {
        local.now_us = i64::try_from(self.now().as_micros()).unwrap_or(i64::MAX);
        let mut replies = request.to_commands(By::Module).into_iter().map(|command| local.run(&command));
        replies.next().unwrap_or(Ok(Value::Nil)).map_err(|error| Error::refused("this process", error))
    }
}

#[cfg(feature = "fake")]
impl Fake {
    /// Returns the server to make limiters with.
    pub fn server(&self) -> Server {
        self.server_with(ServerOptions::new())
    }

    /// Returns the server to make limiters with, with these options.
    pub fn server_with(&self, options: ServerOptions) -> Server {
        // Nothing is ever connected to it.
        let node = settings("redis://fake").and_then(Node::new).expect("a URL");
        Server::new(node, None, Clock::Fake(self.clone()), options)
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("options", self.transport().options()).finish_non_exhaustive()
    }
}
