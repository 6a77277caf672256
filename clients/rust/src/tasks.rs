//! Connections for the tasks of a tokio runtime.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, PushInfo, PushKind, RedisError, RedisResult,
    Value,
};
use tokio::runtime::Handle;

use crate::connecting::{client, cluster_client, on_node_of, slots_command, Slots};
use crate::error::Failure;
use crate::server::Server;
use crate::transport::{Pending, Transport};

/// A try to connect that takes longer has failed.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

impl Server {
    /// A single server. Connects at the first call, and again whenever the connection is lost. Speaks RESP3, by which
    /// it learns at once of a connection that was closed.
    ///
    /// # Errors
    ///
    /// The URL is none.
    pub fn connect(url: impl IntoConnectionInfo) -> RedisResult<Self> {
        let link = Arc::new(Link {
            client: client(url)?,
            live: Mutex::default(),
            connecting: Default::default(),
            connections: AtomicU64::new(0),
        });
        Ok(Self::new(Arc::new(Single { link, began: Instant::now() })))
    }

    /// A cluster that has one of `urls` among its nodes. `timeout` is the longest of its limiters'.
    ///
    /// A node that is away is an outage of its own buckets alone.
    ///
    /// # Errors
    ///
    /// There is no URL, or one that is none.
    pub fn cluster<T: IntoConnectionInfo>(
        urls: impl IntoIterator<Item = T>,
        timeout: Duration,
    ) -> RedisResult<Self> {
        let cluster = Cluster {
            client: cluster_client(urls)?,
            timeout,
            connection: Arc::default(),
            slots: Arc::default(),
            began: Instant::now(),
        };
        Ok(Self::new(Arc::new(cluster)))
    }
}

/// One connection, which all calls share.
struct Link {
    client: Client,
    live: Mutex<Option<Live>>,
    /// Held by whoever connects.
    connecting: tokio::sync::Mutex<()>,
    connections: AtomicU64,
}

#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    is_closed: Arc<AtomicBool>,
}

impl Link {
    fn live(&self) -> Option<MultiplexedConnection> {
        let live = locked(&self.live);
        live.as_ref()
            .filter(|live| !live.is_closed.load(Ordering::Acquire))
            .map(|live| live.connection.clone())
    }

    /// Goes on in the background if the caller gives up: the next finds the connection there.
    async fn connection(self: Arc<Self>) -> RedisResult<MultiplexedConnection> {
        if let Some(connection) = self.live() {
            return Ok(connection);
        }
        let connecting = tokio::spawn(async move {
            let _only_one = self.connecting.lock().await;
            match self.live() {
                Some(connection) => Ok(connection),
                None => self.connect().await,
            }
        });
        connecting.await.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::Interrupted).into()))
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = is_closed.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            // Every call has a timeout of its own.
            .set_response_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    closed.store(true, Ordering::Release);
                }
                Ok::<_, redis::aio::SendError>(())
            });
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        // The library's own limit does not cover a server that accepts and then says nothing.
        let connection =
            tokio::time::timeout(CONNECT_WITHIN, connecting).await.map_err(|_| timed_out())??;
        *locked(&self.live) = Some(Live { connection: connection.clone(), is_closed });
        self.connections.fetch_add(1, Ordering::AcqRel);
        Ok(connection)
    }

    async fn send(self: Arc<Self>, command: Cmd) -> RedisResult<Value> {
        let mut connection = self.clone().connection().await?;
        let result = connection.send_packed_command(&command).await;
        if result.as_ref().is_err_and(RedisError::is_unrecoverable_error) {
            *locked(&self.live) = None;
        }
        // Errors of the server come as values.
        result.and_then(Value::extract_error)
    }
}

struct Single {
    link: Arc<Link>,
    began: Instant,
}

impl Transport for Single {
    fn send(&self, command: Cmd, _key: &str, timeout: Duration) -> Pending<Result<Value, Failure>> {
        within(timeout, self.link.clone().send(command))
    }

    fn sleep(&self, time: Duration) -> Pending<()> {
        Box::pin(tokio::time::sleep(time))
    }

    fn spawn(&self, task: Pending<()>) {
        spawn(task);
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn connections(&self) -> u64 {
        2 * self.link.connections.load(Ordering::Acquire) + u64::from(self.link.live().is_some())
    }
}

struct Cluster {
    client: ClusterClient,
    timeout: Duration,
    connection: Arc<Mutex<Option<ClusterConnection>>>,
    slots: Arc<Slots>,
    began: Instant,
}

impl Cluster {
    /// Made at the first call, because it needs the runtime.
    fn connection(&self) -> ClusterConnection {
        let mut connection = locked(&self.connection);
        let connect = || {
            let config = ClusterConfig::new()
                .set_connection_timeout(CONNECT_WITHIN)
                // So that the client's own questions, as for the slots, end too. Not before the limiter gives up:
                // after a timeout redis 1.8 retries a call only when the next one comes.
                .set_response_timeout(self.timeout.max(CONNECT_WITHIN));
            self.client.get_pending_async_connection_with_config(config)
        };
        connection.get_or_insert_with(connect).clone()
    }

    /// Asks any node where the slots are.
    fn look_at_slots(&self) -> impl Future<Output = ()> + Send + 'static {
        let (mut connection, slots) = (self.connection(), self.slots.clone());
        async move {
            let (command, route) = slots_command();
            if let Ok(reply) = connection.route_command(command, route).await {
                slots.read(reply);
            }
        }
    }
}

impl Transport for Cluster {
    fn send(&self, command: Cmd, key: &str, timeout: Duration) -> Pending<Result<Value, Failure>> {
        let (mut connection, route) = (self.connection(), on_node_of(key));
        let looking = self.slots.are_unknown().then(|| self.look_at_slots());
        within(timeout, async move {
            if let Some(looking) = looking {
                looking.await;
            }
            connection.route_command(command, route).await.and_then(Value::extract_error)
        })
    }

    fn sleep(&self, time: Duration) -> Pending<()> {
        Box::pin(tokio::time::sleep(time))
    }

    fn spawn(&self, task: Pending<()>) {
        spawn(task);
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn node_of(&self, key: &str) -> Arc<str> {
        self.slots.node_of(key)
    }

    fn failed(&self) {
        spawn(Box::pin(self.look_at_slots()));
    }
}

fn within(
    timeout: Duration,
    call: impl Future<Output = RedisResult<Value>> + Send + 'static,
) -> Pending<Result<Value, Failure>> {
    Box::pin(async move {
        match tokio::time::timeout(timeout, call).await {
            Ok(result) => result.map_err(Failure::from),
            Err(_) => Err(Failure::TimedOut),
        }
    })
}

/// Without a runtime there is nobody to do it: holds then end by their time.
fn spawn(task: Pending<()>) {
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(task);
    }
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
