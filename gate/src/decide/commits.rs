//! Ends reservations with what was used.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokenbucket_client::{Decision, Error, JointDecision, Limiter};
use tokio::sync::Semaphore;

use super::ask::{bound_debt, pay, shares};
use super::plan::{Call, Part};
use super::recent::Recent;
use super::reservation::Reservation;
use crate::counters::{add, OfReservations};

/// The memory for commits that are sent again, in KiB.
const MOST_KIB: usize = 16 << 10;

/// The memory of a call and of each of its parts, beside the names of buckets.
const BYTES_OF_PART: usize = 256;

/// The pauses between two attempts: each is twice the one before, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The result of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The commit ended the reservation.
    Released,
    /// Another commit has ended the reservation.
    EndedBefore,
    /// The reservation had expired; nothing is charged yet.
    Expired,
    /// Redis is away, and the policy has decided. The commit is sent again.
    Unsent,
}

/// A reservation and what was used.
pub(super) struct Commit {
    reservation: Reservation,
    used: u64,
    /// The buckets, with what is charged.
    calls: Vec<Call>,
    counters: Arc<OfReservations>,
    /// Says that a hold of it was there.
    was_there: bool,
    /// Says that Redis may have ended it already.
    may_be_done: bool,
}

/// Sends commits; clones share what they know.
#[derive(Clone)]
pub(super) struct Commits {
    limiter: Limiter,
    /// Reservations that were ended here.
    ended: Arc<Recent>,
    room: Arc<Semaphore>,
}

/// The result of one call.
enum Sent {
    /// One decision for each part.
    Settled(Vec<Decision>),
    /// Redis is away, or its reply was lost. There is no failure if `ON_ERROR` decides.
    Unsent { failure: Option<Error>, is_lost: bool },
}

impl Commits {
    pub(super) fn new(limiter: Limiter) -> Self {
        Self { limiter, ended: Arc::new(Recent::new()), room: Arc::new(Semaphore::new(MOST_KIB)) }
    }

    /// Ends the reservation once: at every gate as long as it lasts, and at this one afterwards too.
    ///
    /// # Errors
    ///
    /// Returns an error if Redis is away or refuses. If it is away, the commit is sent again.
    pub(super) async fn end(&self, mut commit: Commit) -> Result<End, Error> {
        let reservation = commit.reservation;
        if !self.ended.insert(&reservation) {
            return Ok(End::EndedBefore);
        }
        let sent = self.send(&commit).await.inspect_err(|_| self.ended.remove(&reservation))?;
        self.conclude(&mut commit, &sent).await?;
        if commit.calls.is_empty() {
            let is_over = reservation.time_left().is_none();
            return Ok(match (commit.was_there, is_over) {
                (true, _) => End::Released,
                (false, true) => End::Expired,
                // Its holds cannot have expired: another gate has ended them, or Redis has lost them.
                (false, false) => End::EndedBefore,
            });
        }
        self.send_again(commit);
        sent.into_iter().find_map(Sent::into_failure).map_or(Ok(End::Unsent), Err)
    }

    /// Applies the replies, and leaves in the commit the calls that have none.
    async fn conclude(&self, commit: &mut Commit, sent: &[Sent]) -> Result<(), Error> {
        commit.may_be_done |= sent.iter().any(Sent::may_be_done);
        if sent.iter().any(Sent::was_there) {
            self.finish(commit, sent).await?;
            if !commit.was_there {
                commit.count_released();
            }
            commit.was_there = true;
        }
        let mut sent = sent.iter();
        commit.calls.retain(|_| matches!(sent.next(), Some(Sent::Unsent { .. })));
        Ok(())
    }

    async fn send(&self, commit: &Commit) -> Result<Vec<Sent>, Error> {
        let id = commit.reservation.id();
        if let [call] = commit.calls.as_slice() {
            return Ok(vec![self.settle(&id, &call.parts).await?]);
        }
        let sends = commit.calls.iter().map(|call| self.settle(&id, &call.parts));
        join_all(sends).await.into_iter().collect()
    }

