//! Commands that were sent, and their replies on the way.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};

use crate::transport::address::timed_out;
use crate::transport::background::{spawn, Pending};
#[cfg(feature = "fake")]
use crate::transport::clock::Clock;
use crate::transport::connections::Connection;
use crate::transport::locked::locked;
use crate::transport::node::Node;
use crate::transport::Transport;
use crate::values::error::{Failure, Fault, Why};
use crate::values::request::{By, Request};

pub(crate) type Replies = Pending<RedisResult<Vec<Value>>>;

/// A request, and how it is sent.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) request: &'a Request,
    pub(super) by: By<'a>,
    /// Also while the server is thought to be away.
    pub(super) always: bool,
    /// To a node that has the slot only for calls that say so.
    pub(super) is_asking: bool,
    /// Until when it may wait in the server, on a connection that no other call uses meanwhile.
    pub(super) until: Option<Duration>,
}

impl<'a> Call<'a> {
    pub(super) fn new(request: &'a Request) -> Self {
        Self { request, by: By::Module, always: false, is_asking: false, until: None }
    }
}

/// The replies to commands. If the caller leaves before they are here, the background reads them, and gives back what they
/// grant.
pub(super) struct Reply<'a> {
    pub(super) transport: &'a Transport,
    pub(super) node: &'a Arc<Node>,
    sent_at: Duration,
    /// None if no grant can be in the replies.
    pub(super) call: Option<Call<'a>>,
    /// The number of the connection, and the server's id of it.
    number: u64,
    pub(super) client_id: Option<i64>,
    pub(super) pending: Option<Replies>,
}

impl Reply<'_> {
    pub(super) fn waits_until(&self) -> Option<Duration> {
        self.call?.until
    }

    async fn heard(mut self) -> Result<Vec<Value>, Failure> {
        let (transport, node, until) = (self.transport, self.node, self.waits_until());
        let Some(pending) = &mut self.pending else { return Err(Failure::NotSent) };
        let heard = match until {
            None => transport.listen(self.sent_at, node, pending).await,
            Some(until) => Box::pin(transport.listen_long(until, node, pending)).await,
        };
        if heard.is_ok() {
            self.pending = None;
            node.hear(transport.now());
        }
        match heard.map(|replies| replies.and_then(without_error)) {
            Ok(Ok(replies)) => Ok(replies),
            Ok(Err(error)) if error.code().is_none() && error.is_unrecoverable_error() => {
                node.connections.forget(self.number);
                Err(Failure::Unanswered(Why::Broken(error), self.late_grant()))
            }
            Ok(Err(error)) => {
                if error.code() == Some("READONLY") {
                    node.connections.forget(self.number);
                }
                Err(Failure::Replied(error))
            }
            Err(why) => {
                if node.is_away() {
                    // Not the first time: what stands between here and there may have forgotten the connection.
                    node.connections.forget(self.number);
                }
                Err(Failure::Unanswered(why, self.late_grant()))
            }
        }
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        if self.pending.is_some() {
            let is_quiet = self.waits_until().is_none() && self.node.heard() < self.sent_at;
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
    ) -> Result<Vec<Value>, Failure> {
        #[cfg(feature = "fake")]
        if let Clock::Fake(fake) = self.clock() {
            return fake.run(&commands);
        }
        let waits = call.is_some_and(|call| call.until.is_some());
        let mut connection = if waits { self.waiter(node).await? } else { self.connection(node).await? };
        let is_asking = call.is_some_and(|call| call.is_asking);
        if is_asking {
            let asking = redis::cmd("ASKING");
            commands = commands.into_iter().flat_map(|command| [asking.clone(), command]).collect();
        }
        let (sent_at, number, client_id) = (self.now(), connection.number, connection.client_id);
        let kept_by = waits.then(|| node.connections.clone());
        let pending: Replies = Box::pin(async move {
            let mut replies = connection.send(&commands).await?;
            if is_asking {
                replies = replies.into_iter().skip(1).step_by(2).collect();
            }
            if let Some(connections) = kept_by {
                connections.keep(connection);
            }
            Ok(replies)
        });
        let pending = Some(pending);
        Reply { transport: self, node, sent_at, call, number, client_id, pending }.heard().await
    }

    /// The connection that all calls share.
    async fn connection(&self, node: &Arc<Node>) -> Result<Connection, Failure> {
        if let Some(connection) = node.connections.live() {
            return Ok(connection);
        }
        // The call that began to connect may wait no longer.
        let connecting = spawn(self.clone().connect(node.clone()));
        match self.listen(self.now(), node, connecting).await {
            Ok(Ok(connected)) => connected.map_err(Failure::NotConnected),
            _ => Err(Failure::NotSent),
        }
    }

    /// Connects, unless that is under way.
    async fn connect(self, node: Arc<Node>) -> RedisResult<Connection> {
        let shared = locked(&node.connections.shared).clone();
        let making = async || {
            let made = node.connections.make().await;
            if let Err(error) = &made {
                *locked(&node.connections.shared) = Arc::default();
                self.note(&node, &Failure::NotConnected(error.clone()));
            } else {
                node.hear(self.now());
                node.answers();
                node.look_for_module();
            }
            made
        };
        shared.get_or_init(making).await.clone()
    }

    /// A connection for a call that waits, which has more time to connect than the timeout.
    async fn waiter(&self, node: &Arc<Node>) -> Result<Connection, Failure> {
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
    pub(super) fn look_at(&self, node: &Arc<Node>) {
        let (transport, node) = (self.clone(), node.clone());
        spawn(async move {
            if let Some(failure) = transport.ping(&node).await {
                transport.note(&node, &failure);
            }
        });
    }
}

/// An error of the server comes as a value. Inside of arrays the module replies none.
fn without_error(replies: Vec<Value>) -> RedisResult<Vec<Value>> {
    match replies.iter().find(|reply| matches!(reply, Value::ServerError(_))) {
        Some(error) => Err(error.clone().extract_error().err().unwrap_or_else(timed_out)),
        None => Ok(replies),
    }
}
