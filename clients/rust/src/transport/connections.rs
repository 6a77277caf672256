//! Connections to one server: one that all calls share, and those of calls that wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, PushInfo, PushKind, RedisResult, Value,
};
use tokio::sync::{watch, Semaphore};

use crate::transport::address::{timed_out, without_password};
use crate::transport::background::{spawn, timeout};
use crate::transport::locked::locked;
use crate::transport::sentinel::Sentinels;

/// A try to connect that takes longer has failed.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
const MOST_IN_A_QUEUE: usize = 100_000;
/// More connections than these are closed when their calls no longer wait.
const MOST_IDLE_WAITERS: usize = 64;
const MOST_CONNECTING: usize = 32;

pub(crate) struct Connections {
    target: Target,
    shared: Mutex<Shared>,
    next_number: AtomicU64,
    /// Those of calls that have waited, the last used at the end.
    idle_waiters: Mutex<Vec<Waiter>>,
    /// Bounds how many connect at a time: all at once would take longer than each may.
    pub(crate) connecting: Semaphore,
}

/// What is connected to.
pub(crate) enum Target {
    Server(Client),
    /// Asked each time: the master may be another.
    MasterOf(Sentinels),
}

/// The connection that all calls share.
#[derive(Default)]
enum Shared {
    #[default]
    None,
    Connecting(Outcome),
    Live(Connection),
}

/// None while connecting.
type Outcome = watch::Receiver<Option<RedisResult<Connection>>>;

/// A connection for one call at a time, which may wait in the server.
pub(crate) struct Waiter {
    pub(crate) connection: Connection,
    /// The server's id of it, if this user may know it.
    pub(crate) id: Option<i64>,
}

/// Sends commands. Each call clones it, so it holds no more than that needs: threads share the counts.
#[derive(Clone)]
pub(crate) struct Connection {
    multiplexed: MultiplexedConnection,
    /// No other connection to the server has it.
    pub(crate) number: u64,
}

impl Connections {
    pub(crate) fn new(target: Target) -> Self {
        Self {
            target,
            shared: Mutex::default(),
            next_number: AtomicU64::new(1),
            idle_waiters: Mutex::default(),
            connecting: Semaphore::new(MOST_CONNECTING),
        }
    }

    /// Returns the connection that all calls share, if there is one.
    pub(crate) fn live(&self) -> Option<Connection> {
        match &*locked(&self.shared) {
            Shared::Live(connection) => Some(connection.clone()),
            _ => None,
        }
    }

    /// Connects, unless that is under way. Goes on in the background when no call waits for it any longer, and then calls
    /// `done`.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        done: impl FnOnce(&RedisResult<Connection>) + Send + 'static,
    ) -> RedisResult<Connection> {
        let mut outcome = match &mut *locked(&self.shared) {
            Shared::Live(connection) => return Ok(connection.clone()),
            Shared::Connecting(outcome) => outcome.clone(),
            shared => {
                let (sender, outcome) = watch::channel(None);
                *shared = Shared::Connecting(outcome.clone());
                let connections = self.clone();
                spawn(async move {
                    let result = connections.make().await;
                    *locked(&connections.shared) = result.clone().map_or(Shared::None, Shared::Live);
                    done(&result);
                    let _ = sender.send(Some(result));
                });
                outcome
            }
        };
        let outcome = outcome.wait_for(Option::is_some).await;
        outcome.ok().and_then(|outcome| outcome.clone()).unwrap_or_else(|| Err(timed_out()))
    }

    async fn make(self: &Arc<Self>) -> RedisResult<Connection> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let connections = Arc::downgrade(self);
        let config = AsyncConnectionConfig::new()
            // Silence is judged for all calls together.
            .set_response_timeout(None)
            // Callers in a queue would wait for each other's turns to run.
            .set_pipeline_buffer_size(MOST_IN_A_QUEUE)
            .set_push_sender(move |push: PushInfo| {
                if let (PushKind::Disconnection, Some(connections)) = (push.kind, connections.upgrade()) {
                    connections.forget(number);
                }
                Ok::<_, redis::aio::SendError>(())
            });
        let client = match &self.target {
            Target::Server(client) => client.clone(),
            Target::MasterOf(sentinels) => sentinels.find().await?,
        };
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let multiplexed = timeout(CONNECT_WITHIN, connecting).await.unwrap_or_else(|| Err(timed_out()));
        Ok(Connection { multiplexed: multiplexed.map_err(without_password)?, number })
    }

    /// Returns a connection that an earlier call has waited on.
    pub(crate) fn idle_waiter(&self) -> Option<Waiter> {
        locked(&self.idle_waiters).pop()
    }

    /// Connects for a call that waits. Must run in the background.
    pub(crate) async fn make_waiter(self: &Arc<Self>) -> RedisResult<Waiter> {
        let mut connection = self.make().await?;
        let ask = redis::cmd("CLIENT").arg("ID").take();
        let asking = timeout(CONNECT_WITHIN, connection.send_one(&ask));
        let id = asking.await.unwrap_or_else(|| Err(timed_out()))?;
        Ok(Waiter { connection, id: i64::from_redis_value(id).ok() })
    }

    pub(crate) fn keep(&self, waiter: Waiter) {
        let mut idle = locked(&self.idle_waiters);
        idle.push(waiter);
        let too_many = idle.len().saturating_sub(MOST_IDLE_WAITERS);
        idle.drain(..too_many);
    }

    /// Connects again for the next call. The server has gone, or another is the master now: calls that wait leave it too.
    pub(crate) fn forget(&self, gone: u64) {
        locked(&self.idle_waiters).clear();
        let mut shared = locked(&self.shared);
        if matches!(&*shared, Shared::Live(connection) if connection.number == gone) {
            *shared = Shared::None;
        }
    }
}

impl Connection {
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
