//! Asks for decisions: the server, or the policy while the server is away.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use redis::FromRedisValue;
use scopeguard::{guard, ScopeGuard};

use crate::api::denials::Denials;
use crate::api::options::{OnError, Options};
use crate::api::server::Server;
use crate::transport::ask::Answer;
use crate::transport::background;
use crate::transport::node::Node;
use crate::values::rules::LONGEST;
use crate::values::{each_once, Decision, Error, JointDecision, Part, Request, Share};

/// The log target of limiters, named after the public type: users filter by it.
#[cfg(feature = "tracing")]
const LOG: &str = "tokenbucket_client::limiter";

/// Asks for limiters and their holds. It has no limit of its own.
pub(crate) struct Caller {
    pub(crate) server: Server,
    pub(crate) options: Options,
    pub(crate) denials: Option<Arc<Denials>>,
}

/// How a request is asked.
#[derive(Clone, Copy, Default)]
pub(crate) struct How<'a> {
    /// How long it may wait in the server for its turn.
    pub(crate) max_wait: Duration,
    /// Whose turn it takes there.
    pub(crate) share: Option<&'a Arc<Share>>,
    /// How many of the parts each alternative has.
    pub(crate) each: Option<usize>,
    /// Sends the renewal of the hold; without the server, the policy decides on the `TB.MHOLD`.
    pub(crate) renews: bool,
    /// The ttl of the hold that it begins. A hold that no caller gets is ended.
    pub(crate) begins: Option<Duration>,
    /// Ends it whatever the policy decides, and not for a denial: another call of its id may have the hold.
    pub(crate) ends_late: bool,
    /// What becomes known of the hold's way to the server.
    pub(crate) sent: Option<&'a Sent>,
}

/// What is known of a hold's way to the server.
#[derive(Default)]
pub(crate) struct Sent {
    /// Set once the server may have the hold.
    pub(crate) is_sent: AtomicBool,
    /// Set once a call that begins the hold had no reply: it may still be on its way.
    pub(crate) is_in_doubt: AtomicBool,
}

impl Caller {
    pub(crate) fn key(&self, name: &str) -> String {
        [&*self.options.prefix, name].concat()
    }

    /// Decides on all parts together, or on one.
    pub(crate) async fn decide(
        &self,
        operation: &'static str,
        before: Vec<String>,
        parts: &[Part],
        how: How<'_>,
    ) -> Result<JointDecision, Error> {
        let began = self.server.now();
        let request = Request::new(operation, before, &self.options.prefix, parts, how.share)?;
        // At the end, whatever it is: the server may have the call of a caller who left.
        let _forgets = matches!(operation, "TB.GIVE" | "TB.MSETTLE")
            .then(|| guard(self.came_back(parts), |came_back| came_back()));
        let mut decision = self.ask(&request, parts, how).await?;
        let reported = match how.each.map(|each| decision.alternative(parts, each)) {
            None => Cow::Borrowed(parts),
            Some(Some(granted)) => Cow::Borrowed(granted),
            // The reply does not say of which alternative its parts are.
            Some(None) => {
                decision.each.clear();
                Cow::Owned(each_once(parts))
            }
        };
        // A settlement denies nothing.
        if operation != "TB.MSETTLE" {
            decision = decision.map(|one| self.passing(one, request.most_granted()));
        }
        for (place, part) in reported.iter().enumerate() {
            self.report(part, decision.each.get(place).unwrap_or(&decision.binding), began);
        }
        Ok(decision)
    }

    /// Returns the decision for the caller: in shadow mode, one that grants what was wanted.
    pub(crate) fn passing(&self, decision: Decision, wanted: u64) -> Decision {
        if !self.options.shadow || decision.granted >= wanted {
            return decision;
        }
        Decision { allowed: true, granted: wanted, shadowed: true, ..decision }
    }

    /// Returns the decision of this process for the caller, after the hook and the trace have it.
    pub(crate) fn reported(&self, part: &Part, decision: Decision, began: Duration) -> Decision {
        let decision = self.passing(decision, 1);
        self.report(part, &decision, began);
        decision
    }

    /// Reports a decision to the hook and the trace, on a thread that may wait.
    fn report(&self, part: &Part, decision: &Decision, began: Duration) {
        if !cfg!(feature = "tracing") && self.options.hook.is_none() {
            return;
        }
        let took = self.server.now().saturating_sub(began);
        if !background::is_here() {
            return report_here(&self.options, part, decision, took);
        }
        let (options, part, decision) = (self.options.clone(), part.clone(), *decision);
        background::run_blocking(move || report_here(&options, &part, &decision, took));
    }

