//! Grants that come when their calls have been decided without them, or when their callers have left.

use std::sync::Arc;
use std::time::Duration;

use redis::{RedisResult, Value};

use crate::transport::background::{timeout, Owed};
use crate::transport::calls::Answer;
use crate::transport::node::{Node, LOG};
use crate::transport::reply::{Call, Replies, Reply};
use crate::transport::Transport;
use crate::values::error::Failure;
use crate::values::request::Request;

/// A reply that comes later is not read.
const LATE_WITHIN: Duration = Duration::from_secs(60);
/// In this time a server that is back executes what it had received before.
const EXECUTED_WITHIN: Duration = Duration::from_secs(1);
/// How long after the first request to end a wait the second is sent; the third comes after twice the time. The first may
/// overtake the call.
const LEAVE_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// What is given back is sent so often while the server is away: for ten minutes.
const MOST_TRIES: u32 = 1200;
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

impl Reply<'_> {
    /// Gives back what it grants late, unless its call keeps it. If the connection broke, there is nothing to wait for.
    pub(super) fn late_grant(&mut self) -> Owed {
        let pending = self.pending.take();
        // Without a reply only a hold can be found again, by its id.
        let owes =
            |request: &&Request| request.takes() && (pending.is_some() || request.undo_hold().is_some());
        let Some(request) = self.call.map(|call| call.request).filter(owes).cloned() else {
            return Owed::nothing();
        };
        let (transport, node) = (self.transport.clone(), self.node.clone());
        let (waits, client_id) = (self.waits_until().is_some(), self.client_id);
        Owed::by(async move {
            let replies = match pending {
                None => None,
                Some(pending) if waits => transport.leave(&node, &request, pending, client_id).await,
                Some(pending) => timeout(LATE_WITHIN, pending).await,
            };
            if let Some(Ok(replies)) = replies {
                return transport.send_all(request.undo(&replies));
            }
            let Some(settle) = request.undo_hold() else { return };
            transport.send_until_done(&settle).await;
            // The server may execute the call after that.
            transport.clock().sleep(EXECUTED_WITHIN).await;
            transport.send_until_done(&settle).await;
        })
    }
}

impl Transport {
    /// Ends a wait, and returns its reply. The server ends it by the client's id: closing the connection would lose a grant
    /// that is on its way.
    async fn leave(
        &self,
        node: &Arc<Node>,
        request: &Request,
        mut pending: Replies,
        client_id: Option<i64>,
    ) -> Option<RedisResult<Vec<Value>>> {
        let mut reply = timeout(Duration::ZERO, pending.as_mut()).await;
        let mut pause = LEAVE_AGAIN_AFTER;
        while let (None, Some(id)) = (&reply, client_id.filter(|_| pause < LATE_WITHIN / 2)) {
            let unblock = redis::cmd("CLIENT").arg("UNBLOCK").arg(id).take();
            let commands = vec![request.to_nothing(), unblock];
            if let Err(Failure::Replied(_)) = self.attempt(node, commands, None).await {
                // The user may not: the connection is closed.
                return None;
            }
            reply = timeout(pause, pending.as_mut()).await;
            pause *= 2;
        }
        reply
    }

    /// Sends what no call waits for.
    pub(crate) fn send_all(&self, requests: Vec<Request>) {
        if requests.is_empty() {
            return;
        }
        let transport = self.clone();
        self.spawn(async move {
            for request in requests {
                transport.send_until_done(&request).await;
            }
        });
    }

    /// Sends what no call waits for once the server is back. To settle twice does no harm where nothing was used.
    async fn send_until_done(&self, request: &Request) {
        let mut tries = if self.clock().is_real() { MOST_TRIES } else { 1 };
        let failure = loop {
            let why = match self.run(Call::new(request)).await {
                Ok(Answer::Away(node, _)) => node.failure(),
                Ok(Answer::Lost(node)) if request.needs_the_module() => node.failure(),
                Ok(_) => return,
                Err(error) => break error.to_string(),
            };
            tries -= 1;
            if tries == 0 {
                break why;
            }
            self.clock().sleep(BETWEEN_TRIES).await;
        };
        log::warn!(target: LOG, "tokens were not given back: {failure}");
    }
}
