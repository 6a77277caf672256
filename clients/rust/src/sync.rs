//! The same for threads.
//!
//! ```
//! use tokenbucket_client::sync::{Limiter, Server};
//! use tokenbucket_client::Limit;
//!
//! # let url = std::env::var("TOKENBUCKET_URL").expect("the tests set it");
//! let server = Server::connect(url)?; // redis://127.0.0.1:6379
//! let limiter = Limiter::new(&server, Limit::new(5, "2/s")?);
//! if limiter.take("alice", 1)?.allowed {
//!     // ...
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::cell::Cell;
use std::future::{poll_fn, Future};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use redis::cluster::{ClusterClient, ClusterConfig, ClusterConnection};
use redis::{Client, Cmd, Connection, ConnectionLike, IntoConnectionInfo, RedisError, RedisResult, Value};

use crate::connecting::{client, cluster_client, on_node_of, slots_command, Slots};
use crate::error::Failure;
use crate::transport::{Pending, Transport};
use crate::{Amount, Decision, Error, JointDecision, Limit, Options, Part};

/// A server or a cluster, for threads; clones share its connections, of which there are as many as calls at a time.
#[derive(Clone, Debug)]
pub struct Server(pub(crate) crate::Server);

impl Server {
    /// A single server. Connects at the first call, and again whenever a connection is lost.
    ///
    /// # Errors
    ///
    /// The URL is none.
    pub fn connect(url: impl IntoConnectionInfo) -> RedisResult<Self> {
        Ok(Self::new(Single(client(url)?)))
    }

    /// A cluster that has one of `urls` among its nodes. A node that is away is an outage of its own buckets alone.
    ///
    /// A call may be tried three times, each within the timeout, as there are redirections.
    ///
    /// # Errors
    ///
    /// There is no URL, or one that is none.
    pub fn cluster<T: IntoConnectionInfo>(urls: impl IntoIterator<Item = T>) -> RedisResult<Self> {
        Ok(Self::new(Cluster { client: cluster_client(urls)?, slots: Slots::default() }))
    }

    fn new(link: impl Link) -> Self {
        let pool =
            Pool { link, idle: Mutex::default(), connections: AtomicU64::new(0), began: Instant::now() };
        Self(crate::Server::new(Arc::new(Threads(Arc::new(pool)))))
    }
}

/// One limit for many names, for threads. Its methods are those of [`crate::Limiter`], which says more of each.
#[derive(Clone, Debug)]
pub struct Limiter(crate::Limiter);

impl Limiter {
    /// With all options at their defaults.
    pub fn new(server: &Server, limit: Limit) -> Self {
        Self(crate::Limiter::new(&server.0, limit))
    }

    /// With these options.
    pub fn with_options(server: &Server, limit: Limit, options: Options) -> Self {
        Self(crate::Limiter::with_options(&server.0, limit, options))
    }

    /// See [`crate::Limiter::with_limit`].
    #[must_use]
    pub fn with_limit(&self, limit: Limit) -> Self {
        Self(self.0.with_limit(limit))
    }

    /// The limit that it was made with.
    pub fn limit(&self) -> &Limit {
        self.0.limit()
    }

    /// See [`crate::Limiter::take`].
    pub fn take(&self, name: &str, cost: impl Into<Amount>) -> Result<Decision, Error> {
        wait_for(self.0.take(name, cost))
    }

    /// See [`crate::Limiter::peek`].
    pub fn peek(&self, name: &str, cost: impl Into<Amount>) -> Result<Decision, Error> {
        wait_for(self.0.peek(name, cost))
    }

    /// See [`crate::Limiter::take_up_to`].
    pub fn take_up_to(&self, name: &str, most: u64) -> Result<Decision, Error> {
        wait_for(self.0.take_up_to(name, most))
    }

    /// See [`crate::Limiter::reserve`].
    pub fn reserve(
        &self,
        name: &str,
        cost: impl Into<Amount>,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        wait_for(self.0.reserve(name, cost, max_wait))
    }

    /// See [`crate::Limiter::reserve_only`].
    pub fn reserve_only(
        &self,
        name: &str,
        cost: impl Into<Amount>,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        wait_for(self.0.reserve_only(name, cost, max_wait))
    }

    /// See [`crate::Limiter::charge`].
    pub fn charge(&self, name: &str, amount: impl Into<Amount>) -> Result<Decision, Error> {
        wait_for(self.0.charge(name, amount))
    }

    /// See [`crate::Limiter::give`].
    pub fn give(&self, name: &str, amount: impl Into<Amount>) -> Result<Decision, Error> {
        wait_for(self.0.give(name, amount))
    }

    /// See [`crate::Limiter::take_all`].
    pub fn take_all(&self, parts: &[Part]) -> Result<JointDecision, Error> {
        wait_for(self.0.take_all(parts))
    }

    /// See [`crate::Limiter::hold`].
    pub fn hold(&self, name: &str, amount: impl Into<Amount>, ttl: Duration) -> Result<Hold, Error> {
        wait_for(self.0.hold(name, amount, ttl)).map(|hold| Hold(Some(hold)))
    }

    /// See [`crate::Limiter::hold_all`].
    pub fn hold_all(&self, parts: &[Part], ttl: Duration) -> Result<Hold, Error> {
        wait_for(self.0.hold_all(parts, ttl)).map(|hold| Hold(Some(hold)))
    }

    /// See [`crate::Limiter::close`].
    pub fn close(&self) -> Result<(), Error> {
        wait_for(self.0.close())
    }
}

/// Tokens that are held until they are settled, or their holder is gone; renewed by a thread of its own. See
/// [`crate::Hold`].
///
/// Dropping it settles it, and waits for the reply.
#[must_use = "it is settled when it is dropped"]
pub struct Hold(Option<crate::Hold>);

