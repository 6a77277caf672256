//! The operations.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, Value};

use crate::batches::{Batch, Batches, Shared};
use crate::decision::{Decision, JointDecision};
use crate::denials::Denials;
use crate::error::Error;
use crate::hold::Hold;
use crate::limit::Limit;
use crate::options::{OnError, Options};
use crate::request::{Amount, Part, Request};
use crate::server::{How, Server};

/// One limit for many names, each of which has a bucket of its own; clones share everything.
///
/// Of threads, see [`sync::Limiter`](crate::sync::Limiter), which has the same methods.
#[derive(Clone)]
pub struct Limiter {
    server: Server,
    limit: Limit,
    options: Options,
    memory: Arc<Memory>,
}

/// What a limiter knows without asking.
struct Memory {
    denials: Option<Denials>,
    batches: Option<Batches>,
}

impl Limiter {
    /// With all options at their defaults.
    pub fn new(server: &Server, limit: Limit) -> Self {
        Self::with_options(server, limit, Options::new())
    }

    /// With these options.
    pub fn with_options(server: &Server, limit: Limit, options: Options) -> Self {
        let memory =
            Memory { denials: Denials::new(options.remember_denials), batches: Batches::new(options.batch) };
        Self { server: server.clone(), limit, options, memory: Arc::new(memory) }
    }

    /// The same limiter with another limit, for a caller who has one of its own.
    #[must_use]
    pub fn with_limit(&self, limit: Limit) -> Self {
        Self { limit, ..self.clone() }
    }

    /// The limit that it was made with.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Takes `cost` tokens if the bucket holds them, else nothing.
    ///
    /// # Errors
    ///
    /// What is the caller's mistake, here and everywhere: see [`Error`].
    pub async fn take(&self, name: &str, cost: impl Into<Amount>) -> Result<Decision, Error> {
        let (cost, asked_at) = (cost.into(), self.now());
        if let Some((batch, tokens)) = self.batch_for(name, cost, asked_at) {
            return self.take_from(batch, name, tokens).await;
        }
        let Some(denials) = &self.memory.denials else { return self.decide("TAKE", name, &[cost], 1).await };
        if let Some(refusal) = denials.recall(name, &self.limit, cost, asked_at) {
            self.tell(name, &refusal, asked_at);
            return Ok(refusal);
        }
        let decision = self.decide("TAKE", name, &[cost], 1).await?;
        denials.remember(name, &self.limit, cost, decision, (asked_at, self.now()));
        Ok(decision)
    }

    /// What [`take`](Self::take) would decide; takes nothing. Of cost 0, what there is.
    pub async fn peek(&self, name: &str, cost: impl Into<Amount>) -> Result<Decision, Error> {
        self.decide("PEEK", name, &[cost.into()], 1).await
    }

    /// Takes as many whole tokens as there are, at most `most`: see [`Decision::granted`].
    pub async fn take_up_to(&self, name: &str, most: u64) -> Result<Decision, Error> {
        self.decide("TAKEUPTO", name, &[most.into()], most).await
    }

    /// Takes `cost`, into debt if need be, and sleeps until it is this caller's turn. Denied, at once and without a
    /// token taken, if that would be longer than `max_wait`. A wait that is broken off gives the tokens back.
    pub async fn reserve(
        &self,
        name: &str,
        cost: impl Into<Amount>,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        let cost = cost.into();
        let decision = self.reserve_only(name, cost, max_wait).await?;
        if let Some(wait) = decision.retry_after().filter(|wait| decision.allowed && !wait.is_zero()) {
            let mut turn = Turn { limiter: self, name, cost, has_come: false };
            self.server.transport.sleep(wait).await;
            turn.has_come = true;
        }
        Ok(decision)
    }

    /// The same without sleeping: the caller waits for `retry_after_ms` before it acts.
    pub async fn reserve_only(
        &self,
        name: &str,
        cost: impl Into<Amount>,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        let max_wait_ms = u64::try_from(max_wait.as_millis()).unwrap_or(u64::MAX);
        self.decide("RESERVE", name, &[cost.into(), max_wait_ms.into()], 1).await
    }

