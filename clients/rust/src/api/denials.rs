//! Denials remembered, so that a flood is refused without asking.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::time::Duration;

use lru::LruCache;

use crate::transport::locked::locked;
use crate::values::{Amount, Decision, Limit, Part};

/// Remembers the last denial of each name, of a bounded number of names.
///
/// The server decided some time between the question and its reply. Refuses for no longer than if it was at
/// the question; the waits that it reports count from the reply, so that they are long enough.
pub(crate) struct Denials {
    denials: Mutex<LruCache<String, Denial>>,
    /// The last time: the server may have denied what was asked before that, and before the tokens came back.
    forgotten_at: Mutex<Duration>,
    longest: Duration,
}

struct Denial {
    limit: Limit,
    cost: Amount,
    decision: Decision,
    asked_at: Duration,
    heard_at: Duration,
}

impl Denials {
    pub(crate) fn new(names: usize, longest: Duration) -> Option<Self> {
        // Made with its bound, it would allocate room for all names at once.
        let mut denials = LruCache::unbounded();
        denials.resize(NonZeroUsize::new(names)?);
        Some(Self { denials: Mutex::new(denials), forgotten_at: Mutex::default(), longest })
    }

    /// The denial that still holds for such a cost; one of cost 5 says nothing about cost 1, or about what can never be had.
    pub(crate) fn recall(&self, part: &Part, now: Duration) -> Option<Decision> {
        let mut denials = locked(&self.denials);
        let denial = denials.get(&part.name)?;
        if now >= denial.asked_at + denial.decision.retry_after()?.min(self.longest) {
            denials.pop(&part.name);
            return None;
        }
        let decision = || denial.decision.later(now.saturating_sub(denial.heard_at), 1);
        let is_of_limit = part.limit == denial.limit && part.limit.ever_holds(part.amount);
        let is_covered = is_of_limit && part.amount >= denial.cost;
        is_covered.then(|| Decision { remembered: true, ..decision() })
    }

    pub(crate) fn remember(
        &self,
        part: &Part,
        decision: Decision,
        (asked_at, heard_at): (Duration, Duration),
    ) {
        let is_denial = !decision.allowed || decision.shadowed;
        let mut denials = locked(&self.denials);
        let is_late = asked_at < *locked(&self.forgotten_at);
        if is_denial && !is_late && !decision.degraded && decision.retry_after_ms > 0 {
            let denial =
                Denial { limit: part.limit.clone(), cost: part.amount, decision, asked_at, heard_at };
            denials.put(part.name.clone(), denial);
        }
    }

    /// Tokens have come back, by whatever limit: the denial may no longer hold.
    pub(crate) fn forget(&self, name: &str, now: Duration) {
        let mut denials = locked(&self.denials);
        denials.pop(name);
        *locked(&self.forgotten_at) = now;
    }
}
