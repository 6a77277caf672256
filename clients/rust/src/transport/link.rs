//! The connections to a server, and how they are made.

use std::mem::take;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use redis::aio::{MultiplexedConnection as Connection, SendError};
use redis::{AsyncConnectionConfig, Cmd, Pipeline, PushInfo, PushKind, RedisResult, Value};
use tokio::runtime;
use tokio::sync::{OnceCell, Semaphore};

use crate::transport::address::{timed_out, without_password};
use crate::transport::background::{close_dropped, connecting, timeout};
use crate::transport::locked::locked;
use crate::transport::node::Node;

/// Commands that wait to be written. Callers in a queue would wait for each other's turns to run.
const MOST_IN_A_QUEUE: usize = 100_000;
/// Connections beyond these are closed when their calls no longer wait.
const MOST_IDLE_WAITERS: usize = 64;
/// More at once would take longer than each may.
const MOST_CONNECTING: usize = 32;

/// The connections to a server until one of them fails. Then another link takes its place.
pub(crate) struct Link {
    /// The connection that all calls share, once one of them has made it.
    pub(super) shared: OnceCell<RedisResult<Connection>>,
    /// The connection that a runtime of callers carries itself. Replies wake their callers on the spot, instead of from
    /// another thread.
    pub(super) near: OnceLock<(runtime::Id, Connection)>,
    /// How many calls by runtimes came before there was one.
    pub(super) calls: AtomicU32,
    /// Those of calls that have waited, the last used at the end.
    pub(super) waiters: Mutex<Vec<Connection>>,
    /// Bounds how many calls that wait connect at a time.
    pub(super) connecting: Semaphore,
}

impl Link {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            shared: OnceCell::new(),
            near: OnceLock::new(),
            calls: AtomicU32::new(0),
            waiters: Mutex::default(),
            connecting: Semaphore::new(MOST_CONNECTING),
        })
    }

    /// Keeps a connection for the next call that waits.
    pub(super) fn keep(&self, waiter: Connection) {
        let mut waiters = locked(&self.waiters);
        if waiters.len() < MOST_IDLE_WAITERS {
            waiters.push(waiter);
        }
    }

    /// Connects for all calls, or for one that waits, in the runtime that it runs in. What the server closes is not used again.
    pub(super) async fn connect(
        self: Arc<Self>,
        node: Arc<Node>,
        is_shared: bool,
        within: Duration,
    ) -> RedisResult<Connection> {
        let (of_node, link) = (Arc::downgrade(&node), Arc::downgrade(&self));
        let config = AsyncConnectionConfig::new()
            // Its timers would be those of the runtime. Silence is judged for all calls together.
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(MOST_IN_A_QUEUE)
            .set_push_sender(move |push: PushInfo| {
                if let (PushKind::Disconnection, Some(node), Some(link)) =
                    (push.kind, of_node.upgrade(), link.upgrade())
                {
                    if is_shared {
                        node.forget(&link);
                    } else {
                        drop(take(&mut *locked(&link.waiters)));
                    }
                }
                Ok::<_, SendError>(())
            });
        let made = async {
            let client = connecting(async move { node.client().await }).await?;
            client.get_multiplexed_async_connection_with_config(&config).await.map_err(without_password)
        };
        timeout(within, made).await.unwrap_or_else(|| Err(timed_out()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some((runtime, connection)) = self.near.take() {
            drop(connection);
            close_dropped(runtime);
        }
    }
}

/// Sends commands in one write. Errors of the server come as values. Leaves out the replies to ASKING, which come first.
pub(super) async fn send(
    connection: &mut Connection,
    commands: &[Cmd],
    is_asking: bool,
) -> RedisResult<Vec<Value>> {
    if let ([command], false) = (commands, is_asking) {
        return Ok(vec![connection.send_packed_command(command).await?]);
    }
    let mut pipeline = Pipeline::with_capacity(commands.len());
    for command in commands {
        if is_asking {
            pipeline.add_command(redis::cmd("ASKING"));
        }
        pipeline.add_command(command.clone());
    }
    let count = pipeline.len();
    let replies = connection.send_packed_commands(&pipeline, 0, count).await?;
    Ok(if is_asking { replies.into_iter().skip(1).step_by(2).collect() } else { replies })
}
