//! Sends commands, and gets the connections for that.

use std::mem::take;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection as Connection;
use redis::{Cmd, Pipeline, RedisResult, Value};
use scopeguard::{guard, ScopeGuard};
use tokio::runtime::Handle;

use crate::transport::address::timed_out;
use crate::transport::background::{connecting, runs_tasks, timeout};
#[cfg(feature = "fake")]
use crate::transport::clock::Clock;
use crate::transport::link::Link;
use crate::transport::locked::locked;
use crate::transport::node::{is_due, Node};
use crate::transport::Transport;
use crate::values::rules::CONNECT_WITHIN;
use crate::values::{Failure, Fault};

/// A timer that fires so much later shows that this process is busy.
pub(super) const LATE: Duration = Duration::from_millis(5);

/// Calls by runtimes before one of them gets a connection of its own.
const CALLS_OF_A_RUNTIME: u32 = 100;

/// How a command is sent.
#[derive(Clone, Copy, Default)]
pub(super) struct How {
    /// To a node that has the slot only for calls that say so.
    pub(super) is_asking: bool,
    /// Until when the server may keep the call, which then has a connection of its own.
    pub(super) waits_until: Option<Duration>,
    /// Lets the caller's runtime write and read.
    pub(super) may_be_near: bool,
    /// Lets the call ask another node instead, if connecting takes longer than a reply may.
    pub(super) may_leave: bool,
}

impl Transport {
    /// Sends a command, and waits for its reply.
    pub(super) async fn attempt(&self, node: &Arc<Node>, command: &Cmd, how: How) -> Result<Value, Failure> {
        #[cfg(feature = "fake")]
        if let Clock::Fake(fake) = self.clock() {
            return fake.run(command);
        }
        let How { is_asking, waits_until, may_be_near, may_leave } = how;
        let link = node.link();
        let near = if may_be_near { self.near(node, &link).await } else { None };
        let is_near = near.is_some();
        let mut connection = match (near, waits_until) {
            (Some(near), _) => near,
            (_, None) => self.connection(node, &link, may_leave).await?,
            (_, Some(until)) => self.waiter(node, &link, until).await?,
        };
        // No other call may find out that the server, or this connection, is silent.
        let unheard = guard((), |()| {
            self.look_later(node);
            if is_near {
                self.look_at_near_later(node, &link);
            }
        });
        let mut pending = Box::pin(send(&mut connection, command, is_asking));
        let heard = match waits_until {
            None => self.listen(node, &mut pending).await,
            Some(at) => self.listen_long(node, &link, at, &mut pending).await,
        };
        let heard = match heard {
            // A look would be logged, and no logger can run a runtime within this one.
            Err(_)
                if is_near && !node.is_away() && !self.ping(node).await.is_err_and(|why| why.is_away()) =>
            {
                // The server is there. If it was only slow, the reply has come too.
                let reply = timeout(LATE, &mut pending).await;
                if reply.is_none() {
                    Box::pin(self.leave_near(node, &link, Handle::try_current().ok())).await;
                }
                reply.ok_or_else(|| Failure::Broken(timed_out()))
            }
            Err(why) => {
                // A box between here and there may have forgotten the connection.
                node.forget(&link);
                Err(why)
            }
            reply => reply,
        };
        ScopeGuard::into_inner(unheard);
        let reply = heard?.and_then(without_error);
        drop(pending);
        match &reply {
            Err(error) if error.code().is_none() && error.is_unrecoverable_error() => {
                if waits_until.is_none() {
                    node.forget(&link);
                }
                return Err(Failure::Broken(error.clone()));
            }
            // The endpoint may have moved. As long as it has not, a new connection leads to the same replica.
            Err(error)
                if error.code() == Some("READONLY")
                    && is_due(&node.next_move_us, self.now(), self.options.retry_every) =>
            {
                node.forget(&link);
            }
            _ if waits_until.is_some() => link.keep(connection),
            _ => {}
        }
        node.hear(self.now());
        reply.map_err(Failure::Replied)
    }

    /// Returns the connection that the caller's runtime carries. The runtime that calls after the first hundred gets it.
    async fn near(&self, node: &Arc<Node>, link: &Arc<Link>) -> Option<Connection> {
        // A runtime without I/O panics when it connects.
        let may_be = cfg!(panic = "unwind") && !node.is_far.load(Ordering::Relaxed);
        let runtime = Handle::try_current().ok().filter(|_| may_be)?;
        if link.near.get().is_none() && link.calls.fetch_add(1, Ordering::Relaxed) == CALLS_OF_A_RUNTIME {
            let (node, link, id, within) = (node.clone(), link.clone(), runtime.id(), self.connect_within());
            let connecting = runtime.spawn(async move {
                if let Ok(connection) = node.connect(link.clone(), true, within).await {
                    let _ = link.near.set((id, connection));
                }
            });
            if !runs_tasks() {
                // If it takes longer, the next calls go on with it.
                timeout(self.options.timeout, connecting).await;
            }
        }
        link.near.get().filter(|(id, _)| *id == runtime.id()).map(|(_, connection)| connection.clone())
    }

