//! Commands that were sent, and their replies on the way.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, Value};

use crate::transport::address::timed_out;
use crate::transport::background::{spawn, Pending};
use crate::transport::connections::{Connection, Waiter};
use crate::transport::late::LateGrant;
use crate::transport::node::Node;
use crate::transport::Transport;
use crate::values::error::{Failure, Fault, Why};
use crate::values::few::Few;
use crate::values::request::Request;

pub(crate) type Replies = Pending<RedisResult<Few<Value>>>;

/// How commands are sent to a node.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sending<'a> {
    /// The caller's request. None if no grant can be in the replies.
    pub(crate) request: Option<&'a Request>,
    pub(crate) is_probe: bool,
    /// To a node that has the slot only for calls that say so.
    pub(crate) asking: bool,
    /// How long the server may keep them, on a connection that no other call uses meanwhile.
    pub(crate) kept: Option<Duration>,
}

/// The replies to commands. If the caller leaves before they are here, the background reads them, and gives back what they
/// grant.
pub(crate) struct Reply<'a> {
    transport: &'a Transport,
    node: &'a Arc<Node>,
    sending: Sending<'a>,
    sent_at: Duration,
    /// The number of the connection.
    connection: u64,
    waiter: Option<Box<Waiter>>,
    pending: Option<Replies>,
}

impl<'a> Reply<'a> {
    pub(super) fn new(
        transport: &'a Transport,
        node: &'a Arc<Node>,
        sending: Sending<'a>,
        sent_at: Duration,
        connection: u64,
        pending: Replies,
    ) -> Self {
        Self { transport, node, sending, sent_at, connection, waiter: None, pending: Some(pending) }
    }

    pub(super) async fn heard(mut self) -> Result<Few<Value>, Failure> {
        let (transport, node) = (self.transport, self.node);
        let Some(pending) = &mut self.pending else { return Err(Failure::Connecting) };
        let silence = &transport.0.silence;
        let heard = match self.sending.kept {
            None => silence.listen(self.sent_at, node, pending).await,
            Some(kept) => {
                Box::pin(silence.listen_long(kept, node, pending, || transport.look_at(node))).await
            }
        };
        if heard.is_ok() {
            self.pending = None;
        }
        let error = match heard {
            Ok(Ok(replies)) => match first_error(&replies) {
                None => {
                    self.keep_connection();
                    return Ok(replies);
                }
                Some(error) => error,
            },
            Ok(Err(error)) => error,
            Err(why) => {
                if self.sending.is_probe && matches!(why, Why::Silent(_)) {
                    // A second time: what stands between here and there may have forgotten the connection.
                    node.connections.forget(self.connection);
                }
                return Err(Failure::Unanswered(why, self.late_grant()));
            }
        };
        let is_broken = error.code().is_none() && error.is_unrecoverable_error();
        if is_broken || error.code() == Some("READONLY") {
            // It has ended, or leads to a replica.
            node.connections.forget(self.connection);
        } else {
            self.keep_connection();
        }
        Err(if is_broken {
            Failure::Unanswered(Why::Broken(error), self.late_grant())
        } else {
            Failure::Replied(error)
        })
    }

    fn keep_connection(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            self.node.connections.keep(*waiter);
        }
    }

    fn late_grant(&mut self) -> LateGrant {
        let (pending, waiter) = (self.pending.take(), self.waiter.take());
        let Some(request) = self.sending.request else { return LateGrant::none() };
        LateGrant::new(self.transport, self.node, request, pending, waiter)
    }
}

