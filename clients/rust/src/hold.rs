//! What is held for one piece of work.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_lock::OnceCell;

use crate::decision::{random_bits, JointDecision};
use crate::error::Error;
use crate::limiter::Limiter;
use crate::request::{Amount, Part};
use crate::server::How;
use crate::transport::either;

/// Tokens that are held until they are settled, or their holder is gone.
///
/// It renews itself while it lives. [`settle`](Self::settle) ends it: what was not used comes back, what was used
/// beyond the hold is charged. Dropping it does the same in the background.
///
/// Work that was let through because the server was away has one too, which the first renewal after its return takes,
/// if there is room, and the settlement charges in any case.
#[must_use = "it is settled when it is dropped"]
pub struct Hold {
    inner: Arc<Inner>,
    is_settled: bool,
}

pub(crate) struct Inner {
    limiter: Limiter,
    /// Each with the amount that is held.
    parts: Vec<Part>,
    ttl: Duration,
    id: String,
    used: Mutex<Vec<Amount>>,
    decision: Mutex<JointDecision>,
    /// Whether renewals may still be sent. Locked while one is under way: one that arrives after the settlement
    /// would hold again.
    is_open: async_lock::Mutex<bool>,
    over: OnceCell<()>,
}

impl Hold {
    pub(crate) async fn make(limiter: Limiter, parts: Vec<Part>, ttl: Duration) -> Result<Self, Error> {
        let inner = Arc::new(Inner {
            limiter,
            used: Mutex::new(vec![Amount::from(0); parts.len()]),
            parts,
            ttl,
            id: format!("{:016x}{:016x}", random_bits(), random_bits()),
            decision: Mutex::default(),
            is_open: async_lock::Mutex::new(true),
            over: OnceCell::new(),
        });
        // Settled also if nobody waits for the reply.
        let mut hold = Self { inner: inner.clone(), is_settled: false };
        let decision = inner.renew().await;
        hold.is_settled = !decision.as_ref().is_ok_and(JointDecision::allowed);
        let decision = decision?;
        if !decision.allowed() {
            return Err(Error::Denied(decision));
        }
        let transport = &inner.limiter.server().transport;
        if transport.renews_holds() {
            transport.spawn(Box::pin(inner.clone().renew_until_over()));
        }
        Ok(hold)
    }

    /// How much the work used, of its only limit; nothing unless it is told.
    pub fn set_used(&self, used: impl Into<Amount>) {
        self.set_used_of(0, used);
    }

    /// How much it used of one of several limits, by its place in the call.
    pub fn set_used_of(&self, place: usize, used: impl Into<Amount>) {
        if let Some(one) = locked(&self.inner.used).get_mut(place) {
            *one = used.into();
        }
    }

    /// The decision by which it came to be, then that of the last renewal. Degraded: nobody was asked.
    pub fn decision(&self) -> JointDecision {
        locked(&self.inner.decision).clone()
    }

    /// Ends it with what the work used, and waits for the reply.
    pub async fn settle(mut self) -> Result<JointDecision, Error> {
        self.is_settled = true;
        self.inner.settle().await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let inner = self.inner.clone();
        self.inner.limiter.server().transport.spawn(Box::pin(async move {
            if let Err(error) = inner.settle().await {
                log::warn!("a hold was not settled: {error}");
            }
        }));
    }
}

impl Inner {
    async fn renew(&self) -> Result<JointDecision, Error> {
        let before = vec![self.ttl.as_millis().to_string(), self.id.clone()];
        let decision = self.limiter.decide_all("MHOLD", before, &self.parts, How::default()).await?;
        locked(&self.decision).clone_from(&decision);
        Ok(decision)
    }

    /// Three times in each `ttl`, so that one renewal may fail and the next still comes in time.
    async fn renew_until_over(self: Arc<Self>) {
        loop {
            either(wait_for(&self.over), self.limiter.server().transport.sleep(self.ttl / 3)).await;
            let is_open = self.is_open.lock().await;
            if !*is_open {
                return;
            }
            if let Err(error) = self.renew().await {
                log::warn!("a hold was not renewed: {error}");
            }
        }
    }

    /// Asked also while the server is thought to be away: what a settlement does not tell is lost. Sent once: a second
    /// "not there" could mean that the first has settled.
    async fn settle(&self) -> Result<JointDecision, Error> {
        *self.is_open.lock().await = false;
        let _ = self.over.set(()).await;
        let used = locked(&self.used).clone();
        let with_used = |(part, used): (&Part, Amount)| Part { amount: used, ..part.clone() };
        let parts: Vec<Part> = self.parts.iter().zip(used).map(with_used).collect();
        let how = How { always: true };
        let settled = self.limiter.decide_all("MSETTLE", vec![self.id.clone()], &parts, how).await?;
        for (part, own) in parts.iter().zip(&settled.each) {
            if !own.allowed && !part.amount.is_zero() {
                // It had expired, or nobody was asked when the work began.
                self.limiter.with_limit(part.limit.clone()).charge(&part.name, part.amount).await?;
            }
        }
        Ok(settled)
    }
}

async fn wait_for(event: &OnceCell<()>) {
    event.wait().await;
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
