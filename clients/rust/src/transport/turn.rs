//! Calls that wait in the server for their turn.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::api::options::Fallback;
use crate::transport::background::timeout;
use crate::transport::calls::{Answer, Calls, How, TRIES_OF_A_SPLIT_SLOT};
use crate::transport::detached::{Detached, Pending};
use crate::transport::late::LateGrant;
use crate::transport::locked::locked;
use crate::transport::node::Node;
use crate::transport::nodes::Place;
use crate::transport::waiting::at_once;
use crate::values::error::{Error, Failure};
use crate::values::few::Few;
use crate::values::request::Request;

/// A call that waits is sent so often at most: each time a slot moved, a master changed or a connection ended.
const TRIES_OF_A_WAIT: u32 = 10;
/// In this time the server ends a wait, or sees that its connection was closed.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);
/// So long a command or its reply may be on its way.
const LEAVE_AGAIN_AFTER: Duration = Duration::from_millis(50);

impl Calls {
    /// Lets the server keep the call until its turn, or asks again at the times that it tells where it cannot. A caller who
    /// stops waiting leaves the queue, and a grant that was on its way is given back.
    pub(crate) async fn wait(&self, request: &Request, max_wait: Duration) -> Result<Answer, Error> {
        let (until, place) = (self.nodes.clock().now().saturating_add(max_wait), Arc::new(Place::default()));
        let (calls, asked, at) = (self.clone(), request.clone(), place.clone());
        let work = async move { calls.wait_in_server(&asked, until, &at).await };
        let late = |rest| self.leave(rest, request.clone(), place);
        match Detached::new(work, late).await? {
            Some(answer) => Ok(answer),
            None => self.poll(request, until).await,
        }
    }

    /// None where calls cannot wait: without the module, or with one of an older release.
    async fn wait_in_server(
        &self,
        request: &Request,
        until: Duration,
        place: &Place,
    ) -> Result<Option<Answer>, Error> {
        let node = self.nodes.of_key(request.key());
        let may_be_script = self.fallback == Fallback::Script && !request.needs_the_module();
        if node.is_simulated() || may_be_script && node.script_decides(self.nodes.clock()) {
            return Ok(None);
        }
        let Some(probe) = self.nodes.admit(&node, false) else {
            return Ok(Some(Answer::Away(node, LateGrant::none())));
        };
        if probe.is_one() {
            // One that waits would not tell for long whether the server is back.
            if let Some(failure) = self.nodes.ping(&node).await {
                return self.failed(node, failure, request).map(Some);
            }
        }
        drop(probe);
        self.nodes.learn_slots().await;
        let (node, result) = self.follow_in_turn(request, until, place).await;
        match result {
            Ok(reply) => {
                node.decides();
                Ok(Some(Answer::Replies(Few::one(reply))))
            }
            Err(failure) if failure.is_unknown_command() => Ok(None),
            Err(failure) => self.failed(node, failure, request).map(Some),
        }
    }

    /// Sends it again with the time that is left, when the node can keep it no longer.
    async fn follow_in_turn(
        &self,
        request: &Request,
        until: Duration,
        place: &Place,
    ) -> (Arc<Node>, Result<Value, Failure>) {
        let mut node = self.nodes.of_key(request.key());
        let (mut is_again, mut asking) = (false, false);
        for _ in 1..TRIES_OF_A_WAIT {
            let result = self.attempt_in_turn(&node, request, until, asking, place).await;
            asking = false;
            match &result {
                Err(failure) if failure.has_code("UNBLOCKED") => {}
                Err(failure) if failure.has_code("TRYAGAIN") => {
                    self.nodes.clock().sleep(self.nodes.timeout() / TRIES_OF_A_SPLIT_SLOT).await;
                }
                Err(Failure::Broken(_)) if !is_again => is_again = true,
                Err(failure) if failure.has_code("READONLY") && !is_again => {
                    is_again = true;
                    self.nodes.look_at_slots();
                }
                Err(Failure::Replied(error)) => {
                    let Some(other) = self.nodes.redirected(&node, error) else { return (node, result) };
                    asking = error.code() == Some("ASK");
                    node = other;
                }
                _ => return (node, result),
            }
        }
        let result = self.attempt_in_turn(&node, request, until, asking, place).await;
        (node, result)
    }

    async fn attempt_in_turn(
        &self,
        node: &Arc<Node>,
        request: &Request,
        until: Duration,
        asking: bool,
        place: &Place,
    ) -> Result<Value, Failure> {
        let left = until.saturating_sub(self.nodes.clock().now());
        let asking = asking.then(|| redis::cmd("ASKING"));
        let commands: Vec<_> = asking.into_iter().chain([request.to_waiting(left)]).collect();
        self.nodes.attempt_in_turn(node, &commands, left, place).await
    }

    /// Ends a wait whose caller has gone. The server does it by the client's id: closing the connection would lose a grant
    /// that is on its way.
    fn leave(&self, mut rest: Pending<Result<Option<Answer>, Error>>, request: Request, place: Arc<Place>) {
        let calls = self.clone();
        self.nodes.spawn(async move {
            let mut answer = at_once(rest.as_mut()).await;
            let waits_at = locked(&place).clone();
            if let (None, Some((node, id))) = (&answer, waits_at) {
                let unblock = redis::cmd("CLIENT").arg("UNBLOCK").arg(id).take();
                let unblock = [request.to_nothing(), unblock];
                let until = calls.nodes.clock().now() + LEAVE_WITHIN;
                while answer.is_none()
                    && calls.nodes.clock().now() < until
                    && calls.nodes.attempt(&node, &unblock, true, false).await.is_ok()
                {
                    answer = timeout(LEAVE_AGAIN_AFTER, rest.as_mut()).await.ok();
                }
            }
            // With its connection, if that still waits.
            drop(rest);
            match answer {
                Some(answer) => {
                    answer.into_iter().flatten().for_each(|answer| calls.undo(&request, Ok(answer)))
                }
                // The server may grant it before it sees that the connection was closed.
                None => drop(LateGrant::new(&calls, &request, None)),
            }
        });
    }

    async fn poll(&self, request: &Request, until: Duration) -> Result<Answer, Error> {
        loop {
            let answer = self.ask(request, How::default(), self.nodes.clock().now()).await?;
            let Answer::Replies(replies) = &answer else { return Ok(answer) };
            let left = until.saturating_sub(self.nodes.clock().now());
            let denied = request.binding(replies).filter(|decision| !decision.allowed && !left.is_zero());
            let Some(pause) = denied.and_then(|denial| denial.retry_after()) else { return Ok(answer) };
            self.nodes.clock().sleep(pause.max(Duration::from_millis(1)).min(left)).await;
        }
    }
}