impl Drop for Reply<'_> {
    fn drop(&mut self) {
        let (Some(request), true) = (self.sending.request, self.pending.is_some()) else { return };
        if self.waiter.is_some() {
            // Such a call says nothing about the server.
            return drop(self.late_grant());
        }
        let Some(pending) = self.pending.take() else { return };
        let (transport, node, request) = (self.transport.clone(), self.node.clone(), request.clone());
        let (is_probe, sent_at, connection) = (self.sending.is_probe, self.sent_at, self.connection);
        spawn(async move {
            let sending = Sending { request: Some(&request), is_probe, ..Sending::default() };
            let (transport, node) = (&transport, &node);
            let reply = Reply::new(transport, node, sending, sent_at, connection, pending);
            // Whatever else it finds out, the next call does.
            if let result @ (Ok(_) | Err(Failure::Unanswered(Why::Silent(_), _))) = reply.heard().await {
                transport.undo(&request, transport.conclude(node.clone(), result, &request));
            }
        });
    }
}

impl Transport {
    /// Sends commands, and waits for their replies.
    pub(super) async fn attempt(
        &self,
        node: &Arc<Node>,
        mut commands: Vec<Cmd>,
        sending: Sending<'_>,
    ) -> Result<Few<Value>, Failure> {
        #[cfg(feature = "fake")]
        if let Some(fake) = node.connections.fake() {
            return fake.run(&commands);
        }
        let waiter = if sending.kept.is_some() { Some(Box::new(self.waiter(node).await?)) } else { None };
        let mut connection = match &waiter {
            Some(waiter) => waiter.live.connection.clone(),
            None => self.connection(node).await?,
        };
        if sending.asking {
            let asking = redis::cmd("ASKING");
            commands = commands.into_iter().flat_map(|command| [asking.clone(), command]).collect();
        }
        let (sent_at, number) = (self.clock().now(), connection.number);
        let pending: Replies = Box::pin(async move {
            let mut replies = connection.send(&commands).await?;
            if sending.asking {
                replies = replies.into_iter().skip(1).step_by(2).collect();
            }
            Ok(Few::Several(replies))
        });
        let mut reply = Reply::new(self, node, sending, sent_at, number, pending);
        reply.waiter = waiter;
        reply.heard().await
    }

    /// The connection that all calls share.
    async fn connection(&self, node: &Arc<Node>) -> Result<Connection, Failure> {
        if let Some(connection) = node.connections.live() {
            return Ok(connection);
        }
        let (transport, connecting) = (self.clone(), node.clone());
        // The call that began to connect may wait no longer.
        let done = move |result: &RedisResult<Connection>| match result {
            Ok(_) => connecting.hear(transport.clock().now()),
            Err(error) => {
                let failure = Failure::NotConnected(error.clone());
                if failure.fault() == Fault::Away {
                    transport.away(&connecting, &failure);
                }
            }
        };
        let connecting = node.connections.connect(done);
        self.0.silence.patiently(connecting).await.ok_or(Failure::Connecting)?.map_err(Failure::NotConnected)
    }

    /// A connection for a call that waits, which has more time to connect than the timeout.
    async fn waiter(&self, node: &Arc<Node>) -> Result<Waiter, Failure> {
        if let Some(waiter) = node.connections.idle_waiter() {
            return Ok(waiter);
        }
        let _turn = node.connections.turn_to_connect().await;
        if node.is_away() {
            return Err(Failure::Connecting);
        }
        let connections = node.connections.clone();
        let making = spawn(async move { connections.make_waiter().await });
        let waiter = making.await.unwrap_or_else(|_| Err(timed_out())).map_err(Failure::NotConnected)?;
        node.hear(self.clock().now());
        Ok(waiter)
    }

    /// Why the node does not answer, if it does not.
    pub(super) async fn ping(&self, node: &Arc<Node>) -> Option<Failure> {
        let sending = Sending { is_probe: true, ..Sending::default() };
        match self.attempt(node, vec![redis::cmd("PING")], sending).await {
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
                transport.away(&node, &failure);
            }
        });
    }
}

fn first_error(replies: &[Value]) -> Option<RedisError> {
    // Looking for errors inside an array takes long, and the module replies none there.
    replies.iter().find(|reply| matches!(reply, Value::ServerError(_)))?.clone().extract_error().err()
}