    /// Takes `amount` in any case, into debt if need be.
    pub async fn charge(&self, name: &str, amount: impl Into<Amount>) -> Result<Decision, Error> {
        self.decide("CHARGE", name, &[amount.into()], 1).await
    }

    /// Puts `amount` back, never above the capacity.
    pub async fn give(&self, name: &str, amount: impl Into<Amount>) -> Result<Decision, Error> {
        if let Some(denials) = &self.memory.denials {
            denials.forget(name, &self.limit);
        }
        self.decide("GIVE", name, &[amount.into()], 1).await
    }

    /// Takes from every bucket or from none, each under the limit of its own.
    pub async fn take_all(&self, parts: &[Part]) -> Result<JointDecision, Error> {
        self.decide_all("MTAKE", Vec::new(), parts, How::default()).await
    }

    /// Takes `amount` until the hold is settled, or for `ttl` if its holder is gone. It renews itself as long as it
    /// lives.
    ///
    /// # Errors
    ///
    /// [`Error::Denied`] if there is no room.
    pub async fn hold(&self, name: &str, amount: impl Into<Amount>, ttl: Duration) -> Result<Hold, Error> {
        self.hold_all(&[Part::new(name, &self.limit, amount)], ttl).await
    }

    /// Holds every amount or none, each under the limit of its own.
    pub async fn hold_all(&self, parts: &[Part], ttl: Duration) -> Result<Hold, Error> {
        Hold::make(self.clone(), parts.to_vec(), ttl).await
    }

    /// Gives back what batches have left.
    pub async fn close(&self) -> Result<(), Error> {
        let batches = self.memory.batches.as_ref().map(Batches::drain).unwrap_or_default();
        for ((name, limit), batch) in batches {
            let left = batch.lock().await.drain(self.now());
            if left > 0 {
                self.with_limit(limit).give(&name, left).await?;
            }
        }
        Ok(())
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    fn now(&self) -> Duration {
        self.server.transport.now()
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.options.prefix)
    }

    fn by_policy(&self, granted: u64) -> Decision {
        let is_open = self.options.on_error == OnError::Open;
        Decision::by_policy(is_open, if is_open { granted } else { 0 }, self.options.retry_every)
    }

    fn tell(&self, name: &str, decision: &Decision, began: Duration) {
        self.tell_of(name, &self.limit, decision, began);
    }

    fn tell_of(&self, name: &str, limit: &Limit, decision: &Decision, began: Duration) {
        let took = self.now().saturating_sub(began);
        #[cfg(feature = "tracing")]
        trace(&self.key(name), limit, decision, took);
        if let Some(hook) = &self.options.hook {
            hook(name, limit, decision, took);
        }
    }

    /// `granted` by a policy that is open.
    async fn decide(
        &self,
        operation: &'static str,
        name: &str,
        amounts: &[Amount],
        granted: u64,
    ) -> Result<Decision, Error> {
        let began = self.now();
        let decision = self.ask(operation, name, amounts).await?.unwrap_or_else(|| self.by_policy(granted));
        self.tell(name, &decision, began);
        Ok(decision)
    }

    /// The server's decision; None if it does not decide.
    async fn ask(
        &self,
        operation: &'static str,
        name: &str,
        amounts: &[Amount],
    ) -> Result<Option<Decision>, Error> {
        let words = amounts.iter().map(Amount::to_string).collect();
        let request = Request::one(operation, self.key(name), &self.limit, words);
        read(self.server.ask(&request, How::default(), &self.options).await?)
    }

    pub(crate) async fn decide_all(
        &self,
        operation: &'static str,
        before: Vec<String>,
        parts: &[Part],
        how: How,
    ) -> Result<JointDecision, Error> {
        let began = self.now();
        let request = Request::joint(operation, before, &self.options.prefix, parts);
        let reply = read(self.server.ask(&request, how, &self.options).await?)?;
        let decision =
            reply.unwrap_or_else(|| JointDecision { binding: self.by_policy(1), each: Vec::new() });
        for (place, part) in parts.iter().enumerate() {
            let own = decision.each.get(place).unwrap_or(&decision.binding);
            self.tell_of(&part.name, &part.limit, own, began);
        }
        Ok(decision)
    }

