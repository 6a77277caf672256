//! Commands that were sent, and their replies on the way.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};

use crate::transport::address::timed_out;
use crate::transport::background::{spawn, Pending};
#[cfg(feature = "fake")]
use crate::transport::clock::Clock;
use crate::transport::connections::{Connection, Waiter};
use crate::transport::node::Node;
use crate::transport::Transport;
use crate::values::error::{Failure, Fault, Why};
use crate::values::few::Few;
use crate::values::request::{By, Request};

pub(crate) type Replies = Pending<RedisResult<Few<Value>>>;

/// A request, and how it is sent.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) request: &'a Request,
    pub(super) by: By<'a>,
    /// Also while the server is thought to be away.
    pub(super) always: bool,
    /// Says that it may be sent again if the connection breaks.
    pub(super) may_repeat: bool,
    /// To a node that has the slot only for calls that say so.
    pub(super) is_asking: bool,
    /// Until when it may wait in the server, on a connection that no other call uses meanwhile.
    pub(super) until: Option<Duration>,
}

impl<'a> Call<'a> {
    pub(super) fn new(request: &'a Request) -> Self {
        Self { request, by: By::Module, always: false, may_repeat: true, is_asking: false, until: None }
    }
}

/// The replies to commands. If the caller leaves before they are here, the background reads them, and gives back what they
/// grant.
pub(super) struct Reply<'a> {
    pub(super) transport: &'a Transport,
    pub(super) node: &'a Arc<Node>,
    /// None if no grant can be in the replies.
    pub(super) call: Option<Call<'a>>,
    sent_at: Duration,
    /// The number of the connection.
    connection: u64,
    pub(super) waiter: Option<Box<Waiter>>,
    pub(super) pending: Option<Replies>,
}

impl<'a> Reply<'a> {
    pub(super) fn new(
        transport: &'a Transport,
        node: &'a Arc<Node>,
        call: Option<Call<'a>>,
        sent_at: Duration,
        connection: u64,
        pending: Replies,
    ) -> Self {
        Self { transport, node, call, sent_at, connection, waiter: None, pending: Some(pending) }
    }

    pub(super) async fn heard(mut self) -> Result<Few<Value>, Failure> {
        let (transport, node) = (self.transport, self.node);
        let Some(pending) = &mut self.pending else { return Err(Failure::NotSent) };
        let silence = &transport.0.silence;
        let heard = match self.call.and_then(|call| call.until) {
            None => silence.listen(self.sent_at, node, pending).await,
            Some(until) => {
                Box::pin(silence.listen_long(until, node, pending, || transport.look_at(node))).await
            }
        };
        let result = match heard {
            Ok(result) => result.and_then(without_error),
            Err(why) => {
                if node.is_away() {
                    // Not the first time: what stands between here and there may have forgotten the connection.
                    node.connections.forget(self.connection);
                }
                return Err(Failure::Unanswered(why, self.late_grant()));
            }
        };
        self.pending = None;
        node.hear(transport.now());
        let is_broken =
            matches!(&result, Err(error) if error.code().is_none() && error.is_unrecoverable_error());
        let is_of_replica = matches!(&result, Err(error) if error.code() == Some("READONLY"));
        if is_broken || is_of_replica {
            node.connections.forget(self.connection);
        } else if let Some(waiter) = self.waiter.take() {
            node.connections.keep(*waiter);
        }
        result.map_err(|error| {
            if is_broken {
                Failure::Unanswered(Why::Broken(error), self.late_grant())
            } else {
                Failure::Replied(error)
            }
        })
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        if self.pending.is_some() {
            let is_quiet = self.waiter.is_none() && self.node.heard() < self.sent_at;
            drop(self.late_grant());
            if is_quiet {
                // No caller would find out that the server is silent.
                self.transport.look_at(self.node);
            }
        }
    }
}

impl Transport {
    /// Sends commands, and waits for their replies.
    pub(super) async fn attempt(
        &self,
        node: &Arc<Node>,
        mut commands: Vec<Cmd>,
        call: Option<Call<'_>>,
    ) -> Result<Few<Value>, Failure> {
        #[cfg(feature = "fake")]
        if let Clock::Fake(fake) = self.clock() {
            return fake.run(&commands);
        }
        let waits = call.is_some_and(|call| call.until.is_some());
        let waiter = if waits { Some(Box::new(self.waiter(node).await?)) } else { None };
        let mut connection = match &waiter {
            Some(waiter) => waiter.connection.clone(),
            None => self.connection(node).await?,
        };
        let is_asking = call.is_some_and(|call| call.is_asking);
        if is_asking {
            let asking = redis::cmd("ASKING");
            commands = commands.into_iter().flat_map(|command| [asking.clone(), command]).collect();
        }
        let (sent_at, number) = (self.now(), connection.number);
        let pending: Replies = Box::pin(async move {
            let mut replies = connection.send(&commands).await?;
            if is_asking {
                replies = replies.into_iter().skip(1).step_by(2).collect();
            }
            Ok(Few::Several(replies))
        });
        let mut reply = Reply::new(self, node, call, sent_at, number, pending);
        reply.waiter = waiter;
        reply.heard().await
    }

    /// The connection that all calls share.
    async fn connection(&self, node: &Arc<Node>) -> Result<Connection, Failure> {
        if let Some(connection) = node.connections.live() {
            return Ok(connection);
        }
        let (transport, of) = (self.clone(), node.clone());
        // The call that began to connect may wait no longer.
        let done = move |result: &RedisResult<Connection>| match result {
            Ok(_) => {
                of.hear(transport.now());
                of.answers();
                of.look_for_module();
            }
            Err(error) => transport.note(&of, &Failure::NotConnected(error.clone())),
        };
        let connecting = pin!(node.connections.connect(done));
        let connected = self.0.silence.listen(self.now(), node, connecting).await;
        connected.map_err(|_| Failure::NotSent)?.map_err(Failure::NotConnected)
    }

    /// A connection for a call that waits, which has more time to connect than the timeout.
    async fn waiter(&self, node: &Arc<Node>) -> Result<Waiter, Failure> {
        if let Some(waiter) = node.connections.idle_waiter() {
            return Ok(waiter);
        }
        let _turn = node.connections.connecting.acquire().await;
        if node.is_away() {
            return Err(Failure::NotSent);
        }
        let connections = node.connections.clone();
        let making = spawn(async move { connections.make_waiter().await });
        let waiter = making.await.unwrap_or_else(|_| Err(timed_out())).map_err(Failure::NotConnected)?;
        node.hear(self.now());
        Ok(waiter)
    }

    /// Why the node does not answer, if it does not.
    pub(super) async fn ping(&self, node: &Arc<Node>) -> Option<Failure> {
        match self.attempt(node, vec![redis::cmd("PING")], None).await {
            Err(failure) if failure.fault() == Fault::Away => Some(failure),
            _ => {
                node.answers();
                None
            }
        }
    }

    /// Finds out in the background whether the node is there.
    fn look_at(&self, node: &Arc<Node>) {
        let (transport, node) = (self.clone(), node.clone());
        spawn(async move {
            if let Some(failure) = transport.ping(&node).await {
                transport.note(&node, &failure);
            }
        });
    }
}

/// An error of the server comes as a value. Inside of arrays the module replies none.
fn without_error(replies: Few<Value>) -> RedisResult<Few<Value>> {
    match replies.iter().find(|reply| matches!(reply, Value::ServerError(_))) {
        Some(error) => Err(error.clone().extract_error().err().unwrap_or_else(timed_out)),
        None => Ok(replies),
    }
}