    /// Returns the connection that all calls share.
    async fn connection(
        &self,
        node: &Arc<Node>,
        link: &Arc<Link>,
        may_leave: bool,
    ) -> Result<Connection, Failure> {
        if let Some(Ok(connection)) = link.shared.get() {
            return Ok(connection.clone());
        }
        let made = connecting(self.clone().connect(node.clone(), link.clone()));
        // A server that is away gets no more time than for a reply. If it comes later, the next call finds it connected.
        let made = match (may_leave, node.is_away()) {
            (false, false) => made.await,
            _ => match timeout(self.options.timeout, made).await {
                Some(made) => made,
                None if may_leave => return Err(Failure::SlowToConnect),
                None => Err(timed_out()),
            },
        };
        made.map_err(Failure::NotConnected)
    }

    fn connect_within(&self) -> Duration {
        CONNECT_WITHIN.max(self.options.timeout)
    }

    /// Connects, unless that is under way.
    async fn connect(self, node: Arc<Node>, link: Arc<Link>) -> RedisResult<Connection> {
        let making = || node.clone().connect(link.clone(), true, self.connect_within());
        let made = link.shared.get_or_init(making).await.clone();
        match &made {
            Ok(_) => node.connected(self.now()),
            Err(error) => {
                node.forget(&link);
                if let Some(logged) = self.note(&node, &Failure::NotConnected(error.clone())) {
                    // The caller may end the process next, and with it the thread that logs.
                    timeout(self.options.timeout, logged).await;
                }
            }
        }
        made
    }

    /// Returns a connection for a call that waits. If none can be had while others work, the server is not away. A mistake, such
    /// as a password that was changed, is an error all the same.
    async fn waiter(
        &self,
        node: &Arc<Node>,
        link: &Arc<Link>,
        until: Duration,
    ) -> Result<Connection, Failure> {
        let idle = locked(&link.waiters).pop();
        if let Some(mut idle) = idle {
            let ping = redis::cmd("PING");
            let asked = timeout(self.options.timeout, idle.send_packed_command(&ping)).await;
            if asked.is_some_and(|pong| pong.is_ok()) {
                return Ok(idle);
            }
            // A box on the way has forgotten it since it was used, and perhaps the others.
            drop(take(&mut *locked(&link.waiters)));
        }
        let (here, left) = (Arc::new(()), until.saturating_sub(self.now()));
        let caller = Arc::downgrade(&here);
        let (to, by, within) = (node.clone(), link.clone(), self.connect_within());
        // On the thread: a runtime that stops would keep its turn from others.
        let made = connecting(async move {
            let Some(_turn) = timeout(left, by.connecting.acquire()).await else { return Ok(None) };
            if to.is_away() || caller.strong_count() == 0 {
                return Ok(None);
            }
            to.connect(by.clone(), false, within).await.map(Some)
        });
        let error = match made.await {
            Ok(Some(waiter)) => return Ok(waiter),
            Ok(None) if node.is_away() => return Err(Failure::NotSent),
            Ok(None) => return Err(Failure::NoMore(timed_out())),
            Err(error) => error,
        };
        let failure = Failure::NotConnected(error.clone());
        if failure.fault() == Fault::Callers || self.look(node).await {
            return Err(failure);
        }
        Err(Failure::NoMore(error))
    }
}

/// Finds an error of the server, which comes as a value: inside of arrays the module replies none.
fn without_error(reply: Value) -> RedisResult<Value> {
    match reply {
        Value::ServerError(_) => reply.extract_error(),
        _ => Ok(reply),
    }
}

/// Sends a command. An error of the server comes as a value. Leaves out the reply to ASKING, which comes first.
async fn send(connection: &mut Connection, command: &Cmd, is_asking: bool) -> RedisResult<Value> {
    if !is_asking {
        return connection.send_packed_command(command).await;
    }
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("ASKING").add_command(command.clone());
    let replies = connection.send_packed_commands(&pipeline, 0, 2).await?;
    Ok(replies.into_iter().nth(1).unwrap_or_default())
}
