//! What is held for one piece of work.

use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{watch, OnceCell};

use crate::api::caller::{Caller, How, Sent};
use crate::transport::background::{detached, timeout, warn};
use crate::transport::locked::locked;
use crate::values::rules::SETTLED_AGAIN_AFTER;
use crate::values::{each_once, random_bits, Amount, Decision, Error, JointDecision, Part, Request};

const LOG: &str = "tokenbucket_client::hold";

/// Tokens that are reserved for a piece of work until they are settled, or its process dies.
///
/// It renews itself while it lives, unless it is [lost](Self::lost). [`settle`](Self::settle) ends it: what was not used
/// comes back, what was used beyond the hold is charged. Dropping it does the same in the background.
///
/// Work admitted during an outage gets a hold in this process. The first renewal after reconnecting acquires it on the
/// server, if there is room, and the settlement charges in any case.
///
/// ```
/// use std::time::Duration;
/// use tokenbucket_client::{fake::Fake, Limit, Limiter, Part};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let jobs = Limiter::new(&Fake::new().server(), Limit::new(3, 0)?);
/// let hold = jobs.hold("import", 1, Duration::from_secs(30)).await?; // at most three at a time
/// tokio::select! {
///     _ = hold.lost() => {} // stop: other calls may have the place
///     _ = async { /* the work */ } => {}
/// }
/// hold.settle().await?;
///
/// let tokens = Limiter::new(&Fake::new().server(), Limit::new(1000, "1000/m")?);
/// let hold = tokens.hold("user:42", 500, Duration::from_secs(30)).await?; // the most that the work may cost
/// hold.set_used(120)?; // what it did cost
/// assert_eq!(hold.settle().await?.binding.remaining, 880);
///
/// let parts = ["{ada}:in", "{ada}:out"].map(|name| Part::new(name, tokens.limit(), 500));
/// let both = tokens.hold_all(&parts, Duration::from_secs(30)).await?;
/// assert_eq!(both.decision().each[1].remaining, 500);
/// both.set_used_of(1, 30)?;
/// assert_eq!(both.settle().await?.each[1].remaining, 970);
/// assert!(!both.is_lost());
/// # Ok(())
/// # }
/// ```
#[must_use = "it is settled when it is dropped"]
pub struct Hold(Arc<Inner>);

pub(crate) struct Inner {
    caller: Arc<Caller>,
    ttl: Duration,
    id: String,
    sent: Sent,
    /// Set once the server has had the hold.
    is_known: AtomicBool,
    /// Set once this process may have it as well.
    is_local: AtomicBool,
    is_lost: watch::Sender<bool>,
    /// Each part with what was used of it.
    used: Mutex<Vec<Part>>,
    /// The names of what fills up the alternative, of which there is no hold.
    fillers: Mutex<Vec<String>>,
    /// The parts of the other alternatives.
    others: Mutex<Vec<Part>>,
    decision: Mutex<JointDecision>,
    /// Whether renewals may still be sent. Locked while one is under way: one that arrives after the settlement
    /// would hold again.
    is_open: tokio::sync::Mutex<bool>,
    over: tokio::sync::Notify,
    settled: OnceCell<Result<JointDecision, Error>>,
}

impl Hold {
    pub(crate) async fn make(
        caller: Arc<Caller>,
        parts: Vec<Part>,
        ttl: Duration,
        how: How<'_>,
    ) -> Result<Self, Error> {
        let inner = Arc::new(Inner {
            caller,
            used: Mutex::new(parts.iter().map(unreported).collect()),
            sent: Sent::default(),
            is_known: AtomicBool::new(false),
            is_local: AtomicBool::new(false),
            is_lost: watch::Sender::new(false),
            ttl,
            id: format!("{:016x}{:016x}", random_bits(), random_bits()),
            fillers: Mutex::default(),
            others: Mutex::default(),
            decision: Mutex::default(),
            is_open: tokio::sync::Mutex::new(true),
            over: tokio::sync::Notify::new(),
            settled: OnceCell::new(),
        });
        let decision = inner.set(&parts, How { begins: Some(ttl), ..how }).await?;
        if !decision.allowed() {
            return Err(Error::Denied(decision));
        }
        let parts = match how.each.and_then(|each| decision.alternative(&parts, each)) {
            Some(granted) => inner.choose(granted, &parts)?,
            None => parts,
        };
        if decision.binding.shadowed {
            // Nothing is held, so nothing is renewed or settled.
            inner.settled.set(Ok(decision)).ok();
            return Ok(Self(inner));
        }
        let transport = &inner.caller.server.transport;
        // The server forgets at once what holds nothing.
        let held: Vec<Part> = parts.into_iter().filter(|part| !part.amount.is_zero()).collect();
        // Not those of a fake, whose time stands still.
        if transport.clock().is_real() && !held.is_empty() {
            transport.spawn(inner.clone().renew_until_over(held));
        }
        Ok(Self(inner))
    }

