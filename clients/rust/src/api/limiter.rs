//! The operations.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::batches::{Batches, Verdict};
use crate::api::caller::{Caller, How, Memory};
use crate::api::denials::Denials;
use crate::api::hold::Hold;
#[cfg(feature = "tower")]
use crate::api::options::OnError;
use crate::api::options::{Fallback, Options};
use crate::api::server::Server;
use crate::transport::ask::Answer;
use crate::transport::if_dropped::IfDropped;
use crate::values::decision::{Decision, JointDecision};
use crate::values::error::Error;
use crate::values::limit::Limit;
use crate::values::request::{Amount, Part, Request, Share, Words};

/// One limit for many names. Each name has a bucket of its own, at prefix + name: see [`take`](Self::take). Clones share
/// everything.
///
/// For threads, see [`sync::Limiter`](crate::sync::Limiter), which has the same methods.
#[derive(Clone)]
pub struct Limiter {
    caller: Caller,
    limit: Limit,
    max_wait: Duration,
    share: Option<Arc<Share>>,
}

impl Limiter {
    /// Makes a limiter whose options have their defaults.
    pub fn new(server: &Server, limit: Limit) -> Self {
        Self::with_options(server, limit, Options::new())
    }

    /// Makes a limiter with these options.
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter, OnError, Options};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = Options::new().prefix("login:").on_error(OnError::Closed);
    /// let logins = Limiter::with_options(&Fake::new().server(), Limit::new(5, "5/15m")?, options);
    /// assert!(logins.take("ada", 1).await?.allowed);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_options(server: &Server, limit: Limit, options: Options) -> Self {
        let denials = Denials::new(options.remember_denials, options.remember_denials_for);
        let memory = Arc::new(Memory { denials, batches: Batches::new(options.batch) });
        let caller = Caller { server: server.clone(), options, memory };
        Self { caller, limit, max_wait: Duration::ZERO, share: None }
    }

    /// Returns this limiter with another limit, for a caller that has its own.
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(10, "5/s")?);
    /// let premium = limiter.with_limit(Limit::new(100, "50/s")?);
    /// assert!(premium.take("user:42", 60).await?.allowed);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_limit(&self, limit: Limit) -> Self {
        Self { limit, ..self.clone() }
    }

    /// Returns this limiter, whose takes and holds now wait in the server for up to `max_wait` (at most 30 days) instead of
    /// being denied, in the order in which they came. When the time is over, the decision is the denial of that moment.
    ///
    /// Dropping the call leaves the queue. Batches and remembered denials are for calls that do not wait. While the server is
    /// away, `on_error` decides without a wait. With [`Fallback::Script`] the client asks again after each `retry_after`, in
    /// no order.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(1, "1/s")?);
    /// let patient = limiter.with_max_wait(Duration::from_secs(2));
    /// assert!(patient.take("user:42", 1).await?.allowed);
    /// assert!(patient.take("user:42", 1).await?.allowed); // a second later
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn with_max_wait(&self, max_wait: Duration) -> Self {
        Self { max_wait, ..self.clone() }
    }

    /// Returns this limiter, whose calls now wait as those of a tenant: tenants that wait for the same bucket get tokens in
    /// proportion to their weights, so that many waiting calls of one do not hold up another. Calls without a share are one
    /// tenant of weight 1. Calls of several buckets with a share are an error.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(1, "1/s")?);
    /// let patient = limiter.with_max_wait(Duration::from_secs(60));
    /// // While calls of both wait, acme gets three times as many tokens.
    /// assert!(patient.with_share("acme", 3)?.take("model", 1).await?.allowed);
    /// assert!(patient.with_share("other", 1)?.take("model", 1).await?.allowed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::BadArgument`] if the tenant is not of 1 to 128 bytes, or the weight not from 0.001 to 1000. It
    /// is kept to millionths.
    pub fn with_share(&self, tenant: impl Into<String>, weight: impl Into<f64>) -> Result<Self, Error> {
        let share = Share::checked(tenant.into(), weight.into())?;
        Ok(Self { share: Some(Arc::new(share)), ..self.clone() })
    }

    /// Returns the limit that it was made with.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Takes `cost` tokens if the bucket holds them, else nothing.
    ///
    /// A caller may stop waiting, as by a timeout of its own. The call may have been counted: its tokens are lost.
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(10, "5/s")?);
    /// assert!(limiter.take("user:42", 8).await?.allowed);
    /// assert_eq!(limiter.take("user:42", 8).await?.retry_after_ms, 1200);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the mistakes of the caller, here and everywhere: see [`Error`].
    pub async fn take(&self, name: &str, cost: impl Into<Amount>) -> Result<Decision, Error> {
        let (cost, asked_at) = (cost.into(), self.now());
        let words = [Some(cost.checked("cost")?), None];
        if let Some(decision) = self.take_from_batch(name, cost, asked_at).await? {
            return Ok(decision);
        }
        if let Some(refusal) = self.recall(name, &self.limit, cost, asked_at) {
            return Ok(self.caller.told(name, &self.limit, refusal, 1, asked_at));
        }
        let decision = self.caller.decide("TB.TAKE", name, &self.limit, words, self.how(), asked_at).await?;
        self.remember(name, &self.limit, cost, decision, asked_at);
        Ok(decision)
    }

    /// Returns what [`take`](Self::take) would decide, and takes nothing. With cost 0, `remaining` is what the bucket has.
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(10, "5/s")?);
    /// assert_eq!(limiter.peek("user:42", 0).await?.remaining, 10);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn peek(&self, name: &str, cost: impl Into<Amount>) -> Result<Decision, Error> {
        self.decide("TB.PEEK", name, [Some(cost.into().checked("cost")?), None]).await
    }

    /// Takes as many whole tokens as there are, at most `most`: see [`Decision::granted`].
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(10, "5/s")?);
    /// assert_eq!(limiter.take_up_to("user:42", 25).await?.granted, 10);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn take_up_to(&self, name: &str, most: u64) -> Result<Decision, Error> {
        if Amount::from(most).as_whole().is_none() {
            return Err(Error::BadArgument(format!("most: {most} is not a number of tokens from 1 to 1e12")));
        }
        self.decide("TB.TAKEUPTO", name, [Some(most.into()), None]).await
    }

    /// Books a place in the queue: sleep `retry_after_ms`, then act. Denied, without taking a token, if the wait would exceed
    /// `max_wait`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(1, "1/s")?);
    /// let longest = Duration::from_millis(1500);
    /// assert_eq!(limiter.reserve("user:42", 1, longest).await?.retry_after_ms, 0);
    /// assert_eq!(limiter.reserve("user:42", 1, longest).await?.retry_after_ms, 1000);
    /// assert!(!limiter.reserve("user:42", 1, longest).await?.allowed);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reserve(
        &self,
        name: &str,
        cost: impl Into<Amount>,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        let max_wait_ms = u64::try_from(max_wait.as_millis()).unwrap_or(u64::MAX);
        let words = [Some(cost.into().checked("cost")?), Some(max_wait_ms.into())];
        let decision = self.decide("TB.RESERVE", name, words).await?;
        Ok(if self.caller.options.shadow { Decision { retry_after_ms: 0, ..decision } } else { decision })
    }

    /// Reserves, and sleeps until the call's turn: see [`reserve`](Self::reserve). A call that is dropped gives its tokens
    /// back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(1, "1/s")?);
    /// for _ in 0..2 {
    ///     assert!(limiter.wait("user:42", 1, Duration::from_secs(1)).await?.allowed);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait(
        &self,
        name: &str,
        cost: impl Into<Amount>,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        let cost = cost.into();
        let decision = self.reserve(name, cost, max_wait).await?;
        if let Some(wait) = decision.retry_after().filter(|wait| decision.allowed && !wait.is_zero()) {
            let Self { caller, limit, .. } = self;
            let transport = caller.server.transport();
            let give = Request::one("TB.GIVE", caller.key(name), limit, [Some(cost), None]);
            let leaves = IfDropped::run(|| transport.send_once((!decision.degraded).then_some(give)));
            transport.clock().sleep(wait).await;
            leaves.disarm();
        }
        Ok(decision)
    }

    /// Takes `amount` in any case, into debt if need be. Sent once: see [`Decision::lost`].
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(10, "5/s")?);
    /// assert_eq!(limiter.charge("user:42", 12).await?.remaining, -2);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn charge(&self, name: &str, amount: impl Into<Amount>) -> Result<Decision, Error> {
        self.caller.charge(name, &self.limit, amount.into()).await
    }

    /// Puts `amount` back, never above the capacity. Sent once: see [`Decision::lost`].
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(10, "5/s")?);
    /// limiter.take("user:42", 8).await?;
    /// assert_eq!(limiter.give("user:42", 3).await?.remaining, 5);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn give(&self, name: &str, amount: impl Into<Amount>) -> Result<Decision, Error> {
        let given = self.decide("TB.GIVE", name, [Some(amount.into().checked("amount")?), None]).await;
        self.caller.came_back([(name, &self.limit)]);
        given
    }

    /// Makes the bucket full: deletes its key.
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(10, "5/s")?);
    /// limiter.take("user:42", 10).await?;
    /// limiter.reset("user:42").await?;
    /// assert!(limiter.take("user:42", 10).await?.allowed);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn reset(&self, name: &str) -> Result<(), Error> {
        if let Some(batches) = &self.caller.memory.batches {
            batches.forget(name, &self.limit);
        }
        let key = self.caller.key(name);
        let request = Request::reset(key.clone(), &self.limit);
        self.caller.server.decide_locally(&request)?;
        let mut answer = self.caller.server.transport().ask(&request, Duration::ZERO).await?;
        if self.caller.server.transport().options().fallback == Fallback::Script {
            let script = Request::reset(request.script_key(), &self.limit);
            answer = self.caller.server.transport().ask(&script, Duration::ZERO).await?;
        }
        self.caller.came_back([(name, &self.limit)]);
        match answer {
            Answer::Away { node, .. } => Err(Error::ServerAway(node.failure())),
            Answer::Replies(_) | Answer::Lost(_) => Ok(()),
        }
    }

    /// Takes from every bucket or from none, each under the limit of its own. A remembered denial of one of them
    /// refuses all; [`remembered`](Self::remembered) says which.
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter, Part};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(60, "60/m")?);
    /// let tokens = Limit::new(10_000, "10000/m")?;
    /// let parts = [Part::new("{ada}:requests", limiter.limit(), 1), Part::new("{ada}:tokens", &tokens, 400)];
    /// let decision = limiter.take_all(&parts).await?;
    /// assert_eq!([decision.each[0].remaining, decision.each[1].remaining], [59, 9600]);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn take_all(&self, parts: &[Part]) -> Result<JointDecision, Error> {
        let asked_at = self.now();
        for Part { name, limit, amount } in parts {
            if let Some(refusal) = self.recall(name, limit, *amount, asked_at) {
                return Ok(JointDecision::of(self.caller.told(name, limit, refusal, 1, asked_at)));
            }
        }
        let decision = self.caller.decide_all("TB.MTAKE", Vec::new(), parts, self.how()).await?;
        for (Part { name, limit, amount }, own) in parts.iter().zip(&decision.each) {
            self.remember(name, limit, *amount, *own, asked_at);
        }
        Ok(decision)
    }

    /// Returns the denial of such a take that this process remembers, if it still holds: see [`Options::remember_denials`].
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter, Options};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = Options::new().remember_denials(1000);
    /// let limiter = Limiter::with_options(&Fake::new().server(), Limit::new(1, "1/h")?, options);
    /// limiter.take("user:42", 1).await?;
    /// assert!(limiter.remembered("user:42", 1).is_none());
    /// limiter.take("user:42", 1).await?; // denied by the server
    /// assert!(limiter.remembered("user:42", 1).is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn remembered(&self, name: &str, cost: impl Into<Amount>) -> Option<Decision> {
        let refusal =
            self.caller.memory.denials.as_ref()?.recall(name, &self.limit, cost.into(), self.now())?;
        Some(self.caller.passing(refusal, 1))
    }

    /// Takes `amount` until the hold is settled or, if its process dies, until `ttl` (1 ms to 30 days) is over. The hold renews
    /// itself as long as it lives.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(1000, "1000/m")?);
    /// let hold = limiter.hold("user:42", 500, Duration::from_secs(30)).await?; // the most that the work may cost
    /// hold.set_used(120)?; // what it did cost
    /// assert_eq!(hold.settle().await?.binding.remaining, 880);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Denied`] if the bucket has too little.
    pub async fn hold(&self, name: &str, amount: impl Into<Amount>, ttl: Duration) -> Result<Hold, Error> {
        self.hold_all(&[Part::new(name, &self.limit, amount)], ttl).await
    }

    /// Holds every amount or none, each under the limit of its own.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter, Part};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(60, "60/m")?);
    /// let tokens = Limit::new(10_000, "10000/m")?;
    /// let parts = [Part::new("{ada}:requests", limiter.limit(), 1), Part::new("{ada}:tokens", &tokens, 400)];
    /// let hold = limiter.hold_all(&parts, Duration::from_secs(30)).await?;
    /// hold.set_used_of(1, 120)?; // of the second part
    /// assert_eq!(hold.settle().await?.each[1].remaining, 9880);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn hold_all(&self, parts: &[Part], ttl: Duration) -> Result<Hold, Error> {
        Hold::make(self.caller.clone(), parts.to_vec(), ttl, self.how()).await
    }

    /// Holds every amount or none under this id, which [`settle_as`](Self::settle_as) ends in this process or another. Nothing
    /// renews it. The same call again takes nothing more. If [`OnError`](crate::OnError) decides, there is no hold: one
    /// that the server makes late is ended.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter, Part};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(&Fake::new().server(), Limit::new(60, "60/m")?);
    /// let tokens = Limit::new(10_000, "10000/m")?;
    /// let parts = [Part::new("{ada}:requests", limiter.limit(), 1), Part::new("{ada}:tokens", &tokens, 400)];
    /// limiter.hold_as("call-1", &parts, Duration::from_secs(30)).await?;
    /// // In this process or another:
    /// assert!(limiter.settle_as("call-1", &parts).await?.allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn hold_as(&self, id: &str, parts: &[Part], ttl: Duration) -> Result<JointDecision, Error> {
        let before = vec![ttl.as_millis().to_string(), id.to_owned()];
        let how = How { begins: Some(ttl), ends_late: true, ..self.how() };
        self.caller.decide_all("TB.MHOLD", before, parts, how).await
    }

    /// Ends the hold of this id with what was used of each part: see [`hold_as`](Self::hold_as). A part without such a hold is
    /// denied and stays as it is. Sent once: see [`Decision::lost`]. It may be sent again, because a hold ends once.
    pub async fn settle_as(&self, id: &str, parts: &[Part]) -> Result<JointDecision, Error> {
        let settled = self.caller.decide_all("TB.MSETTLE", vec![id.to_owned()], parts, How::default()).await;
        self.caller.came_back(parts.iter().map(|part| (part.name.as_str(), &part.limit)));
        settled
    }

    /// Gives back what batches have left.
    ///
    /// ```
    /// use tokenbucket_client::{fake::Fake, Limit, Limiter, Options};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let options = Options::new().batch(10);
    /// let limiter = Limiter::with_options(&Fake::new().server(), Limit::new(100, "100/s")?, options);
    /// limiter.take("user:42", 1).await?; // fetches ten
    /// limiter.close().await?; // gives nine back
    /// assert_eq!(limiter.peek("user:42", 0).await?.remaining, 99);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(&self) -> Result<(), Error> {
        let mut closed = Ok(());
        for request in self.caller.memory.batches.as_ref().map(Batches::close).unwrap_or_default() {
            // One that the server refuses keeps no other.
            let answer = self.caller.server.transport().ask(&request, Duration::ZERO).await;
            closed = closed.and(answer.map(drop));
        }
        closed
    }

    #[cfg(feature = "tower")]
    pub(crate) fn on_error(&self) -> OnError {
        self.caller.options.on_error
    }

    /// The denials that are remembered. Calls that wait do without.
    fn denials(&self) -> Option<&Denials> {
        self.caller.memory.denials.as_ref().filter(|_| self.max_wait.is_zero())
    }

    fn now(&self) -> Duration {
        self.caller.server.now()
    }

    fn recall(&self, name: &str, limit: &Limit, cost: Amount, now: Duration) -> Option<Decision> {
        self.denials()?.recall(name, limit, cost, now)
    }

    fn remember(&self, name: &str, limit: &Limit, cost: Amount, decision: Decision, asked_at: Duration) {
        if let Some(denials) = self.denials() {
            denials.remember(name, limit, cost, decision, (asked_at, self.now()));
        }
    }

    async fn decide(&self, operation: &'static str, name: &str, words: Words) -> Result<Decision, Error> {
        self.caller.decide(operation, name, &self.limit, words, How::default(), self.now()).await
    }

    fn how(&self) -> How<'_> {
        How { max_wait: self.max_wait, share: self.share.as_ref(), ..How::default() }
    }

    /// None for takes that no batch serves.
    async fn take_from_batch(
        &self,
        name: &str,
        cost: Amount,
        began: Duration,
    ) -> Result<Option<Decision>, Error> {
        let Some(batches) = self.caller.memory.batches.as_ref().filter(|_| self.max_wait.is_zero()) else {
            return Ok(None);
        };
        let most = batches.size.min(self.limit.whole_capacity());
        let Some(tokens) = cost.as_whole().filter(|tokens| *tokens <= most) else { return Ok(None) };
        let batch = batches.of(self.caller.server.transport(), name, &self.limit, || self.caller.key(name));
        let recall = || self.recall(name, &self.limit, cost, began);
        let decision = if let Some(decision) = batch.spend(tokens, began).or_else(recall) {
            decision
        } else {
            match batch.fetched(tokens, batches.size).await? {
                None => return Ok(None),
                Some(Verdict::Decided(decision)) => {
                    self.remember(name, &self.limit, cost, decision, began);
                    decision
                }
                Some(Verdict::Away(node)) => {
                    let take =
                        Request::one("TB.TAKE", self.caller.key(name), &self.limit, [Some(cost), None]);
                    self.caller.without_server(&node, &take)?.binding
                }
            }
        };
        Ok(Some(self.caller.told(name, &self.limit, decision, 1, began)))
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { caller: Caller { options, .. }, limit, .. } = self;
        f.debug_struct("Limiter").field("limit", limit).field("options", options).finish_non_exhaustive()
    }
}