    /// The batch from which a take of whole tokens is served; None for all others.
    fn batch_for(&self, name: &str, cost: Amount, now: Duration) -> Option<(Shared, u64)> {
        let batches = self.memory.batches.as_ref()?;
        let tokens = cost.as_whole().filter(|tokens| *tokens <= batches.size)?;
        Some((batches.of(name, &self.limit, now), tokens))
    }

    async fn take_from(&self, batch: Shared, name: &str, cost: u64) -> Result<Decision, Error> {
        let began = self.now();
        let decision = self.spend(&mut *batch.lock().await, name, cost).await?;
        let decision = decision.unwrap_or_else(|| self.by_policy(1));
        self.tell(name, &decision, began);
        Ok(decision)
    }

    /// From the batch, if need be after fetching another. None if the server would have to decide and does not.
    async fn spend(&self, batch: &mut Batch, name: &str, cost: u64) -> Result<Option<Decision>, Error> {
        let asked_at = self.now();
        if batch.left(asked_at) >= cost {
            return Ok(Some(batch.spend(cost, asked_at)));
        }
        if let Some(refusal) = self
            .memory
            .denials
            .as_ref()
            .and_then(|denials| denials.recall(name, &self.limit, cost.into(), asked_at))
        {
            return Ok(Some(refusal));
        }
        let size = self.memory.batches.as_ref().map_or(1, |batches| batches.size);
        let Some(fetched) = self.ask("TAKEUPTO", name, &[size.into()]).await? else { return Ok(None) };
        batch.add(&self.limit, fetched, asked_at);
        let now = self.now();
        if batch.left(now) >= cost {
            return Ok(Some(batch.spend(cost, now)));
        }
        self.deny(batch, name, cost, fetched).await
    }

    /// What there is does not suffice. It goes back, so that the bucket alone says when it will.
    async fn deny(
        &self,
        batch: &mut Batch,
        name: &str,
        cost: u64,
        fetched: Decision,
    ) -> Result<Option<Decision>, Error> {
        let asked_at = self.now();
        let left = batch.drain(asked_at);
        if left > 0 {
            self.ask("GIVE", name, &[left.into()]).await?;
        }
        let mut denial = fetched;
        if fetched.granted > 0 || cost > 1 {
            // That reply was not about this cost.
            let Some(peeked) = self.ask("PEEK", name, &[cost.into()]).await? else { return Ok(None) };
            denial = peeked;
        }
        if denial.retry_after_ms == 0 {
            // They have flowed in since.
            denial.retry_after_ms = 1;
        }
        denial = Decision { allowed: false, granted: 0, ..denial };
        if let Some(denials) = &self.memory.denials {
            denials.remember(name, &self.limit, cost.into(), denial, (asked_at, self.now()));
        }
        Ok(Some(denial))
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server: _, limit, options, memory: _ } = self;
        f.debug_struct("Limiter").field("limit", limit).field("options", options).finish_non_exhaustive()
    }
}

fn read<T: FromRedisValue>(reply: Option<Value>) -> Result<Option<T>, Error> {
    reply.map(T::from_redis_value).transpose().map_err(|error| Error::Refused(error.into()))
}

#[cfg(feature = "tracing")]
fn trace(key: &str, limit: &Limit, decision: &Decision, took: Duration) {
    let Decision { allowed, remaining, retry_after_ms, degraded, .. } = *decision;
    tracing::debug!(key, %limit, allowed, remaining, retry_after_ms, degraded, ?took, "decided");
}

/// A reservation whose turn is to come. If nobody waits for it any longer, the tokens go back.
struct Turn<'a> {
    limiter: &'a Limiter,
    name: &'a str,
    cost: Amount,
    has_come: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.has_come {
            return;
        }
        let (limiter, name, cost) = (self.limiter.clone(), self.name.to_owned(), self.cost);
        self.limiter.server.transport.spawn(Box::pin(async move {
            if let Err(error) = limiter.give(&name, cost).await {
                log::warn!("a reservation was not given back: {error}");
            }
        }));
    }
}
