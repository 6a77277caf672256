//! Ends reservations with what was used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokenbucket_client::{Error, JointDecision, Limiter};
use tokio::sync::{OnceCell, Semaphore};

use super::ask::{bound_debt, pay, shares};
use super::causes::Causes;
use super::plan::{most_held, Call, Part};
use super::recent::Recent;
use super::refusal::Refusal;
use super::reservation::Reservation;
use super::Policy;
use crate::counters::{add, OfReservations};

/// The memory for commits that are sent again, in KiB.
const MOST_KIB: usize = 16 << 10;

/// The memory of a task that sends a commit again, and of each part beside the name of its bucket.
const BYTES_OF_COMMIT: usize = 512;
const BYTES_OF_PART: usize = 256;

/// The pauses between two attempts: each is twice the one before, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    /// Another commit has ended the reservation.
    EndedBefore,
    /// The reservation had expired. What was used is charged.
    Expired,
    /// Redis is away, and the policy has decided. The commit is sent again.
    Unsent,
}

/// The reply to the first commit of a reservation, for which repeated ones wait.
pub(super) type First = Arc<OnceCell<Result<bool, Refusal>>>;

/// A reservation and what was used.
pub(super) struct Commit {
    reservation: Reservation,
    used: u64,
    /// The calls that end holds, as long as they have no reply.
    unsettled: Vec<Unsettled>,
    /// Buckets that had no hold. They are charged once a hold of another bucket was there, or all have expired.
    unpaid: Vec<Part>,
    counters: Arc<OfReservations>,
    /// Says that a hold of it was there.
    was_there: bool,
    /// Says that Redis may have charged some of it already.
    may_be_done: bool,
    /// Says that all its holds had expired when Redis last replied.
    is_over: bool,
}

/// A call that ends the holds of its buckets.
struct Unsettled {
    parts: Vec<Part>,
    /// Says that Redis may have ended them: the reply was lost.
    is_lost: bool,
}

pub(super) struct Commits {
    limiter: Limiter,
    policy: Policy,
    causes: Arc<Causes>,
    /// Reservations that were ended here.
    ended: Recent,
    /// Reservations whose commits are on their way.
    unfinished: Mutex<HashMap<Reservation, First>>,
    room: Arc<Semaphore>,
}

impl Commits {
    pub(super) fn new(limiter: Limiter, policy: Policy, causes: Arc<Causes>) -> Arc<Self> {
        let (ended, room) = (Recent::new(), Arc::new(Semaphore::new(MOST_KIB)));
        Arc::new(Self { limiter, policy, causes, ended, unfinished: Mutex::default(), room })
    }

    /// Returns the place of the reply to the first commit of this reservation; `None` once it has ended here.
    pub(super) fn first(&self, reservation: &Reservation) -> Option<First> {
        let mut unfinished = self.unfinished();
        if let Some(first) = unfinished.get(reservation) {
            return Some(first.clone());
        }
        let is_new = !self.ended.contains(reservation);
        is_new.then(|| unfinished.entry(*reservation).or_default().clone())
    }

    /// Ends the reservation once: at every gate as long as it lasts, and at this one afterwards too.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis is away or refuses. Until the reservation is over, the commit is sent again.
    pub(super) async fn end(self: &Arc<Self>, mut commit: Commit) -> Result<End, Error> {
        if commit.unsettled.is_empty() {
            // This gate has not read the limit yet: the gateway may commit again.
            self.unfinished().remove(&commit.reservation);
            return Ok(End::EndedBefore);
        }
        let failure = self.advance(&mut commit).await;
        if commit.is_done() {
            self.conclude(&commit.reservation);
            return Ok(match (commit.was_there, commit.is_over) {
                (true, _) => End::Released,
                (false, true) => End::Expired,
                // Its holds cannot have expired: another gate has ended them, or Redis has lost them.
                (false, false) => End::EndedBefore,
            });
        }
        if !commit.is_over {
            self.send_again(commit);
        } else if commit.may_be_done {
            self.lose(&commit);
        } else {
            // Nothing was charged: the gateway may commit again.
            self.unfinished().remove(&commit.reservation);
        }
        failure.map_or(Ok(End::Unsent), Err)
    }

    /// Sends what has no reply yet. Returns why something is left, unless the policy has decided.
    async fn advance(&self, commit: &mut Commit) -> Option<Error> {
        let id = commit.reservation.id();
        let sends =
            commit.unsettled.iter().map(async |call| self.limiter.settle_as(&id, &shares(&call.parts)).await);
        let replies = join_all(sends).await;
        commit.is_over = commit.reservation.time_left().is_none();
        let mut failure = None;
        for (mut call, reply) in std::mem::take(&mut commit.unsettled).into_iter().zip(replies) {
            match reply {
                Ok(joint) if !joint.binding.degraded => self.settled(commit, call, &joint).await,
                reply => {
                    call.is_lost |= match &reply {
                        Ok(joint) => joint.binding.lost,
                        Err(error) => matches!(error, Error::ReplyLost(_)),
                    };
                    commit.may_be_done |= call.is_lost;
                    commit.unsettled.push(call);
                    failure = failure.or(reply.err());
                }
            }
        }
        if commit.owes() {
            failure = failure.or(self.pay(commit).await);
        }
        failure
    }

