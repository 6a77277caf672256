//! How long a call waits for a server, and what is found out meanwhile.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::aio::MultiplexedConnection as Connection;
use redis::{FromRedisValue, Value};
use tokio::runtime::Handle;

use crate::transport::background::{timeout, turn};
use crate::transport::link::Link;
use crate::transport::node::{is_due, Node};
use crate::transport::send::{How, LATE};
use crate::transport::sentinel::BETWEEN_LOOKS;
use crate::transport::Transport;
use crate::values::rules::PULSE;
use crate::values::Failure;

/// A call is given up at this many timeouts, even if others are answered.
const TIMEOUTS_OF_A_CALL: u32 = 3;
/// In a process that is too busy to read in time, which is no silence, it is given up at this age, or so many timeouts.
const AGE_IF_BUSY: Duration = Duration::from_secs(1);
const TIMEOUTS_IF_BUSY: u32 = 10;

impl Transport {
    /// Waits for a reply. The server is silent if for the timeout nothing came from it, to this call or another, not counting
    /// the time in which this process was busy.
    pub(super) async fn listen<T>(
        &self,
        node: &Node,
        mut reply: impl Future<Output = T> + Unpin,
    ) -> Result<T, Failure> {
        let (clock, patience) = (self.clock(), self.options.timeout);
        let mut since = clock.now();
        let mut old_at = since.saturating_add(patience.saturating_mul(TIMEOUTS_OF_A_CALL));
        let mut too_old_at = since.saturating_add(patience.saturating_mul(TIMEOUTS_IF_BUSY).max(AGE_IF_BUSY));
        let mut was_suspended = false;
        loop {
            let due = since.max(node.heard()).saturating_add(patience).min(old_at);
            if let Some(value) = timeout(due.saturating_sub(clock.now()), &mut reply).await {
                return Ok(value);
            }
            turn().await;
            if let Poll::Ready(value) = Pin::new(&mut reply).poll(&mut Context::from_waker(Waker::noop())) {
                return Ok(value);
            }
            let now = clock.now();
            if !was_suspended && now > due.saturating_add(patience.max(AGE_IF_BUSY)) {
                // This process was suspended, and not only busy: only once, or a call of long turns would have no end.
                was_suspended = true;
                too_old_at = too_old_at.saturating_add(now - due);
            }
            if now > due + LATE && now < too_old_at && !node.is_away() {
                // The timer was late, so replies may be.
                since = now;
                old_at = old_at.max(now.saturating_add(patience)).min(too_old_at);
            } else if now >= since.max(node.heard()).saturating_add(patience) {
                return Err(Failure::Silent(patience));
            } else if now >= old_at {
                return Err(Failure::TooOld);
            }
        }
    }

    /// Waits for the reply to a call that the server may keep until then. Where no other call has heard from the server, asks
    /// whether it is there.
    pub(super) async fn listen_long<T>(
        &self,
        node: &Arc<Node>,
        link: &Arc<Link>,
        until: Duration,
        mut reply: impl Future<Output = T> + Unpin,
    ) -> Result<T, Failure> {
        loop {
            let left = until.saturating_sub(self.now());
            if left.is_zero() {
                return match self.listen(node, reply).await {
                    // A box on the way may have forgotten this connection alone.
                    Err(Failure::Silent(_)) if !self.look(node).await => Err(Failure::TooOld),
                    heard => heard,
                };
            }
            if let Some(value) = timeout(left.min(PULSE), &mut reply).await {
                return Ok(value);
            }
            self.look_at_sentinels(node);
            self.look_at_replaced(node, link).await;
            if link.is_left.load(Ordering::Relaxed) {
                return Err(Failure::Broken(io::Error::from(io::ErrorKind::ConnectionAborted).into()));
            }
            if self.now().saturating_sub(node.heard()) >= PULSE && self.look(node).await {
                return Err(Failure::Silent(self.options.timeout));
            }
        }
    }

    /// Finds out whether calls may go on to wait on a link that another has replaced. One connection that was closed says
    /// nothing about the others: they keep their turns. One such look is enough at a time.
    async fn look_at_replaced(&self, node: &Arc<Node>, link: &Arc<Link>) {
        let next = node.link();
        if !Arc::ptr_eq(link, &next) && !node.is_away() && is_due(&link.next_look_us, self.now(), PULSE) {
            let shared = link.shared.get().and_then(|made| made.as_ref().ok()).cloned();
            let is_left = link.is_behind(&next) || self.is_forgotten(node, shared).await;
            link.is_left.fetch_or(is_left, Ordering::Relaxed);
        }
    }