    /// Reports how much the work used of its only limit: see [`set_used_of`](Self::set_used_of).
    ///
    /// # Errors
    ///
    /// Returns the same as [`set_used_of`](Self::set_used_of).
    pub fn set_used(&self, used: impl Into<Amount>) -> Result<(), Error> {
        self.set_used_of(0, used)
    }

    /// Reports how much the work used of one of several limits, by its place in the call. What is not reported counts as
    /// used, and slots of a pool (rate 0) come back.
    ///
    /// # Errors
    ///
    /// Returns [`Error::BadArgument`] if there is no such limit, or it is not a number of tokens, or not 0 of a pool. The hold stays as
    /// it was.
    pub fn set_used_of(&self, place: usize, used: impl Into<Amount>) -> Result<(), Error> {
        let used = used.into().checked("TB.MSETTLE")?;
        let mut parts = locked(&self.0.used);
        let no_such_limit = || Error::BadArgument(format!("used: the hold has no limit at place {place}"));
        let part = parts.get_mut(place).ok_or_else(no_such_limit)?;
        if part.limit.is_pool() && !used.is_zero() {
            return Err(Error::BadArgument(format!(
                "used: {used} of a pool (rate 0), whose slots all come back"
            )));
        }
        part.amount = used;
        Ok(())
    }

    /// Returns whether the server no longer has the hold: see [`lost`](Self::lost).
    pub fn is_lost(&self) -> bool {
        *self.0.is_lost.borrow()
    }

    /// Waits until the server no longer has the hold: the process was suspended, or the server away, for more than half of
    /// the `ttl`, or a failover lost it, or every renewal for a whole `ttl` was [`Refused`](Error::Refused). A server that refuses
    /// writes (`NOREPLICAS`, `READONLY`) counts as away. Others may have the tokens, so stop the work: use it in a `select!` beside
    /// it. The next renewal finds out, within a third of the `ttl`, or when the server is back. A lost hold is not taken anew.
    pub async fn lost(&self) {
        let _ = self.0.is_lost.subscribe().wait_for(|is_lost| *is_lost).await;
    }

    /// Returns the first decision, then that of the last renewal. [`granted`](crate::Decision::granted) stays that of the first.
    pub fn decision(&self) -> JointDecision {
        locked(&self.0.decision).clone()
    }

    /// Ends the hold with what the work used, and waits for the reply. Happens once: the second call returns what the first
    /// did. If the caller stops waiting, it goes on in the background. If the server is away or the reply is lost, the hold is
    /// settled by its id once the server is back.
    ///
    /// # Errors
    ///
    /// Returns the same as [`Limiter::settle_as`](crate::Limiter::settle_as).
    pub async fn settle(&self) -> Result<JointDecision, Error> {
        let inner = self.0.clone();
        detached(async move { inner.settle().await }).await
    }
}

/// What a hold used of one limit if its work does not report it: an exception or an early return must not make work free.
fn unreported(part: &Part) -> Part {
    let amount = if part.limit.is_pool() { 0.into() } else { part.amount };
    Part { amount, ..part.clone() }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.0.settled.initialized() {
            return;
        }
        let inner = self.0.clone();
        self.0.caller.server.transport.spawn(async move {
            if let Err(error) = inner.settle().await {
                warn(LOG, format!("a hold was not settled: {error}"));
            }
        });
    }
}

impl Inner {
    /// Makes it last `ttl` from now, and takes it if the server has never had it.
    async fn set(&self, parts: &[Part], how: How<'_>) -> Result<JointDecision, Error> {
        let before = vec![self.ttl.as_millis().to_string(), self.id.clone()];
        let renews = self.is_known.load(Ordering::Relaxed);
        let how = How { renews, sent: Some(&self.sent), ..how };
        let mut decision = match how.each {
            None => self.caller.decide("TB.MHOLD", before, parts, how).await?,
            Some(each) => {
                let before = [vec![each.to_string()], before].concat();
                self.caller.decide("TB.HOLDANY", before, parts, how).await?
            }
        };
        let mut last = locked(&self.decision);
        if how.begins.is_none() {
            decision.binding.granted = last.binding.granted;
        }
        last.clone_from(&decision);
        drop(last);
        self.is_local.fetch_or(decision.binding.degraded, Ordering::Relaxed);
        if !decision.binding.degraded {
            self.is_known.fetch_or(decision.allowed() && !decision.binding.shadowed, Ordering::Relaxed);
            if renews && !decision.allowed() {
                self.is_lost.send_replace(true);
            }
        }
        Ok(decision)
    }

