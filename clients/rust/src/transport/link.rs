//! Connections to one server: one that all calls share, and those of calls that wait.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, FromRedisValue, IntoConnectionInfo, Pipeline,
    ProtocolVersion, PushInfo, PushKind, RedisError, RedisResult, Value,
};
use tokio::sync::{watch, Semaphore, SemaphorePermit};

use crate::transport::address::{timed_out, without_password};
use crate::transport::background::spawn;
use crate::transport::locked::locked;
use crate::transport::sentinel::Sentinels;

/// A try to connect that takes longer has failed.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
const MOST_IN_A_QUEUE: usize = 100_000;
/// More connections than these are closed when their calls no longer wait.
const MOST_IDLE_WAITERS: usize = 64;
const MOST_CONNECTING: usize = 32;

pub(crate) struct Link {
    target: Target,
    state: Mutex<Option<State>>,
    connections: AtomicU64,
    next_number: AtomicU64,
    /// Those of calls that have waited, the last used at the end.
    idle_waiters: Mutex<Vec<Waiter>>,
    /// Of those that connect at a time: all at once would take longer than each may.
    connecting: Semaphore,
}

/// What is connected to.
enum Target {
    Server(Client),
    /// Asked each time: the master may be another.
    MasterOf(Sentinels),
}

/// A connection for one call at a time, which may wait in the server.
pub(crate) struct Waiter {
    pub(crate) live: Live,
    /// The server's id of it, if this user may know it.
    pub(crate) id: Option<i64>,
}

enum State {
    Connecting(Outcome),
    Live(Live),
}

/// None while connecting.
pub(crate) type Outcome = watch::Receiver<Option<RedisResult<Connection>>>;

/// A connection, and whether it was closed.
pub(crate) struct Live {
    pub(crate) connection: Connection,
    is_closed: Arc<AtomicBool>,
}

/// Sends commands. Each call clones it, so it holds no more than that needs: threads share the counts.
#[derive(Clone)]
pub(crate) struct Connection {
    multiplexed: MultiplexedConnection,
    /// No other connection of the link has it.
    number: u64,
}

impl Link {
    pub(crate) fn new(info: ConnectionInfo) -> RedisResult<Self> {
        Ok(Self::to(Target::Server(Client::open(info)?)))
    }

    pub(crate) fn to_master_of(sentinels: Sentinels) -> Self {
        Self::to(Target::MasterOf(sentinels))
    }

    fn to(target: Target) -> Self {
        Self {
            target,
            state: Mutex::default(),
            connections: AtomicU64::new(0),
            next_number: AtomicU64::new(0),
            idle_waiters: Mutex::default(),
            connecting: Semaphore::new(MOST_CONNECTING),
        }
    }

    /// A number that changes with each connection that is made or lost: the next server may be another.
    pub(crate) fn connections(&self) -> u64 {
        2 * self.connections.load(Ordering::Acquire) + u64::from(self.live().is_some())
    }

    /// Returns the connection that all calls share, if there is one.
    pub(crate) fn live(&self) -> Option<Connection> {
        match &*locked(&self.state) {
            Some(State::Live(live)) if !live.is_closed() => Some(live.connection.clone()),
            _ => None,
        }
    }

    /// Connects, unless that is under way. Goes on in the background when no call waits for it any longer, and then calls
    /// `done`.
    pub(crate) fn connect(
        self: &Arc<Self>,
        done: impl FnOnce(&RedisResult<Connection>) + Send + 'static,
    ) -> Outcome {
        let mut state = locked(&self.state);
        match &*state {
            Some(State::Connecting(outcome)) => return outcome.clone(),
            Some(State::Live(live)) if !live.is_closed() => {
                return watch::channel(Some(Ok(live.connection.clone()))).1;
            }
            _ => {}
        }
        let (sender, outcome) = watch::channel(None);
        *state = Some(State::Connecting(outcome.clone()));
        let link = self.clone();
        spawn(async move {
            let result = link.make().await;
            link.connections.fetch_add(u64::from(result.is_ok()), Ordering::AcqRel);
            let connection = result.as_ref().map(|live| live.connection.clone()).map_err(RedisError::clone);
            *locked(&link.state) = result.ok().map(State::Live);
            done(&connection);
            let _ = sender.send(Some(connection));
        });
        outcome
    }

