//! How long a call waits for a server.

use std::future::Future;
use std::time::Duration;

use crate::transport::background::{timeout, until};
use crate::transport::clock::Clock;
use crate::transport::node::Node;
use crate::values::error::Why;

/// A call is given up at this many timeouts, or this age, even if others are answered.
const TIMEOUTS_OF_A_CALL: u32 = 10;
const LEAST_AGE_OF_A_CALL: Duration = Duration::from_secs(1);
/// A timer that fires so much later shows that this process is busy.
const LATE: Duration = Duration::from_millis(5);
/// Between such timers, when a wait is over.
const CHECK: Duration = Duration::from_millis(1);
const CHECKS: u32 = 3;

/// Judges whether a server is silent, not counting the time in which this process was busy.
pub(crate) struct Silence {
    pub(crate) clock: Clock,
    pub(crate) timeout: Duration,
}

impl Silence {
    /// The age at which a call is given up.
    pub(crate) fn most_age(&self) -> Duration {
        (self.timeout * TIMEOUTS_OF_A_CALL).max(LEAST_AGE_OF_A_CALL)
    }

    /// Waits for the reply to a call that was sent at that time, or for a connection. The server is silent if for the timeout
    /// nothing came from it, to this call or another.
    pub(crate) async fn listen<T>(
        &self,
        mut since: Duration,
        node: &Node,
        mut reply: impl Future<Output = T> + Unpin,
    ) -> Result<T, Why> {
        let timeout = self.timeout;
        let too_old_at = since + self.most_age();
        loop {
            let due = (since.max(node.heard()) + timeout).min(too_old_at);
            let is_late = match self.until(due, &mut reply).await {
                Ok(value) => return Ok(value),
                Err(is_late) => is_late,
            };
            let now = self.clock.now();
            let is_silent = now >= since.max(node.heard()) + timeout;
            if is_silent && (now >= too_old_at || !is_late || node.is_away()) {
                return Err(Why::Silent(timeout));
            }
            if now >= too_old_at {
                return Err(Why::TooOld);
            }
            if is_late {
                since = now;
            }
        }
    }

    /// Waits for the reply to a call that the server may keep until then. Such a call says nothing about the server: `look`
    /// finds out whether it is there when no other call has heard from it.
    pub(crate) async fn listen_long<T>(
        &self,
        until: Duration,
        node: &Node,
        mut reply: impl Future<Output = T> + Unpin,
        look: impl Fn(),
    ) -> Result<T, Why> {
        let (since, most_age) = (self.clock.now(), self.most_age());
        loop {
            let left = until.saturating_sub(self.clock.now());
            if left.is_zero() {
                return self.listen(self.clock.now(), node, reply).await;
            }
            if let Some(value) = timeout(left.min(most_age / 2), &mut reply).await {
                return Ok(value);
            }
            let quiet = self.clock.now().saturating_sub(since.max(node.heard()));
            if quiet >= most_age && node.is_away() {
                return Err(Why::Silent(self.timeout));
            }
            if quiet >= most_age / 2 {
                look();
            }
        }
    }

    /// Waits until then, and a little longer. Otherwise returns whether timers fired late: then this process was too busy to
    /// read what has arrived.
    async fn until<T>(
        &self,
        mut due: Duration,
        mut work: impl Future<Output = T> + Unpin,
    ) -> Result<T, bool> {
        let mut is_late = false;
        for _ in 0..=CHECKS {
            if let Some(value) = until(self.clock.instant(due), &mut work).await {
                return Ok(value);
            }
            let now = self.clock.now();
            is_late |= now > due + LATE;
            due = now + CHECK;
        }
        Err(is_late)
    }
}
