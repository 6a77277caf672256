//! The nodes of a server or a cluster: which has a key, and how one is reached.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use redis::{Cmd, RedisError, RedisResult, Value};

use crate::api::options::ServerOptions;
use crate::transport::background;
use crate::transport::clock::Clock;
use crate::transport::cluster::Cluster;
use crate::transport::link::{broken, Connection, Link, Waiter};
use crate::transport::locked::locked;
use crate::transport::node::{Node, Probe, Wire};
use crate::transport::waiting::{Heard, Waiting};
use crate::values::error::{Failure, Fault, Late, Replies};

/// A call that must happen once first asks a connection that was idle for longer.
const IDLE: Duration = Duration::from_secs(1);

/// Where a call waits, while it does: a connection, by its id on the node.
pub(crate) type Place = Mutex<Option<(Arc<Node>, i64)>>;

pub(crate) struct Nodes {
    topology: Topology,
    waiting: Waiting,
    retry_every: Duration,
}

pub(crate) enum Topology {
    Single(Arc<Node>),
    Cluster(Box<Cluster>),
}

impl Nodes {
    pub(crate) fn new(topology: Topology, clock: Clock, options: ServerOptions) -> Self {
        let waiting = Waiting { clock, timeout: options.timeout };
        Self { topology, waiting, retry_every: options.retry_every }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.waiting.clock
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.waiting.timeout
    }

