//! How long a call waits for a server.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::transport::background::{timeout, until};
use crate::transport::node::Node;
use crate::transport::Transport;
use crate::values::error::Why;

/// A call is given up at this many timeouts, or this age, even if others are answered.
const TIMEOUTS_OF_A_CALL: u32 = 10;
const LEAST_AGE_OF_A_CALL: Duration = Duration::from_secs(1);
/// A timer that fires so much later shows that this process is busy.
const LATE: Duration = Duration::from_millis(5);
/// Between such timers, when a wait is over.
const CHECK: Duration = Duration::from_millis(1);
const CHECKS: u32 = 3;

impl Transport {
    /// The age at which a call is given up.
    pub(super) fn most_age(&self) -> Duration {
        (self.0.options.timeout * TIMEOUTS_OF_A_CALL).max(LEAST_AGE_OF_A_CALL)
    }

    /// Waits for the reply to a call that was sent at that time, or for a connection. The server is silent if for the timeout
    /// nothing came from it, to this call or another, not counting the time in which this process was busy.
    pub(super) async fn listen<T>(
        &self,
        mut since: Duration,
        node: &Node,
        mut reply: impl Future<Output = T> + Unpin,
    ) -> Result<T, Why> {
        let timeout = self.0.options.timeout;
        let too_old_at = since + self.most_age();
        loop {
            let mut is_late = false;
            let mut due = (since.max(node.heard()) + timeout).min(too_old_at);
            for _ in 0..=CHECKS {
                if let Some(value) = until(self.clock().instant(due), &mut reply).await {
                    return Ok(value);
                }
                let now = self.now();
                // Then this process was too busy to read what has arrived.
                is_late |= now > due + LATE;
                due = now + CHECK;
            }
            let now = self.now();
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

    /// Waits for the reply to a call that the server may keep until then. Such a call says nothing about the server: where no
    /// other has heard from it, the background finds out whether it is there.
    pub(super) async fn listen_long<T>(
        &self,
        until: Duration,
        node: &Arc<Node>,
        mut reply: impl Future<Output = T> + Unpin,
    ) -> Result<T, Why> {
        let (since, most_age) = (self.now(), self.most_age());
        loop {
            let left = until.saturating_sub(self.now());
            if left.is_zero() {
                return self.listen(self.now(), node, reply).await;
            }
            if let Some(value) = timeout(left.min(most_age / 2), &mut reply).await {
                return Ok(value);
            }
            let quiet = self.now().saturating_sub(since.max(node.heard()));
            if quiet >= most_age && node.is_away() {
                return Err(Why::Silent(self.0.options.timeout));
            }
            if quiet >= most_age / 2 {
                self.look_at(node);
            }
        }
    }
}
