//! Grants that come when their calls have been decided without them.

use std::time::Duration;

use crate::transport::background::timeout;
use crate::transport::calls::Calls;
use crate::values::error::{Late, Replies};
use crate::values::request::Request;

/// A reply that comes later is not read.
const LATE_WITHIN: Duration = Duration::from_secs(60);
/// In this time a server that is back executes what it had received before.
const EXECUTED_WITHIN: Duration = Duration::from_secs(1);

/// Gives back what a late reply grants when it is dropped, unless its call keeps it.
pub(crate) struct LateGrant(Option<Box<Owed>>);

struct Owed {
    calls: Calls,
    request: Request,
    replies: Late,
}

impl LateGrant {
    pub(crate) fn none() -> Self {
        Self(None)
    }

    /// `replies` is `None` if no reply can arrive any longer.
    pub(crate) fn new(calls: &Calls, request: &Request, replies: Option<Replies>) -> Self {
        let replies = Late::new(replies);
        Self(Some(Box::new(Owed { calls: calls.clone(), request: request.clone(), replies })))
    }

    /// Leaves the grant to a call that was let through.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for LateGrant {
    fn drop(&mut self) {
        if let Some(owed) = self.0.take() {
            let calls = owed.calls.clone();
            calls.nodes().spawn(owed.give_back());
        }
    }
}

impl Owed {
    async fn give_back(self: Box<Self>) {
        let Self { calls, request, replies } = *self;
        if let Some(replies) = replies.take() {
            if let Ok(Ok(replies)) = timeout(LATE_WITHIN, replies).await {
                return calls.send_all(request.undo(&replies));
            }
        }
        // Without a reply only a hold can be found again, by its id.
        let Some(settle) = request.undo_hold() else { return };
        calls.send_until_done(&settle).await;
        calls.nodes().clock().sleep(EXECUTED_WITHIN).await;
        calls.send_until_done(&settle).await;
    }
}