    /// Returns whether the connection is silent, and not the server: a box on the way has forgotten it, or its runtime does not
    /// read.
    async fn is_forgotten(&self, node: &Arc<Node>, connection: Option<Connection>) -> bool {
        let Some(mut connection) = connection else { return false };
        let ping = redis::cmd("PING");
        let mut pong = Box::pin(connection.send_packed_command(&ping));
        self.listen(node, &mut pong).await.is_err()
            && !self.look(node).await
            && timeout(LATE, &mut pong).await.is_none()
    }

    /// Finds out whether the node is away.
    pub(super) async fn look(&self, node: &Arc<Node>) -> bool {
        let mut asked = self.ping(node).await;
        if matches!(asked, Err(Failure::Broken(_))) {
            asked = self.ping(node).await;
        }
        match &asked {
            Ok(()) => node.answers(),
            Err(failure) => drop(self.note(node, failure)),
        }
        asked.is_err_and(|failure| failure.is_away())
    }

    pub(super) async fn ping(&self, node: &Arc<Node>) -> Result<(), Failure> {
        Box::pin(self.attempt(node, &redis::cmd("PING"), How::default())).await.map(drop)
    }

    /// Finds that out in the background, for a caller who did not wait for it. One such look is enough at a time.
    pub(super) fn look_later(&self, node: &Arc<Node>) {
        if is_due(&node.next_look_us, self.now(), self.options.timeout) {
            let (transport, node) = (self.clone(), node.clone());
            self.spawn(async move {
                transport.look(&node).await;
            });
        }
    }

    /// Finds out in the background whether the connection of the caller's runtime is forgotten. If so, no call uses it again, and
    /// what those that were left have queued goes with it.
    pub(super) fn look_at_near_later(&self, node: &Arc<Node>, link: &Arc<Link>) {
        if is_due(&link.next_near_look_us, self.now(), self.options.timeout) {
            let (transport, node, link) = (self.clone(), node.clone(), link.clone());
            let runtime = Handle::try_current().ok();
            self.spawn(async move {
                let near = link.near.get().map(|(_, connection)| connection.clone());
                if transport.is_forgotten(&node, near).await {
                    transport.leave_near(&node, &link, runtime).await;
                }
            });
        }
    }

    /// Connects again for the next call, where the connection of a caller's runtime is silent. The server may be slow, or a box
    /// on the way has forgotten it; but a runtime that runs no task meanwhile reads nothing, and gets none again.
    pub(super) async fn leave_near(&self, node: &Node, link: &Arc<Link>, runtime: Option<Handle>) {
        let run = async { runtime?.spawn(async {}).await.ok() };
        let is_blocked = timeout(self.options.timeout, run).await.flatten().is_none();
        node.is_far.fetch_or(is_blocked, Ordering::Relaxed);
        node.forget(link);
    }

    /// Asks the sentinels, in the background, whether the master is another.
    pub(super) fn look_at_sentinels(&self, node: &Arc<Node>) {
        let Some(sentinels) = node.sentinels() else { return };
        if is_due(&sentinels.next_look_us, self.now(), BETWEEN_LOOKS) {
            let (node, link) = (node.clone(), node.link());
            self.spawn(async move { drop(node.client(&link).await) });
        }
    }

    /// Asks where the slots are, in the background.
    pub(super) fn look_at_slots(&self) {
        let cluster = self.shared.cluster.as_ref();
        let Some(node) = cluster.and_then(|cluster| cluster.one_to_ask(self.now())) else { return };
        let transport = self.clone();
        self.spawn(async move {
            let ask = redis::cmd("CLUSTER").arg("SLOTS").take();
            let asked = transport.attempt(&node, &ask, How::default()).await;
            let (Ok(reply), Some(cluster)) = (asked, &transport.shared.cluster) else { return };
            for range in Vec::<Value>::from_redis_value(reply).into_iter().flatten() {
                cluster.read(range, &node);
            }
            cluster.forget_left();
        });
    }
}
