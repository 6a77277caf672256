//! A server or a cluster, as limiters use it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo, RedisResult, Value};
use tokio::sync::Semaphore;

use crate::api::late::Late;
#[cfg(feature = "fake")]
use crate::local::fake::Fake;
use crate::local::limiter::LocalLimiter;
use crate::transport::address::{read, settings};
use crate::transport::background::YEAR;
use crate::transport::clock::Clock;
use crate::transport::cluster::Cluster;
use crate::transport::locked::locked;
use crate::transport::node::Node;
use crate::transport::sentinel::Sentinels;
use crate::transport::Transport;
use crate::values::rules::MOST_UNSETTLED;
use crate::values::{By, Error, Request};

/// A server or a cluster, for limiters of tasks and of threads. Clones share its connections and its
/// outages, whatever their timeouts.
///
/// ```
/// use std::time::Duration;
/// use tokenbucket_client::Server;
///
/// let cluster = Server::cluster(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"])?;
/// let master = Server::sentinel("redis://:secret@mymaster", ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"])?;
/// let patient = master.with_timeout(Duration::from_secs(1)).with_retry_every(Duration::from_secs(5));
/// let managed = Server::connect("redis://cache.example.com")?.by_script();
/// assert!(cluster.is_cluster() && managed.degraded_count() == 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Server {
    pub(crate) transport: Transport,
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    local: Mutex<LocalLimiter>,
    degraded: AtomicU64,
    /// Bounds how many holds wait to be settled.
    pub(super) unsettled: Arc<Semaphore>,
    pub(super) late: Mutex<Vec<Arc<Late>>>,
}

impl Server {
    /// Names a single server. Connects at the first call, and again whenever the connection is lost. Speaks RESP3, which
    /// reports a closed connection at once.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid.
    pub fn connect(url: impl IntoConnectionInfo) -> RedisResult<Self> {
        Ok(Self::new(Node::new(settings(url)?)?, None, Clock::real()))
    }

    /// Names a master that the sentinels know. Each connection asks the sentinel that answered first for the master, and so does one
    /// call a second; the others are asked when it does not answer or its master is away. All connections move to a new master
    /// together, even while the old one still serves.
    ///
    /// `master` is a URL with the name of the master as its host, and the user, password and database of the master. What
    /// the sentinels want is in their own URLs.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no URL of a sentinel, or a URL is invalid.
    pub fn sentinel<T: IntoConnectionInfo>(
        master: impl IntoConnectionInfo,
        sentinels: impl IntoIterator<Item = T>,
    ) -> RedisResult<Self> {
        let sentinels = sentinels.into_iter().map(read);
        Ok(Self::new(Node::master_of(Sentinels::new(settings(master)?, sentinels)?), None, Clock::real()))
    }

    /// Names a cluster by the URLs of some of its nodes. A node that is away is an outage of its own buckets alone.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no URL, or one is invalid.
    pub fn cluster<T: IntoConnectionInfo>(urls: impl IntoIterator<Item = T>) -> RedisResult<Self> {
        let seeds = urls.into_iter().map(settings).collect::<RedisResult<Vec<ConnectionInfo>>>()?;
        let cluster = Cluster::new(seeds)?;
        Ok(Self::new(cluster.first.clone(), Some(cluster), Clock::real()))
    }

    pub(crate) fn new(first: Arc<Node>, cluster: Option<Cluster>, clock: Clock) -> Self {
        let shared = Shared {
            local: Mutex::new(LocalLimiter::bounded()),
            degraded: AtomicU64::new(0),
            unsettled: Arc::new(Semaphore::new(MOST_UNSETTLED)),
            late: Mutex::default(),
        };
        Self { transport: Transport::new(first, cluster, clock), shared: Arc::new(shared) }
    }

    /// Sets the timeout: the server is away once it was silent for so long while a call waited; 100 ms by default, at least
    /// 1 ms.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        // No time at all would be over before anything could arrive.
        self.transport.options.timeout = timeout.clamp(Duration::from_millis(1), YEAR);
        self
    }

    /// Sets how often one call tries a server that is away; 500 ms by default. [`OnError`](crate::OnError) decides the
    /// others at once.
    pub fn with_retry_every(mut self, retry_every: Duration) -> Self {
        self.transport.options.retry_every = retry_every.min(YEAR);
        self
    }

    /// Lets a Lua script decide every call in place of the module, on every node, on keys of its own that end in `:script`.
    /// Without this, a server without the module is an error. The script has no holds, shares and calendar rates, and at
    /// most 10⁹ tokens a bucket.
    pub fn by_script(mut self) -> Self {
        self.transport.options.by = By::Script;
        self
    }

    /// Returns whether it is a cluster, where the names of one call have to share a hash tag.
    pub fn is_cluster(&self) -> bool {
        self.transport.is_cluster()
    }

    /// Returns how many decisions [`OnError`](crate::OnError) made in place of the server.
    pub fn degraded_count(&self) -> u64 {
        self.shared.degraded.load(Ordering::Relaxed)
    }

    pub(crate) fn count_degraded(&self) {
        self.shared.degraded.fetch_add(1, Ordering::Relaxed);
    }

    /// The time since 1970.
    pub(crate) fn now(&self) -> Duration {
        self.transport.clock().now()
    }

    /// Decides here, under the same limit.
    pub(crate) fn decide_locally(&self, request: &Request) -> Result<Value, Error> {
        self.decide_in(&mut locked(&self.shared.local), request)
    }

    /// Finds what is wrong whatever the buckets hold.
    pub(crate) fn check(&self, request: &Request) -> Result<(), Error> {
        self.decide_in(&mut LocalLimiter::unbounded(), request).map(drop)
    }

    fn decide_in(&self, local: &mut LocalLimiter, request: &Request) -> Result<Value, Error> {
        local.now_us = i64::try_from(self.now().as_micros()).unwrap_or(i64::MAX);
        local.run(&request.command_by(By::Module)).map_err(|error| Error::refused("this process", error))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("options", &self.transport.options).finish_non_exhaustive()
    }
}

#[cfg(feature = "fake")]
impl Fake {
    /// Returns the server to make limiters with.
    pub fn server(&self) -> Server {
        // Nothing is ever connected to it.
        let node = settings("redis://fake").and_then(Node::new).expect("a URL");
        Server::new(node, None, Clock::Fake(self.clone()))
    }
}
