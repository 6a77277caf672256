//! Asks for decisions: the server, or the policy while the server is away.

use std::time::Duration;

use redis::Value;

use crate::api::options::{Hook, OnError, Options};
use crate::api::server::Server;
use crate::transport::background;
use crate::transport::calls::{Answer, How};
use crate::transport::node::Node;
use crate::values::decision::{Decision, JointDecision};
use crate::values::error::Error;
use crate::values::limit::Limit;
use crate::values::request::{Amount, Part, Request, Words};

/// The log target of limiters, named after the public type: users filter by it.
const LOG: &str = "tokenbucket_client::limiter";

/// Asks for limiters and their holds. It has no limit of its own.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) server: Server,
    pub(crate) options: Options,
}

impl Caller {
    pub(crate) fn key(&self, name: &str) -> String {
        [&*self.options.prefix, name].concat()
    }

    /// Reports a decision to the hook and the trace.
    pub(crate) fn tell(&self, name: &str, limit: &Limit, decision: &Decision, began: Duration) {
        if !cfg!(feature = "tracing") && self.options.hook.is_none() {
            return;
        }
        let took = self.server.now().saturating_sub(began);
        #[cfg(feature = "tracing")]
        trace(|| self.key(name), limit, decision, took);
        if let Some(Hook(hook)) = &self.options.hook {
            if !background::is_here() {
                return hook(name, limit, decision, took);
            }
            let (hook, name, limit, decision) = (hook.clone(), name.to_owned(), limit.clone(), *decision);
            background::run_hook(move || hook(&name, &limit, &decision, took));
        }
    }

    /// Takes `amount` in any case, into debt if need be.
    pub(crate) async fn charge(&self, name: &str, limit: &Limit, amount: Amount) -> Result<Decision, Error> {
        let words = [Some(amount.checked("amount")?), None];
        self.decide("TB.CHARGE", name, limit, words, How::default(), self.server.now()).await
    }

    /// `began` is the time of now.
    pub(crate) async fn decide(
        &self,
        operation: &'static str,
        name: &str,
        limit: &Limit,
        words: Words,
        how: How<'_>,
        began: Duration,
    ) -> Result<Decision, Error> {
        let request = Request::one(operation, self.key(name), limit, words).sharing(how.share)?;
        let decision = self.ask(&request, how).await?.binding;
        self.tell(name, limit, &decision, began);
        Ok(decision)
    }

    pub(crate) async fn decide_all(
        &self,
        operation: &'static str,
        before: Vec<String>,
        parts: &[Part],
        how: How<'_>,
    ) -> Result<JointDecision, Error> {
        let began = self.server.now();
        let request = Request::joint(operation, before, &self.options.prefix, parts)?.sharing(how.share)?;
        let decision = self.ask(&request, how).await?;
        for (place, part) in parts.iter().enumerate() {
            let own = decision.each.get(place).unwrap_or(&decision.binding);
            self.tell(&part.name, &part.limit, own, began);
        }
        Ok(decision)
    }

    async fn ask(&self, request: &Request, how: How<'_>) -> Result<JointDecision, Error> {
        let renewal = how.renews.then(|| request.to_renewal());
        match self.server.transport().ask(renewal.as_ref().unwrap_or(request), how).await? {
            Answer::Replies(replies) => request.read(replies.into_iter().next().unwrap_or(Value::Nil)),
            Answer::Away(node, late) => {
                let decision = self.without_server(&node, request);
                let is_allowed = decision.as_ref().is_ok_and(JointDecision::allowed);
                if how.keeps_late || is_allowed && !how.returns_late {
                    late.forgive();
                }
                decision
            }
            Answer::Lost(node) if self.options.on_error == OnError::Error => {
                Err(Error::ReplyLost(node.name.to_string()))
            }
            Answer::Lost(_) => {
                self.server.count_degraded();
                Ok(JointDecision::of(Decision::of_lost_call()))
            }
        }
    }

    /// Ends what is held here as well, when the server was away at its beginning.
    pub(crate) fn settle_here(&self, id: &str, parts: &[Part]) {
        let request = Request::joint("TB.MSETTLE", vec![id.to_owned()], &self.options.prefix, parts);
        if let Err(error) = request.and_then(|request| self.server.decide_locally(&request)) {
            log::warn!(target: LOG, "a hold of this process was not settled: {error}");
        }
    }

    /// Decides by the policy.
    pub(crate) fn without_server(&self, node: &Node, request: &Request) -> Result<JointDecision, Error> {
        let retry_after = self.server.options().retry_every;
        let by_policy =
            |allowed, granted| JointDecision::of(Decision::by_policy(allowed, granted, retry_after));
        let decision = match self.options.on_error {
            OnError::Local => request.read(self.server.decide_locally(request)?)?.degraded(),
            OnError::Open => by_policy(true, request.most_granted()),
            OnError::Closed => by_policy(false, 0),
            OnError::Error => return Err(Error::ServerAway(node.failure())),
        };
        self.server.count_degraded();
        Ok(decision)
    }
}

#[cfg(feature = "tracing")]
fn trace(key: impl FnOnce() -> String, limit: &Limit, decision: &Decision, took: Duration) {
    if tracing::enabled!(target: LOG, tracing::Level::DEBUG) {
        let (key, Decision { allowed, remaining, retry_after_ms, degraded, .. }) = (key(), *decision);
        tracing::debug!(target: LOG, key, %limit, allowed, remaining, retry_after_ms, degraded, ?took, "decided");
    }
}
