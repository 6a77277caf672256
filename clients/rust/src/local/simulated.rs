//! The server behind a [`Fake`](crate::fake::Fake), in memory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, Value};

use crate::local::buckets::Buckets;
use crate::transport::locked::locked;
use crate::values::error::Failure;

/// Clones are the same one.
#[derive(Clone)]
pub(crate) struct Simulated(Arc<Mutex<State>>);

struct State {
    is_away: bool,
    buckets: Buckets,
}

impl Simulated {
    pub(crate) fn at(since_1970: Duration) -> Self {
        let mut buckets = Buckets::unbounded();
        buckets.now_us = i64::try_from(since_1970.as_micros()).unwrap_or(0);
        Self(Arc::new(Mutex::new(State { is_away: false, buckets })))
    }

    pub(crate) fn run(&self, commands: &[Cmd]) -> Result<Vec<Value>, Failure> {
        let mut state = locked(&self.0);
        if state.is_away {
            let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            return Err(Failure::NotConnected(refused.into()));
        }
        let replies = commands.iter().map(|command| state.buckets.run(command));
        replies.collect::<Result<_, _>>().map_err(Failure::Replied)
    }

    pub(crate) fn since_1970(&self) -> Duration {
        Duration::from_micros(locked(&self.0).buckets.now_us.try_into().unwrap_or(0))
    }

    /// Lets time pass.
    pub(crate) fn advance(&self, time: Duration) {
        let us = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let mut state = locked(&self.0);
        state.buckets.now_us = state.buckets.now_us.saturating_add(us);
    }

    pub(crate) fn set_away(&self, is_away: bool) {
        locked(&self.0).is_away = is_away;
    }

    /// Makes every bucket full.
    pub(crate) fn reset(&self) {
        locked(&self.0).buckets.clear();
    }
}