impl Hold {
    /// See [`crate::Hold::set_used`].
    pub fn set_used(&self, used: impl Into<Amount>) {
        self.set_used_of(0, used);
    }

    /// See [`crate::Hold::set_used_of`].
    pub fn set_used_of(&self, place: usize, used: impl Into<Amount>) {
        if let Some(hold) = &self.0 {
            hold.set_used_of(place, used);
        }
    }

    /// See [`crate::Hold::decision`].
    pub fn decision(&self) -> JointDecision {
        self.0.as_ref().map(crate::Hold::decision).unwrap_or_default()
    }

    /// See [`crate::Hold::settle`].
    pub fn settle(mut self) -> Result<JointDecision, Error> {
        match self.0.take() {
            Some(hold) => wait_for(hold.settle()),
            None => Ok(JointDecision::default()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(hold) = self.0.take() else { return };
        if let Err(error) = wait_for(hold.settle()) {
            log::warn!("a hold was not settled: {error}");
        }
    }
}

/// A single server or a cluster.
trait Link: Send + Sync + 'static {
    type Connection: ConnectionLike + Send;

    fn connect(&self, timeout: Duration) -> RedisResult<Self::Connection>;
    fn set_timeout(connection: &Self::Connection, timeout: Duration) -> RedisResult<()>;
    fn run(connection: &mut Self::Connection, command: &Cmd, key: &str) -> RedisResult<Value>;

    fn slots(&self) -> Option<&Slots> {
        None
    }
}

struct Single(Client);

impl Link for Single {
    type Connection = Connection;

    fn connect(&self, timeout: Duration) -> RedisResult<Connection> {
        self.0.get_connection_with_timeout(timeout)
    }

    fn set_timeout(connection: &Connection, timeout: Duration) -> RedisResult<()> {
        connection.set_read_timeout(Some(timeout))?;
        connection.set_write_timeout(Some(timeout))
    }

    fn run(connection: &mut Connection, command: &Cmd, _key: &str) -> RedisResult<Value> {
        connection.req_command(command)
    }
}

struct Cluster {
    client: ClusterClient,
    slots: Slots,
}

impl Link for Cluster {
    type Connection = ClusterConnection;

    fn connect(&self, timeout: Duration) -> RedisResult<ClusterConnection> {
        let config = ClusterConfig::new().set_connection_timeout(timeout).set_response_timeout(timeout);
        let mut connection = self.client.get_connection_with_config(config)?;
        let (command, route) = slots_command();
        self.slots.read(connection.route_command(&command, route)?);
        Ok(connection)
    }

    fn set_timeout(connection: &ClusterConnection, timeout: Duration) -> RedisResult<()> {
        connection.set_read_timeout(Some(timeout))?;
        connection.set_write_timeout(Some(timeout))
    }

    fn run(connection: &mut ClusterConnection, command: &Cmd, key: &str) -> RedisResult<Value> {
        connection.route_command(command, on_node_of(key))
    }

    fn slots(&self) -> Option<&Slots> {
        Some(&self.slots)
    }
}

/// Connections that nobody uses at the moment.
struct Pool<L: Link> {
    link: L,
    idle: Mutex<Vec<L::Connection>>,
    connections: AtomicU64,
    began: Instant,
}

impl<L: Link> Pool<L> {
    fn idle(&self) -> MutexGuard<'_, Vec<L::Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self, timeout: Duration) -> RedisResult<L::Connection> {
        let connection = self.link.connect(timeout)?;
        self.connections.fetch_add(1, Ordering::AcqRel);
        Ok(connection)
    }

    fn send(&self, command: &Cmd, key: &str, timeout: Duration) -> RedisResult<Value> {
        let idle = self.idle().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect(timeout)?,
        };
        L::set_timeout(&connection, timeout)?;
        let result = L::run(&mut connection, command, key).and_then(Value::extract_error);
        // What comes late on a connection would answer the next call.
        if !result.as_ref().is_err_and(|error| error.code().is_none()) {
            self.idle().push(connection);
        } else {
            self.idle().clear();
        }
        result
    }
}

struct Threads<L: Link>(Arc<Pool<L>>);

impl<L: Link> Transport for Threads<L> {
    fn send(&self, command: Cmd, key: &str, timeout: Duration) -> Pending<Result<Value, Failure>> {
        let (pool, key) = (self.0.clone(), key.to_owned());
        Box::pin(async move {
            pool.send(&command, &key, timeout).map_err(|error: RedisError| {
                if error.is_timeout() {
                    Failure::TimedOut
                } else {
                    error.into()
                }
            })
        })
    }

    fn sleep(&self, time: Duration) -> Pending<()> {
        Box::pin(sleep_until(Instant::now() + time))
    }

    fn spawn(&self, task: Pending<()>) {
        thread::spawn(|| wait_for(task));
    }

    fn now(&self) -> Duration {
        self.0.began.elapsed()
    }

    fn connections(&self) -> u64 {
        self.0.connections.load(Ordering::Acquire)
    }

    fn node_of(&self, key: &str) -> Arc<str> {
        self.0.link.slots().map_or_else(|| "".into(), |slots| slots.node_of(key))
    }
}

thread_local! {
    /// When this thread is to look again at what it waits for.
    static LOOK_AT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Runs a future on this thread, which sleeps while there is nothing to do.
fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        LOOK_AT.set(None);
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        match LOOK_AT.get() {
            Some(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
            None => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

async fn sleep_until(end: Instant) {
    poll_fn(|_| {
        if Instant::now() >= end {
            return Poll::Ready(());
        }
        LOOK_AT.set(Some(LOOK_AT.get().map_or(end, |at| at.min(end))));
        Poll::Pending
    })
    .await;
}