    async fn ask(&self, request: &Request, parts: &[Part], how: How<'_>) -> Result<JointDecision, Error> {
        if how.max_wait > LONGEST {
            return Err(Error::BadArgument(format!("max_wait: {:?} is more than 30 days", how.max_wait)));
        }
        if let Some(ttl) = how.begins.filter(|ttl| !(Duration::from_millis(1)..=LONGEST).contains(ttl)) {
            return Err(Error::BadArgument(format!("ttl: {ttl:?} is not from 1 ms to 30 days")));
        }
        // What waits to end the hold of an earlier call would end this one.
        let is_again = how.ends_late && self.server.call_off(request).await;
        // A hold that the server may have, and that no caller gets.
        let doubt = how.begins.and_then(|ttl| {
            let settle = request.to_end()?;
            let settle =
                move |()| self.server.settle_later(settle, ttl, Duration::ZERO, self.came_back(parts));
            Some(guard((), settle))
        });
        let asked = if how.renews { &request.to_renewal() } else { request };
        let max_wait = if self.options.shadow { Duration::ZERO } else { how.max_wait };
        let mut is_in_doubt = is_again;
        let answer = self.server.transport.ask_noting(asked, max_wait, &mut is_in_doubt).await;
        if let Some(sent) = how.sent {
            let is_there = is_in_doubt || matches!(answer, Ok(Answer::Reply(_)));
            sent.is_sent.fetch_or(is_there, Ordering::Relaxed);
            sent.is_in_doubt.fetch_or(is_in_doubt && !how.renews, Ordering::Relaxed);
        }
        let decision = match answer {
            Err(error) => Err(error),
            Ok(Answer::Reply(reply)) => JointDecision::from_redis_value(reply).map_err(Error::from),
            Ok(Answer::Away(node)) => self.without_server(&node, request),
            Ok(Answer::Lost(node)) if self.options.on_error == OnError::Error => {
                Err(Error::ReplyLost(node.name.to_string()))
            }
            Ok(Answer::Lost(_)) => {
                self.server.count_degraded();
                let lost = Decision { lost: true, ..Decision::by_policy(true, 1, Duration::ZERO) };
                Ok(JointDecision::of(lost))
            }
        };
        let is_kept = |decision: &JointDecision| match how.ends_late {
            true => !decision.binding.degraded && (decision.allowed() || !is_again),
            false => decision.allowed(),
        };
        if let (Some(doubt), false) = (doubt, is_in_doubt && !decision.as_ref().is_ok_and(is_kept)) {
            ScopeGuard::into_inner(doubt);
        }
        decision
    }

    /// Returns what forgets the denials of buckets to which tokens came back.
    pub(crate) fn came_back(&self, parts: &[Part]) -> impl Fn() + Send + 'static {
        let denials = self.denials.clone().map(|denials| (denials, self.server.clone(), parts.to_vec()));
        move || {
            if let Some((denials, server, parts)) = &denials {
                parts.iter().for_each(|part| denials.forget(&part.name, server.now()));
            }
        }
    }

    /// Decides by the policy.
    pub(crate) fn without_server(&self, node: &Node, request: &Request) -> Result<JointDecision, Error> {
        let retry_after = self.server.transport.options.retry_every;
        let by_policy =
            |allowed, granted| JointDecision::of(Decision::by_policy(allowed, granted, retry_after));
        if self.options.on_error != OnError::Local {
            self.server.check(request)?;
        }
        let decision = match self.options.on_error {
            OnError::Local => {
                let decision = JointDecision::from_redis_value(self.server.decide_locally(request)?)?;
                decision.map(|one| Decision { degraded: true, ..one })
            }
            OnError::Open => by_policy(true, request.most_granted()),
            OnError::Closed => by_policy(false, 0),
            OnError::Error => return Err(Error::ServerAway(node.failure())),
        };
        self.server.count_degraded();
        Ok(decision)
    }
}

fn report_here(options: &Options, part: &Part, decision: &Decision, took: Duration) {
    let Part { name, limit, .. } = part;
    #[cfg(feature = "tracing")]
    if tracing::enabled!(target: LOG, tracing::Level::DEBUG) {
        let key = [&options.prefix, name.as_str()].concat();
        let Decision { allowed, shadowed, remaining, retry_after_ms, degraded, .. } = *decision;
        tracing::debug!(target: LOG, key, %limit, allowed, shadowed, remaining, retry_after_ms, degraded, ?took, "decided");
    }
    if let Some(hook) = &options.hook {
        hook.call(name, limit, decision, took);
    }
}