    /// Bounds the debt of the buckets that had the hold, and notes those that had none: a shadow that was over, or a bucket
    /// that was deleted.
    async fn settled(&self, commit: &mut Commit, call: Unsettled, joint: &JointDecision) {
        for (part, decision) in call.parts.into_iter().zip(&joint.each) {
            if decision.allowed {
                let held = commit.reservation.amount().min(most_held(&part.rule, &self.policy));
                let charged = part.cost.saturating_sub(held);
                let bounded = bound_debt(&self.limiter, &part, charged, decision.remaining).await;
                if let Err(error) = bounded {
                    self.causes.log("a debt is not bounded", &error);
                }
            }
            if decision.allowed || call.is_lost {
                commit.note_there();
            } else if part.cost > 0 {
                commit.unpaid.push(part);
            }
        }
    }

    async fn pay(&self, commit: &mut Commit) -> Option<Error> {
        let mut failure = None;
        for part in std::mem::take(&mut commit.unpaid) {
            match pay(&self.limiter, &part).await {
                Ok(decision) if decision.allowed || !decision.degraded => commit.may_be_done = true,
                // It may have been charged, and must not be twice.
                Err(Error::ReplyLost(_)) => commit.may_be_done = true,
                reply => {
                    failure = failure.or(reply.err());
                    commit.unpaid.push(part);
                }
            }
        }
        failure
    }

    /// Sends the rest again in the background until the reservation is over, if there is memory for it.
    fn send_again(self: &Arc<Self>, mut commit: Commit) {
        let commits = self.clone();
        let Ok(room) = self.room.clone().try_acquire_many_owned(commit.kib()) else {
            self.lose(&commit);
            return;
        };
        tokio::spawn(async move {
            if commits.send_until_over(&mut commit).await {
                commits.conclude(&commit.reservation);
                add(&commit.counters.commits_sent_again, 1);
            } else {
                commits.lose(&commit);
            }
            drop(room);
        });
    }

    async fn send_until_over(&self, commit: &mut Commit) -> bool {
        let mut pause = FIRST_PAUSE;
        while let Some(left) = commit.reservation.time_left() {
            tokio::time::sleep(pause.min(left)).await;
            // Boxed: a commit that waits holds no memory for it.
            let failure = Box::pin(self.advance(commit)).await;
            // The client logs that Redis is away.
            if let Some(error) = failure.filter(|error| !matches!(error, Error::ServerAway(_))) {
                self.causes.log("commits wait", &error);
            }
            if commit.is_done() {
                return true;
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        false
    }

    /// Gives up. The gateway may commit again, unless that could charge twice.
    fn lose(&self, commit: &Commit) {
        add(&commit.counters.commits_lost, 1);
        if commit.may_be_done {
            self.conclude(&commit.reservation);
        } else {
            self.unfinished().remove(&commit.reservation);
        }
    }

    fn conclude(&self, reservation: &Reservation) {
        self.ended.insert(reservation);
        self.unfinished().remove(reservation);
    }

    fn unfinished(&self) -> MutexGuard<'_, HashMap<Reservation, First>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Commit {
    pub(super) fn new(
        reservation: Reservation,
        used: u64,
        calls: Vec<Call>,
        counters: Arc<OfReservations>,
    ) -> Self {
        let unsettled = |call: Call| Unsettled { parts: call.parts, is_lost: false };
        let unsettled = calls.into_iter().map(unsettled).collect();
        let (was_there, may_be_done, is_over) = (false, false, false);
        Self { reservation, used, unsettled, unpaid: Vec::new(), counters, was_there, may_be_done, is_over }
    }

    /// Returns whether buckets without a hold must be charged.
    fn owes(&self) -> bool {
        self.was_there || self.unsettled.is_empty() && self.is_over
    }

    fn is_done(&self) -> bool {
        self.unsettled.is_empty() && (self.unpaid.is_empty() || !self.owes())
    }

    /// Notes that a hold was there, and counts the first.
    fn note_there(&mut self) {
        if self.was_there {
            return;
        }
        (self.was_there, self.may_be_done) = (true, true);
        let (held, used) = (self.reservation.amount(), self.used);
        add(&self.counters.committed, used);
        add(&self.counters.underestimated, used.saturating_sub(held));
        add(&self.counters.overestimated, held.saturating_sub(used));
    }

    /// Returns the memory that it needs to be sent again.
    fn kib(&self) -> u32 {
        let parts = self.unsettled.iter().flat_map(|call| &call.parts).chain(&self.unpaid);
        let bytes: usize = parts.map(|part| BYTES_OF_PART + part.bucket.len()).sum();
        u32::try_from((BYTES_OF_COMMIT + bytes).div_ceil(1024)).unwrap_or(u32::MAX)
    }
}