    async fn settle(&self, id: &str, parts: &[Part]) -> Result<Sent, Error> {
        match self.limiter.settle_as(id, &shares(parts)).await {
            Ok(JointDecision { binding, .. }) if binding.degraded => {
                Ok(Sent::Unsent { failure: None, is_lost: binding.lost })
            }
            Ok(joint) => Ok(Sent::Settled(joint.each)),
            Err(error @ (Error::ServerAway(_) | Error::ReplyLost(_))) => {
                let is_lost = matches!(error, Error::ReplyLost(_));
                Ok(Sent::Unsent { failure: Some(error), is_lost })
            }
            Err(error) => Err(error),
        }
    }

    /// Bounds the debt of the buckets that had the hold, and charges those that had none: a shadow that was over, or a bucket
    /// that was deleted.
    async fn finish(&self, commit: &Commit, sent: &[Sent]) -> Result<(), Error> {
        for (call, sent) in commit.calls.iter().zip(sent) {
            let Sent::Settled(decisions) = sent else { continue };
            for (part, decision) in call.parts.iter().zip(decisions) {
                if decision.allowed {
                    bound_debt(&self.limiter, part, part.cost, decision.remaining).await?;
                } else if part.cost > 0 {
                    pay(&self.limiter, part).await?;
                }
            }
        }
        Ok(())
    }

    /// Sends the calls again in the background until the reservation is over, if there is memory for them.
    fn send_again(&self, mut commit: Commit) {
        let commits = self.clone();
        let Ok(room) = self.room.clone().try_acquire_many_owned(kib(&commit.calls)) else {
            self.lose(&commit);
            return;
        };
        tokio::spawn(async move {
            if commits.send_until_over(&mut commit).await {
                add(&commit.counters.commits_sent_again, 1);
            } else {
                commits.lose(&commit);
            }
            drop(room);
        });
    }

    /// Gives up. The gateway may commit again, unless that could charge twice.
    fn lose(&self, commit: &Commit) {
        add(&commit.counters.commits_lost, 1);
        if !commit.may_be_done {
            self.ended.remove(&commit.reservation);
        }
    }

    async fn send_until_over(&self, commit: &mut Commit) -> bool {
        let mut pause = FIRST_PAUSE;
        while let Some(left) = commit.reservation.time_left() {
            tokio::time::sleep(pause.min(left)).await;
            let concluded = match self.send(commit).await {
                Ok(sent) => self.conclude(commit, &sent).await,
                Err(error) => Err(error),
            };
            if let Err(error) = concluded {
                log::warn!("a commit was not sent again: {error}");
                return false;
            }
            if commit.calls.is_empty() {
                return true;
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        false
    }
}

impl Sent {
    fn was_there(&self) -> bool {
        matches!(self, Self::Settled(decisions) if decisions.iter().any(|decision| decision.allowed))
    }

    fn into_failure(self) -> Option<Error> {
        match self {
            Self::Unsent { failure, .. } => failure,
            Self::Settled(_) => None,
        }
    }

    fn may_be_done(&self) -> bool {
        self.was_there() || matches!(self, Self::Unsent { is_lost: true, .. })
    }
}

impl Commit {
    pub(super) fn new(
        reservation: Reservation,
        used: u64,
        calls: Vec<Call>,
        counters: Arc<OfReservations>,
    ) -> Self {
        Self { reservation, used, calls, counters, was_there: false, may_be_done: false }
    }

    fn count_released(&self) {
        let (held, used) = (self.reservation.amount(), self.used);
        add(&self.counters.committed, used);
        add(&self.counters.underestimated, used.saturating_sub(held));
        add(&self.counters.overestimated, held.saturating_sub(used));
    }
}

/// Returns the memory of these calls.
fn kib(calls: &[Call]) -> u32 {
    let of_call = |call: &Call| {
        BYTES_OF_PART + call.parts.iter().map(|part| BYTES_OF_PART + part.bucket.len()).sum::<usize>()
    };
    let bytes: usize = calls.iter().map(of_call).sum();
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}
