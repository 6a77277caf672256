//! How long a caller waits for a server.

use std::future::{poll_fn, Future};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::transport::background::{timeout, timeout_at};
use crate::transport::clock::Clock;
use crate::transport::node::Node;

/// A call is given up at this many timeouts, or this age, even if others are answered.
const TIMEOUTS_OF_A_CALL: u32 = 10;
const LEAST_AGE_OF_A_CALL: Duration = Duration::from_secs(1);
/// A timer that fires so much later shows that this process is busy.
const LATE: Duration = Duration::from_millis(5);
/// Between such timers, when a wait is over.
const CHECK: Duration = Duration::from_millis(1);
const CHECKS: u32 = 3;

/// Ends a wait after the timeout, not counting the time in which this process was busy.
pub(crate) struct Waiting {
    pub(crate) clock: Clock,
    pub(crate) timeout: Duration,
}

pub(crate) enum Heard<T> {
    Reply(T),
    /// Nothing to this call, while others are answered.
    Others,
}

enum Waited<T> {
    Done(T),
    InTime,
    Late,
}

impl Waiting {
    fn most_age(&self) -> Duration {
        (self.timeout * TIMEOUTS_OF_A_CALL).max(LEAST_AGE_OF_A_CALL)
    }

    /// The reply; None if the server is silent: for the timeout nothing came from it, to this call or another.
    pub(crate) async fn listen<T>(&self, node: &Node, reply: impl Future<Output = T>) -> Option<Heard<T>> {
        self.listen_since(self.clock.now(), node, pin!(reply)).await
    }

    /// The same for a call that was sent at that time.
    pub(crate) async fn listen_since<T>(
        &self,
        mut since: Duration,
        node: &Node,
        mut reply: impl Future<Output = T> + Unpin,
    ) -> Option<Heard<T>> {
        let timeout = self.timeout;
        let too_old_at = since + self.most_age();
        loop {
            let due = (since.max(node.heard()) + timeout).min(too_old_at);
            let is_late = match self.until(due, &mut reply).await {
                Waited::Done(value) => {
                    node.hear(self.clock.now());
                    return Some(Heard::Reply(value));
                }
                Waited::Late => true,
                Waited::InTime => false,
            };
            let now = self.clock.now();
            let is_silent = now >= since.max(node.heard()) + timeout;
            if now >= too_old_at {
                return (!is_silent).then_some(Heard::Others);
            }
            if is_silent && (!is_late || node.is_away()) {
                return None;
            }
            if is_late {
                since = now;
            }
        }
    }

    /// The reply to a call that the server may keep for so long; None if the server is silent. Such a call says nothing
    /// about the server: `look` finds out whether it is there when nobody else has heard from it.
    pub(crate) async fn listen_long<T>(
        &self,
        node: &Node,
        kept: Duration,
        reply: impl Future<Output = T>,
        look: impl Fn(),
    ) -> Option<Heard<T>> {
        let mut reply = pin!(reply);
        let (since, most_age) = (self.clock.now(), self.most_age());
        loop {
            let left = (since + kept).saturating_sub(self.clock.now());
            if left.is_zero() {
                return self.listen(node, reply).await;
            }
            if let Ok(value) = timeout(left.min(most_age / 2), reply.as_mut()).await {
                node.hear(self.clock.now());
                return Some(Heard::Reply(value));
            }
            let quiet = self.clock.now().saturating_sub(since.max(node.heard()));
            if quiet >= most_age && node.is_away() {
                return None;
            }
            if quiet >= most_age / 2 {
                look();
            }
        }
    }

    /// What comes within the timeout, by the time in which this process was not busy.
    pub(crate) async fn patiently<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        if let Some(value) = at_once(work.as_mut()).await {
            return Some(value);
        }
        let give_up_at = self.clock.now() + self.most_age();
        loop {
            match self.until(self.clock.now() + self.timeout, work.as_mut()).await {
                Waited::Done(value) => return Some(value),
                Waited::Late if self.clock.now() < give_up_at => {}
                _ => return None,
            }
        }
    }

    /// Waits until then, and a little longer: a process that was too busy to read what has arrived shows it by timers that
    /// fire late.
    async fn until<T>(&self, due: Duration, mut work: impl Future<Output = T> + Unpin) -> Waited<T> {
        let (mut due, mut is_late) = (due, false);
        for _ in 0..=CHECKS {
            if let Ok(value) = timeout_at(self.clock.instant(due), &mut work).await {
                return Waited::Done(value);
            }
            let now = self.clock.now();
            is_late |= now > due + LATE;
            due = now + CHECK;
        }
        if is_late {
            Waited::Late
        } else {
            Waited::InTime
        }
    }
}

/// The result, if it is there already.
pub(crate) async fn at_once<T>(mut work: impl Future<Output = T> + Unpin) -> Option<T> {
    poll_fn(|context| match pin!(&mut work).poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}