    /// Has the granted alternative alone. If the policy granted it, the server may hold another, which is ended.
    fn choose(&self, granted: &[Part], all: &[Part]) -> Result<Vec<Part>, Error> {
        *locked(&self.used) = granted.iter().map(unreported).collect();
        let fillers = granted.iter().filter(|part| part.amount.is_zero());
        *locked(&self.fillers) = fillers.map(|part| part.name.clone()).collect();
        let is_other = |part: &&Part| granted.iter().all(|own| own.name != part.name || own.amount.is_zero());
        let others = each_once(&all.iter().filter(is_other).cloned().collect::<Vec<_>>());
        let is_in_doubt =
            locked(&self.decision).binding.degraded && self.sent.is_sent.load(Ordering::Relaxed);
        if let Some(end) =
            (is_in_doubt && !others.is_empty()).then(|| self.settlement(&others)).transpose()?
        {
            self.settle_later(end.to_end().unwrap_or(end), &others, Duration::ZERO);
        }
        *locked(&self.others) = others;
        Ok(granted.to_vec())
    }

    /// Renews it three times in each `ttl`, and four times as often while the server is away: an outage of half the `ttl` loses
    /// no hold.
    async fn renew_until_over(self: Arc<Self>, held: Vec<Part>) {
        let server = &self.caller.server;
        let (mut pause, mut renewed_at) = (self.ttl / 3, server.now());
        loop {
            let _ = timeout(pause, self.over.notified()).await;
            let is_open = self.is_open.lock().await;
            if !*is_open || *self.is_lost.borrow() {
                return;
            }
            let now = server.now();
            pause = match self.set(&held, How::default()).await {
                Ok(decision) if !decision.binding.degraded => {
                    renewed_at = now;
                    self.ttl / 3
                }
                Ok(_) | Err(Error::ServerAway(_)) => self.ttl / 12,
                Err(error) => {
                    warn(LOG, format!("a hold was not renewed: {error}"));
                    let is_over = now.saturating_sub(renewed_at) >= self.ttl;
                    if is_over && self.is_known.load(Ordering::Relaxed) {
                        self.is_lost.send_replace(true);
                    }
                    self.ttl / 3
                }
            };
        }
    }

    async fn settle(&self) -> Result<JointDecision, Error> {
        self.settled.get_or_init(|| self.settle_once()).await.clone()
    }

    /// Sent once: a second "not there" could mean that the first has settled. If the server does not reply, it is sent again
    /// later, and charges nothing then if the hold is not there.
    async fn settle_once(&self) -> Result<JointDecision, Error> {
        *self.is_open.lock().await = false;
        self.over.notify_one();
        let fillers = locked(&self.fillers).clone();
        let is_settled = |part: &&Part| !part.amount.is_zero() || !fillers.contains(&part.name);
        let parts: Vec<Part> = locked(&self.used).iter().filter(is_settled).cloned().collect();
        if parts.is_empty() {
            return Ok(locked(&self.decision).clone());
        }
        let mut settled =
            self.caller.decide("TB.MSETTLE", vec![self.id.clone()], &parts, How::default()).await;
        match &mut settled {
            Ok(decision) if !decision.binding.degraded => self.finish(decision, &parts).await?,
            Ok(_) | Err(Error::ServerAway(_) | Error::ReplyLost(_))
                if self.sent.is_sent.load(Ordering::Relaxed) =>
            {
                self.settle_later(self.settlement(&parts)?, &parts, SETTLED_AGAIN_AFTER);
            }
            _ => {}
        }
        settled
    }

    async fn finish(&self, settled: &mut JointDecision, parts: &[Part]) -> Result<(), Error> {
        if self.sent.is_in_doubt.load(Ordering::Relaxed) {
            // A call without a reply may come now, and hold anew.
            let all = each_once(&[parts, &locked(&self.others)].concat());
            let end = self.settlement(&all)?;
            self.settle_later(end.to_end().unwrap_or(end), &all, SETTLED_AGAIN_AFTER);
        }
        let mut charged = Ok(());
        for (part, own) in parts.iter().zip(&mut settled.each) {
            if !own.allowed && !part.amount.is_zero() {
                // It had expired, or the server was away when the work began.
                let used = slice::from_ref(part);
                match self.caller.decide("TB.CHARGE", Vec::new(), used, How::default()).await {
                    Ok(JointDecision { binding: Decision { degraded, lost, .. }, .. }) => {
                        for decision in [own, &mut settled.binding] {
                            decision.degraded |= degraded;
                            decision.lost |= lost;
                        }
                    }
                    // One that the server refuses keeps no other.
                    Err(error) => charged = charged.and(Err(error)),
                }
            }
        }
        if self.is_local.load(Ordering::Relaxed) {
            self.caller.server.decide_locally(&self.settlement(parts)?)?;
        }
        charged
    }

    fn settle_later(&self, settle: Request, parts: &[Part], after: Duration) {
        self.caller.server.settle_later(settle, self.ttl, after, self.caller.came_back(parts));
    }

    fn settlement(&self, parts: &[Part]) -> Result<Request, Error> {
        Request::new("TB.MSETTLE", vec![self.id.clone()], &self.caller.options.prefix, parts, None)
    }
}