    /// Runs it beside the caller.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.clock().is_real() {
            background::spawn(task);
        } else {
            // A simulated server lets no call wait.
            let _ = pin!(task).as_mut().poll(&mut Context::from_waker(Waker::noop()));
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    pub(crate) fn of_key(&self, key: &str) -> Arc<Node> {
        match &self.topology {
            Topology::Single(node) => node.clone(),
            Topology::Cluster(cluster) => cluster.node_of(key),
        }
    }

    /// The node that is no cluster's, and how it is reached.
    pub(crate) fn single(&self) -> Option<(&Arc<Node>, &Arc<Link>)> {
        match &self.topology {
            Topology::Single(node) => Some((node, node.link()?)),
            Topology::Cluster(_) => None,
        }
    }

    /// Asks where the slots of a cluster are, unless somebody did before. Whether it asked: keys may now have other nodes.
    pub(crate) async fn learn_slots(&self) -> bool {
        let Topology::Cluster(cluster) = &self.topology else { return false };
        if !cluster.are_slots_unknown() {
            return false;
        }
        let _ = self.waiting.patiently(cluster.look()).await;
        true
    }

    /// Asks in the background where the slots of a cluster are.
    pub(crate) fn look_at_slots(self: &Arc<Self>) {
        if let Topology::Cluster(_) = &self.topology {
            let nodes = self.clone();
            self.spawn(async move {
                if let Topology::Cluster(cluster) = &nodes.topology {
                    cluster.look().await;
                }
            });
        }
    }

    pub(crate) fn redirected(self: &Arc<Self>, node: &Node, error: &RedisError) -> Option<Arc<Node>> {
        let Topology::Cluster(cluster) = &self.topology else { return None };
        let other = cluster.redirected(node, error)?;
        self.look_at_slots();
        Some(other)
    }

    /// Lets a call through, or not while the node is away: see [`Node::admit`].
    pub(crate) fn admit(&self, node: &Arc<Node>, always: bool) -> Option<Probe> {
        if !node.is_away() {
            return Some(Probe::none());
        }
        node.admit(self.clock().now(), self.retry_every, always)
    }

    pub(crate) fn away(self: &Arc<Self>, node: &Node, failure: &Failure) {
        node.away(self.clock().now() + self.retry_every, failure);
        self.look_at_slots();
    }

    /// To a node that has the slot only for those who ask for it.
    pub(crate) async fn attempt_asking(
        self: &Arc<Self>,
        node: &Arc<Node>,
        commands: &[Cmd],
        is_repeatable: bool,
    ) -> Result<Vec<Value>, Failure> {
        let asking = redis::cmd("ASKING");
        let all: Vec<Cmd> = commands.iter().flat_map(|command| [asking.clone(), command.clone()]).collect();
        let own = |replies: Vec<Value>| replies.into_iter().skip(1).step_by(2).collect();
        self.attempt(node, &all, is_repeatable, false).await.map(own).map_err(|failure| {
            let late = failure.late();
            failure.with_late(late.map(|replies| Box::pin(async move { replies.await.map(own) }) as Replies))
        })
    }

    #[cfg_attr(not(feature = "fake"), allow(clippy::infallible_destructuring_match))]
    pub(crate) async fn attempt(
        self: &Arc<Self>,
        node: &Arc<Node>,
        commands: &[Cmd],
        is_repeatable: bool,
        is_probe: bool,
    ) -> Result<Vec<Value>, Failure> {
        let link = match &node.wire {
            Wire::Redis(link) => link,
            #[cfg(feature = "fake")]
            Wire::Simulated(server) => return server.run(commands),
        };
        let mut live = self.connection(node, link).await?;
        if !is_repeatable && self.clock().now().saturating_sub(node.heard()) > IDLE {
            live = self.asked_before(node, link, live).await?;
        }
        let (number, commands) = (live.number(), commands.to_vec());
        let mut replies: Replies = Box::pin(async move { live.send(&commands).await });
        let result = match self.waiting.listen(node, replies.as_mut()).await {
            Some(Heard::Reply(result)) => result,
            Some(Heard::Others) => return Err(Failure::TooOld(Late::new(Some(replies)))),
            None => {
                if is_probe {
                    // A second time: what stands between here and there may have forgotten the connection.
                    link.forget(number);
                }
                return Err(Failure::Silent(self.timeout(), Late::new(Some(replies))));
            }
        };
        let replies = result.and_then(|values| values.into_iter().map(Value::extract_error).collect());
        replies.map_err(|error| failure_of(error, node, number))
    }

    /// The reply to a command that was sent at that time over this connection.
    pub(crate) async fn listen_plainly(
        &self,
        sent_at: Duration,
        node: &Node,
        connection: u64,
        reply: impl Future<Output = RedisResult<Value>> + Unpin,
    ) -> Result<Value, Failure> {
        match self.waiting.listen_since(sent_at, node, reply).await {
            // Looking for errors inside an array takes long, and the module replies none there.
            Some(Heard::Reply(Ok(reply @ Value::Array(_)))) => Ok(reply),
            Some(Heard::Reply(reply)) => {
                reply.and_then(Value::extract_error).map_err(|error| failure_of(error, node, connection))
            }
            Some(Heard::Others) => Err(Failure::TooOld(Late::new(None))),
            None => Err(Failure::Silent(self.timeout(), Late::new(None))),
        }
    }

    /// Sends a command that the server may keep for so long, on a connection that nobody else uses meanwhile.
    pub(crate) async fn attempt_in_turn(
        self: &Arc<Self>,
        node: &Arc<Node>,
        commands: &[Cmd],
        kept: Duration,
        place: &Place,
    ) -> Result<Value, Failure> {
        let Some(link) = node.link() else { return Err(Failure::Connecting) };
        let mut waiter = match link.idle_waiter() {
            Some(waiter) => waiter,
            None => self.new_waiter(node, link).await?,
        };
        *locked(place) = waiter.id.map(|id| (node.clone(), id));
        let look = || {
            let (nodes, node) = (self.clone(), node.clone());
            self.spawn(async move {
                if let Some(failure) = nodes.ping(&node).await {
                    nodes.away(&node, &failure);
                }
            });
        };
        let result = self.waiting.listen_long(node, kept, waiter.live.connection.send(commands), look).await;
        *locked(place) = None;
        let values = match result {
            Some(Heard::Reply(values)) => values,
            Some(Heard::Others) => return Err(Failure::TooOld(Late::new(None))),
            None => return Err(Failure::Silent(self.timeout(), Late::new(None))),
        };
        let reply = values.and_then(|mut values| values.pop().unwrap_or(Value::Nil).extract_error());
        match reply {
            Err(error) if error.code().is_none() && error.is_unrecoverable_error() => {
                link.forget_waiters();
                Err(Failure::Broken(error))
            }
            Err(error) => {
                if error.code() == Some("READONLY") {
                    link.forget_waiters();
                } else {
                    link.keep(waiter);
                }
                Err(Failure::Replied(error))
            }
            Ok(reply) => {
                link.keep(waiter);
                Ok(reply)
            }
        }
    }

    /// Who wants to wait has more time to connect than the timeout.
    async fn new_waiter(self: &Arc<Self>, node: &Arc<Node>, link: &Arc<Link>) -> Result<Waiter, Failure> {
        let _turn = link.turn_to_connect().await;
        if node.is_away() {
            return Err(Failure::Connecting);
        }
        let connecting = link.clone();
        let waiter = background::spawn(async move { connecting.make_waiter().await }).await;
        let waiter = waiter.unwrap_or_else(|_| Err(broken())).map_err(Failure::NotConnected)?;
        node.hear(self.clock().now());
        Ok(waiter)
    }

    /// Why the node does not answer, if it does not.
    pub(crate) async fn ping(self: &Arc<Self>, node: &Arc<Node>) -> Option<Failure> {
        match self.attempt(node, &[redis::cmd("PING")], true, true).await {
            Err(failure) if failure.fault() == Fault::Away => Some(failure),
            _ => {
                node.answers();
                None
            }
        }
    }

    /// A connection that answers, for a call that must happen once: what is sent over one that was cut is lost.
    async fn asked_before(
        self: &Arc<Self>,
        node: &Arc<Node>,
        link: &Arc<Link>,
        mut live: Connection,
    ) -> Result<Connection, Failure> {
        match self.waiting.listen(node, live.send(&[redis::cmd("PING")])).await {
            Some(Heard::Reply(Ok(_))) => Ok(live),
            Some(Heard::Reply(Err(error))) if error.code().is_some() => Ok(live),
            Some(Heard::Reply(Err(_))) => {
                link.forget(live.number());
                self.connection(node, link).await
            }
            _ => {
                link.forget(live.number());
                Err(Failure::NotConnected(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
            }
        }
    }

    async fn connection(self: &Arc<Self>, node: &Arc<Node>, link: &Arc<Link>) -> Result<Connection, Failure> {
        if let Some(live) = link.live() {
            return Ok(live);
        }
        let (nodes, connected) = (self.clone(), node.clone());
        let mut outcome = link.connect(move |result| nodes.connected(&connected, result));
        let waiting = async {
            let outcome = outcome.wait_for(Option::is_some).await;
            outcome.map_or_else(|_| Err(broken()), |outcome| outcome.clone().unwrap_or_else(|| Err(broken())))
        };
        let result = self.waiting.patiently(waiting).await.ok_or(Failure::Connecting)?;
        result.map_err(Failure::NotConnected)
    }

    /// Whoever began to connect may wait no longer.
    fn connected(self: &Arc<Self>, node: &Arc<Node>, result: &RedisResult<Connection>) {
        match result {
            Ok(_) => node.hear(self.clock().now()),
            Err(error) => {
                let failure = Failure::NotConnected(error.clone());
                if failure.fault() == Fault::Away {
                    self.away(node, &failure);
                }
            }
        }
    }
}

/// What an error says. It forgets a connection that has ended, or leads to a replica.
fn failure_of(error: RedisError, node: &Node, connection: u64) -> Failure {
    let forget = || node.link().into_iter().for_each(|link| link.forget(connection));
    if error.code() == Some("READONLY") {
        forget();
    }
    if error.code().is_some() || !error.is_unrecoverable_error() {
        return Failure::Replied(error);
    }
    forget();
    Failure::Broken(error)
}
