//! Calls that wait in the server for their turn.

use std::time::Duration;

use crate::transport::calls::{Answer, Call, How};
use crate::transport::late::LateGrant;
use crate::transport::Transport;
use crate::values::error::Error;
use crate::values::request::{By, Request};

impl Transport {
    /// Lets the server keep the call until its turn. Where that is not possible, asks again at the times that denials tell.
    pub(super) async fn wait(&self, request: &Request, max_wait: Duration) -> Result<Answer, Error> {
        let until = self.clock().now().saturating_add(max_wait);
        if !self.clock().is_real() || self.decider(request) != By::Module {
            return self.poll(request, until).await;
        }
        let node = self.node_of(request, By::Module);
        let Some(probe) = self.admit(&node, false) else {
            return Ok(Answer::Away(node, LateGrant::none()));
        };
        if probe.is_one() {
            // A call that waits would not tell for long whether the server is back.
            if let Some(failure) = self.ping(&node).await {
                return self.conclude(node, Err(failure), request);
            }
        }
        drop(probe);
        self.learn_slots().await;
        let call = Call { request, by: By::Module, may_repeat: true, is_probe: false, until: Some(until) };
        match self.follow(call).await {
            // Without the module, or with one of an older release.
            (_, Err(failure)) if failure.is_unknown_command() => self.poll(request, until).await,
            (node, result) => self.conclude(node, result, request),
        }
    }

    async fn poll(&self, request: &Request, until: Duration) -> Result<Answer, Error> {
        loop {
            let answer = self.ask(request, How::default(), self.clock().now()).await?;
            let Answer::Replies(replies) = &answer else { return Ok(answer) };
            let left = until.saturating_sub(self.clock().now());
            let denied = request.binding(replies).filter(|decision| !decision.allowed && !left.is_zero());
            let Some(pause) = denied.and_then(|denial| denial.retry_after()) else { return Ok(answer) };
            drop(answer);
            self.clock().sleep(pause.max(Duration::from_millis(1)).min(left)).await;
        }
    }
}
