//! Connections to one server: one that all calls share, and those of calls that wait.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, Pipeline, PushInfo, PushKind, RedisResult, Value,
};
use tokio::sync::{OnceCell, Semaphore};

use crate::transport::address::without_password;
use crate::transport::locked::locked;
use crate::transport::sentinel::Sentinels;

/// A try to connect that takes longer has failed, and one to learn the client's id.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
const MOST_IN_A_QUEUE: usize = 100_000;
/// More connections than these are closed when their calls no longer wait.
const MOST_IDLE_WAITERS: usize = 64;
const MOST_CONNECTING: usize = 32;

pub(crate) struct Connections {
    target: Target,
    /// The connection that all calls share, once one of them has made it.
    pub(crate) shared: Mutex<Arc<OnceCell<RedisResult<Connection>>>>,
    next_number: AtomicU64,
    /// Those of calls that have waited, the last used at the end.
    idle_waiters: Mutex<Vec<Connection>>,
    /// Bounds how many connect at a time: all at once would take longer than each may.
    pub(crate) connecting: Semaphore,
}

/// What is connected to.
pub(crate) enum Target {
    Server(Client),
    /// Asked each time: the master may be another.
    MasterOf(Sentinels),
}

/// Sends commands. Each call clones it, so it holds no more than that needs: threads share the counts.
#[derive(Clone)]
pub(crate) struct Connection {
    multiplexed: MultiplexedConnection,
    /// No other connection to the server has it.
    pub(crate) number: u64,
    /// The server's id of it, if it is for calls that wait, one at a time, and this user may know it.
    pub(crate) client_id: Option<i64>,
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
        locked(&self.shared).get()?.as_ref().ok().cloned()
    }

    /// Connects. Must run in the background.
    pub(crate) async fn make(self: &Arc<Self>) -> RedisResult<Connection> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let connections = Arc::downgrade(self);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_WITHIN))
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
        Ok(Connection { multiplexed: connecting.await.map_err(without_password)?, number, client_id: None })
    }

    /// Returns a connection that an earlier call has waited on.
    pub(crate) fn idle_waiter(&self) -> Option<Connection> {
        locked(&self.idle_waiters).pop()
    }

    /// Connects for calls that wait. Must run in the background.
    pub(crate) async fn make_waiter(self: &Arc<Self>) -> RedisResult<Connection> {
        let mut connection = self.make().await?;
        let mut asking = connection.multiplexed.clone();
        asking.set_response_timeout(CONNECT_WITHIN);
        let id = asking.send_packed_command(redis::cmd("CLIENT").arg("ID")).await?;
        connection.client_id = i64::from_redis_value(id).ok();
        Ok(connection)
    }

    pub(crate) fn keep(&self, waiter: Connection) {
        let mut idle = locked(&self.idle_waiters);
        idle.push(waiter);
        let too_many = idle.len().saturating_sub(MOST_IDLE_WAITERS);
        idle.drain(..too_many);
    }

    /// Connects again for the next call. The server has gone, or another is the master now: calls that wait leave it too.
    pub(crate) fn forget(&self, gone: u64) {
        locked(&self.idle_waiters).clear();
        let mut shared = locked(&self.shared);
        if matches!(shared.get(), Some(Ok(connection)) if connection.number == gone) {
            *shared = Arc::default();
        }
    }
}

impl Connection {
    /// Sends them in one write. Errors of the server come as values.
    pub(crate) async fn send(&mut self, commands: &[Cmd]) -> RedisResult<Vec<Value>> {
        if let [command] = commands {
            return Ok(vec![self.multiplexed.send_packed_command(command).await?]);
        }
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            pipeline.add_command(command.clone());
        }
        self.multiplexed.send_packed_commands(&pipeline, 0, commands.len()).await
    }
}
