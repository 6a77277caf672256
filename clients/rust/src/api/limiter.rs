//! The operations.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, slice};

use scopeguard::{guard, ScopeGuard};

use crate::api::batches::Batches;
use crate::api::caller::{Caller, How};
use crate::api::denials::Denials;
use crate::api::hold::Hold;
use crate::api::options::Options;
use crate::api::server::Server;
use crate::transport::ask::Answer;
use crate::values::{Amount, Decision, Error, JointDecision, Limit, Part, Request, Share};

/// One limit for many names. Each name has a bucket of its own, at prefix + name: see [`take`](Self::take). Clones share
/// everything.
///
/// For threads, see [`sync::Limiter`](crate::sync::Limiter), which has the same methods.
///
/// ```
/// use std::time::Duration;
/// use tokenbucket_client::{fake::Fake, Limit, Limiter, Part};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new(&Fake::new().server(), Limit::new(10, "5/s")?);
/// assert!(limiter.take("ada", 8).await?.allowed);
/// let denied = limiter.take("ada", 8).await?;
/// assert_eq!((denied.remaining, denied.retry_after_ms), (2, 1200));
/// assert_eq!(limiter.take_up_to("ada", 25).await?.granted, 2);
/// assert_eq!(limiter.give("ada", 3).await?.remaining, 3);
/// assert_eq!(limiter.charge("ada", 4).await?.remaining, -1);
/// let reserved = limiter.reserve("ada", 1, Duration::from_secs(1)).await?;
/// assert_eq!((reserved.allowed, reserved.retry_after_ms), (true, 400)); // sleep, then act
/// limiter.reset("ada").await?;
/// assert_eq!(limiter.peek("ada", 0).await?.remaining, 10);
///
/// let premium = limiter.with_limit(Limit::new(100, "50/s")?);
/// let parts = [Part::new("{bob}:calls", limiter.limit(), 1), Part::new("{bob}:tokens", premium.limit(), 40)];
/// let decision = limiter.take_all(&parts).await?;
/// assert_eq!([decision.each[0].remaining, decision.each[1].remaining], [9, 60]);
/// limiter.hold_as("call-1", &parts, Duration::from_secs(30)).await?;
/// assert!(limiter.settle_as("call-1", &parts).await?.allowed()); // in this process or another
///
/// // While calls of both wait, acme gets three times as many tokens.
/// let patient = limiter.with_max_wait(Duration::from_secs(60));
/// assert!(patient.with_share("acme", 3)?.take("model", 10).await?.allowed);
/// assert!(patient.with_share("other", 1)?.take("model", 10).await?.allowed); // two seconds later
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Limiter {
    pub(crate) caller: Arc<Caller>,
    batches: Option<Arc<Batches>>,
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
    pub fn with_options(server: &Server, limit: Limit, options: Options) -> Self {
        let denials = Denials::new(options.remember_denials, options.remember_denials_for);
        let batches = Batches::new(options.batch).map(Arc::new);
        let caller = Arc::new(Caller { server: server.clone(), options, denials: denials.map(Arc::new) });
        Self { caller, batches, limit, max_wait: Duration::ZERO, share: None }
    }

    /// Returns this limiter with another limit, for a caller that has its own. Of a name, both remember one denial, the last, and
    /// each has a batch.
    pub fn with_limit(&self, limit: Limit) -> Self {
        Self { limit, ..self.clone() }
    }

    /// Returns this limiter, whose takes and holds now wait in the server for up to `max_wait` (at most 30 days) instead of
    /// being denied, in the order in which they came. When the time is over, the decision is the denial of that moment.
    ///
    /// Dropping the call leaves the queue. Batches and remembered denials are for calls that do not wait. While the server is
    /// away, `on_error` decides without a wait. With the [script](Server::by_script) the client asks again after
    /// each `retry_after`, in no order.
    pub fn with_max_wait(&self, max_wait: Duration) -> Self {
        Self { max_wait, ..self.clone() }
    }

    /// Returns this limiter, whose calls now wait as those of a tenant: tenants that wait for the same bucket get tokens in
    /// proportion to their weights, so that many waiting calls of one do not hold up another. Calls without a share are one
    /// tenant of weight 1. Calls of several buckets with a share are an error.
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
    /// # Errors
    ///
    /// Returns [`Error::BadArgument`] for a cost that is none, [`Error::Refused`] and [`Error::ModuleMissing`] for what the server
    /// refuses, and [`Error::ServerAway`] with `OnError::Error` alone.
    pub async fn take(&self, name: &str, cost: impl Into<Amount>) -> Result<Decision, Error> {
        let part = Part::new(name, &self.limit, cost);
        if let Some(decision) = self.take_from_batch(&part).await? {
            return Ok(decision);
        }
        Ok(self.take_all(slice::from_ref(&part)).await?.binding)
    }

    /// Returns what [`take`](Self::take) would decide, and takes nothing. With cost 0, `remaining` is what the bucket has.
    ///
    /// # Errors
    ///
    /// Returns the same as [`take`](Self::take).
    pub async fn peek(&self, name: &str, cost: impl Into<Amount>) -> Result<Decision, Error> {
        self.decide("TB.PEEK", name, cost, Vec::new()).await
    }

    /// Takes as many whole tokens as there are, at most `most`: see [`Decision::granted`].
    ///
    /// # Errors
    ///
    /// Returns the same as [`take`](Self::take).
    pub async fn take_up_to(&self, name: &str, most: u64) -> Result<Decision, Error> {
        self.decide("TB.TAKEUPTO", name, most, Vec::new()).await
    }

    /// Books a place in the queue: sleep `retry_after_ms`, then act. Denied, without taking a token, if the wait would exceed
    /// `max_wait`.
    ///
    /// # Errors
    ///
    /// Returns the same as [`take`](Self::take).
    pub async fn reserve(
        &self,
        name: &str,
        cost: impl Into<Amount>,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        let max_wait_ms = max_wait.as_millis().to_string();
        let decision = self.decide("TB.RESERVE", name, cost, vec![max_wait_ms]).await?;
        Ok(if self.caller.options.shadow { Decision { retry_after_ms: 0, ..decision } } else { decision })
    }

    /// Reserves, and sleeps until it may act: see [`reserve`](Self::reserve). A call that is dropped while it sleeps gives its
    /// tokens back. Dropped before that, it may have reserved: its tokens are lost.
    ///
    /// # Errors
    ///
    /// Returns the same as [`reserve`](Self::reserve).
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
            let transport = &caller.server.transport;
            let give = Request::one("TB.GIVE", caller.key(name), limit, cost);
            let came_back = || caller.came_back(&[Part::new(name, limit, cost)]);
            let leaves = guard((), |()| match decision.degraded {
                true => drop(caller.server.decide_locally(&give)),
                false => transport.send_once(Some(give), came_back()),
            });
            transport.clock().sleep(wait).await;
            ScopeGuard::into_inner(leaves);
        }
        Ok(decision)
    }

    /// Takes `amount` in any case, into debt if need be. Sent once: see [`Decision::lost`].
    ///
    /// # Errors
    ///
    /// Returns the same as [`take`](Self::take), and [`Error::ReplyLost`].
    pub async fn charge(&self, name: &str, amount: impl Into<Amount>) -> Result<Decision, Error> {
        self.decide("TB.CHARGE", name, amount, Vec::new()).await
    }

    /// Puts `amount` back, never above the capacity. Sent once: see [`Decision::lost`].
    ///
    /// # Errors
    ///
    /// Returns the same as [`take`](Self::take), and [`Error::ReplyLost`].
    pub async fn give(&self, name: &str, amount: impl Into<Amount>) -> Result<Decision, Error> {
        self.decide("TB.GIVE", name, amount, Vec::new()).await
    }

    /// Makes the bucket full: deletes its key.
    ///
    /// # Errors
    ///
    /// Returns [`Error::ServerAway`] under every policy, and what the server refuses.
    pub async fn reset(&self, name: &str) -> Result<(), Error> {
        let Self { caller, batches, limit, .. } = self;
        let transport = &caller.server.transport;
        // At the end, whatever it is: with what was fetched meanwhile.
        let _forgets = guard(batches, |batches| {
            if let Some(batches) = batches {
                batches.forget(name);
            }
            caller.came_back(&[Part::new(name, limit, 0)])();
        });
        let request = Request::one("DEL", caller.key(name), limit, 0);
        caller.server.decide_locally(&request)?;
        match transport.ask(&request, Duration::ZERO).await? {
            Answer::Away(node) => Err(Error::ServerAway(node.failure())),
            Answer::Reply(_) | Answer::Lost(_) => Ok(()),
        }
    }

    /// Takes from every bucket or from none, each under the limit of its own. A remembered denial of one of them
    /// refuses all; [`remembered`](Self::remembered) says which.
    ///
    /// # Errors
    ///
    /// Returns the same as [`take`](Self::take), and [`Error::CrossSlot`] in a cluster.
    pub async fn take_all(&self, parts: &[Part]) -> Result<JointDecision, Error> {
        let asked_at = self.now();
        let denials = self.denials();
        for part in parts {
            if let Some(refusal) = denials.and_then(|denials| denials.recall(part, asked_at)) {
                return Ok(JointDecision::of(self.caller.reported(part, refusal, asked_at)));
            }
        }
        let decision = self.caller.decide("TB.MTAKE", Vec::new(), parts, self.how()).await?;
        if let Some(denials) = denials {
            let times = (asked_at, self.now());
            parts.iter().zip(&decision.each).for_each(|(part, own)| denials.remember(part, *own, times));
        }
        Ok(decision)
    }

    /// Takes the first of several alternatives that allows it, each as [`take_all`](Self::take_all) would: an account or the
    /// next one, the quota of a plan and then credits. [`granted`](Decision::granted) is its number, from 1. All alternatives have
    /// the same number of parts: fill one up with an amount of 0. In a cluster all names share a hash tag.
    ///
    /// # Errors
    ///
    /// Returns the same as [`take_all`](Self::take_all), and [`Error::BadArgument`] if this limiter waits or has a share.
    pub async fn take_any(&self, alternatives: &[Vec<Part>]) -> Result<JointDecision, Error> {
        let each = self.each_of(alternatives)?;
        let how = How { each: Some(each), ..How::default() };
        self.caller.decide("TB.TAKEANY", vec![each.to_string()], &alternatives.concat(), how).await
    }

    /// Returns the denial of such a take that this process remembers, if it still holds: see [`Options::remember_denials`].
    pub fn remembered(&self, name: &str, cost: impl Into<Amount>) -> Option<Decision> {
        let denials = self.caller.denials.as_ref()?;
        let refusal = denials.recall(&Part::new(name, &self.limit, cost), self.now())?;
        Some(self.caller.passing(refusal, 1))
    }

    /// Takes `amount` until the hold is settled or, if its process dies, until `ttl` (1 ms to 30 days) is over. The hold renews
    /// itself as long as it lives: see [`Hold`].
    ///
    /// # Errors
    ///
    /// Returns [`Error::Denied`] if the bucket has too little, and the same as [`take`](Self::take).
    pub async fn hold(&self, name: &str, amount: impl Into<Amount>, ttl: Duration) -> Result<Hold, Error> {
        self.hold_all(&[Part::new(name, &self.limit, amount)], ttl).await
    }

    /// Holds every amount or none, each under the limit of its own.
    ///
    /// # Errors
    ///
    /// Returns the same as [`hold`](Self::hold), and [`Error::CrossSlot`] in a cluster.
    pub async fn hold_all(&self, parts: &[Part], ttl: Duration) -> Result<Hold, Error> {
        Hold::make(self.caller.clone(), parts.to_vec(), ttl, self.how()).await
    }

    /// Holds the amounts of the first alternative that allows it: see [`take_any`](Self::take_any). The hold has the parts of that
    /// alternative.
    ///
    /// # Errors
    ///
    /// Returns the same as [`hold_all`](Self::hold_all) and [`take_any`](Self::take_any).
    pub async fn hold_any(&self, alternatives: &[Vec<Part>], ttl: Duration) -> Result<Hold, Error> {
        let how = How { each: Some(self.each_of(alternatives)?), ..How::default() };
        Hold::make(self.caller.clone(), alternatives.concat(), ttl, how).await
    }

    /// Returns how many parts each alternative has.
    fn each_of(&self, alternatives: &[Vec<Part>]) -> Result<usize, Error> {
        let each = alternatives.first().map_or(0, Vec::len);
        let problem = if each == 0 {
            "no limit is named"
        } else if alternatives.iter().any(|parts| parts.len() != each) {
            "alternatives: all must have the same number of parts: an amount of 0 fills one up"
        } else if !self.max_wait.is_zero() || self.share.is_some() {
            "alternatives: such a call neither waits nor has a share"
        } else {
            return Ok(each);
        };
        Err(Error::BadArgument(problem.to_owned()))
    }

    /// Holds every amount or none under this id, which [`settle_as`](Self::settle_as) ends in this process or another. Nothing
    /// renews it. The same call again takes nothing more, and the `ttl` begins anew.
    ///
    /// If [`OnError`](crate::OnError) decides, or the call is dropped, there is no hold: one that the server makes late is ended,
    /// unless the same call is made again with this [`Server`]. Where an earlier call made the hold, that may end it too: repeat the
    /// call until the server decides. Calls of one id come one after the other: one that is dropped may end the hold of another that
    /// was made meanwhile.
    ///
    /// # Errors
    ///
    /// Returns the same as [`take_all`](Self::take_all). A denial is a decision.
    pub async fn hold_as(&self, id: &str, parts: &[Part], ttl: Duration) -> Result<JointDecision, Error> {
        let before = vec![ttl.as_millis().to_string(), id.to_owned()];
        let how = How { begins: Some(ttl), ends_late: true, ..self.how() };
        self.caller.decide("TB.MHOLD", before, parts, how).await
    }

    /// Ends the hold of this id with what was used of each part: see [`hold_as`](Self::hold_as). A part without such a hold is
    /// denied and stays as it is. Sent once: see [`Decision::lost`]. It may be sent again, because a hold ends once.
    ///
    /// # Errors
    ///
    /// Returns the same as [`take_all`](Self::take_all), and [`Error::ReplyLost`].
    pub async fn settle_as(&self, id: &str, parts: &[Part]) -> Result<JointDecision, Error> {
        let Caller { server, options, .. } = &*self.caller;
        let before = vec![id.to_owned()];
        let settled = self.caller.decide("TB.MSETTLE", before.clone(), parts, How::default()).await?;
        // This process may have held it while the server was away.
        if !settled.binding.degraded && server.degraded_count() > 0 {
            server.decide_locally(&Request::new("TB.MSETTLE", before, &options.prefix, parts, None)?)?;
        }
        Ok(settled)
    }

    /// Gives back what batches have left.
    ///
    /// # Errors
    ///
    /// Returns what the server refuses. While it is away, the tokens are lost, without an error.
    pub async fn close(&self) -> Result<(), Error> {
        let mut closed = Ok(());
        for request in self.batches.as_deref().map(Batches::close).unwrap_or_default() {
            // One that the server refuses keeps no other.
            let answer = self.caller.server.transport.ask(&request, Duration::ZERO).await;
            closed = closed.and(answer.map(drop));
        }
        closed
    }

    /// The denials that are remembered. Calls that wait do without.
    fn denials(&self) -> Option<&Denials> {
        self.caller.denials.as_deref().filter(|_| self.max_wait.is_zero())
    }

    fn now(&self) -> Duration {
        self.caller.server.now()
    }

    async fn decide(
        &self,
        operation: &'static str,
        name: &str,
        amount: impl Into<Amount>,
        before: Vec<String>,
    ) -> Result<Decision, Error> {
        let part = Part::new(name, &self.limit, amount);
        let parts = slice::from_ref(&part);
        Ok(self.caller.decide(operation, before, parts, How::default()).await?.binding)
    }

    fn how(&self) -> How<'_> {
        How { max_wait: self.max_wait, share: self.share.as_ref(), ..How::default() }
    }

    /// None for takes that no batch serves.
    async fn take_from_batch(&self, part: &Part) -> Result<Option<Decision>, Error> {
        let Some(batches) = self.batches.as_deref().filter(|_| self.max_wait.is_zero()) else {
            return Ok(None);
        };
        let most = batches.size.min(self.limit.whole_capacity());
        let Some(tokens) = part.amount.as_whole().filter(|tokens| *tokens <= most) else { return Ok(None) };
        let (began, batch) = (self.now(), batches.of(&self.caller, part));
        let denials = self.denials();
        let recall = || denials.and_then(|denials| denials.recall(part, began));
        let decision = match batch.spend(tokens, began).or_else(recall) {
            Some(decision) => decision,
            None => {
                let Some(decision) = batch.fetched(tokens, batches.size).await? else { return Ok(None) };
                if let Some(denials) = denials {
                    denials.remember(part, decision, (began, self.now()));
                }
                decision
            }
        };
        Ok(Some(self.caller.reported(part, decision, began)))
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { caller, limit, .. } = self;
        f.debug_struct("Limiter")
            .field("limit", limit)
            .field("options", &caller.options)
            .finish_non_exhaustive()
    }
}