    async fn make(&self) -> RedisResult<Live> {
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = is_closed.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
            // Silence is judged for all calls together.
            .set_response_timeout(None)
            // Callers in a queue would wait for each other's turns to run.
            .set_pipeline_buffer_size(MOST_IN_A_QUEUE)
            .set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection {
                    closed.store(true, Ordering::Release);
                }
                Ok::<_, redis::aio::SendError>(())
            });
        let client = match &self.target {
            Target::Server(client) => client.clone(),
            Target::MasterOf(sentinels) => sentinels.find().await?,
        };
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        // The library's own limit does not cover a server that accepts and then says nothing.
        let multiplexed = tokio::time::timeout(CONNECT_WITHIN, connecting).await.map_err(|_| timed_out())?;
        let multiplexed = multiplexed.map_err(without_password)?;
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        Ok(Live { connection: Connection { multiplexed, number }, is_closed })
    }

    /// Returns a connection that an earlier call has waited on.
    pub(crate) fn idle_waiter(&self) -> Option<Waiter> {
        let mut idle = locked(&self.idle_waiters);
        idle.retain(|waiter| !waiter.live.is_closed());
        idle.pop()
    }

    /// Connects for a call that waits. Must run in the background.
    pub(crate) async fn make_waiter(&self) -> RedisResult<Waiter> {
        let mut live = self.make().await?;
        let ask = redis::cmd("CLIENT").arg("ID").take();
        let id = tokio::time::timeout(CONNECT_WITHIN, live.connection.send(&[ask]))
            .await
            .map_err(|_| timed_out())??;
        Ok(Waiter { live, id: id.first().and_then(|id| i64::from_redis_value_ref(id).ok()) })
    }

    pub(crate) async fn turn_to_connect(&self) -> Option<SemaphorePermit<'_>> {
        self.connecting.acquire().await.ok()
    }

    pub(crate) fn keep(&self, waiter: Waiter) {
        let mut idle = locked(&self.idle_waiters);
        idle.push(waiter);
        let too_many = idle.len().saturating_sub(MOST_IDLE_WAITERS);
        idle.drain(..too_many);
    }

    /// The server has gone, or another is the master now.
    pub(crate) fn forget_waiters(&self) {
        locked(&self.idle_waiters).clear();
    }

    /// Connects again for the next call.
    pub(crate) fn forget(&self, gone: u64) {
        let mut state = locked(&self.state);
        if matches!(&*state, Some(State::Live(live)) if live.connection.number == gone) {
            *state = None;
        }
    }
}

impl Live {
    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

impl Connection {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// An error of the server comes as a value.
    pub(crate) async fn send_one(&mut self, command: &Cmd) -> RedisResult<Value> {
        self.multiplexed.send_packed_command(command).await
    }

    /// Sends them in one write. Errors of the server come as values.
    pub(crate) async fn send(&mut self, commands: &[Cmd]) -> RedisResult<Vec<Value>> {
        if let [command] = commands {
            return self.send_one(command).await.map(|value| vec![value]);
        }
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        self.multiplexed.send_packed_commands(&pipeline, 0, commands.len()).await
    }
}

/// The same with RESP3, by which a closed connection is noticed at once.
pub(crate) fn settings(url: impl IntoConnectionInfo) -> RedisResult<ConnectionInfo> {
    let info = url.into_connection_info()?;
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp_settings()))
}

fn tcp_settings() -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    // A server that vanished without a word must not hold the connection for the quarter of an hour that TCP would
    // go on trying.
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(2));
    settings
}

pub(crate) fn broken() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()
}
