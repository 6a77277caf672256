//! An in-memory server with a clock that your test controls.
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use tokenbucket_client::{fake::Fake, sync::Limiter, Limit};
//!
//! let fake = Fake::new();
//! let limiter = Limiter::new(&fake.server(), Limit::new(1, "1/s")?);
//! assert!(limiter.take("alice", 1)?.allowed);
//! assert!(!limiter.take("alice", 1)?.allowed);
//! fake.advance(Duration::from_secs(1));
//! assert!(limiter.take("alice", 1)?.allowed);
//! fake.set_away(true);
//! assert!(limiter.take("alice", 1)?.degraded); // this process decides
//!
//! let fake = Fake::at(SystemTime::UNIX_EPOCH + Duration::from_secs(86_399)); // a second before midnight
//! let daily = Limiter::new(&fake.server(), Limit::new(1, "1@d")?);
//! assert_eq!(daily.take("alice", 1)?.reset_after_ms, 1000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It decides as the module does, to the micro-token. Its clock begins at midnight UTC on January 1st, 2026, or at
//! [`Fake::at`]. Holds are not renewed in the background, and a reservation sleeps by advancing the time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use redis::{Cmd, Value};

use crate::local::limiter::LocalLimiter;
use crate::transport::locked::locked;
use crate::values::Failure;

const YEAR_2026_S: u64 = 1_767_225_600;

/// A server in memory; clones are the same one.
#[derive(Clone)]
pub struct Fake(Arc<Mutex<State>>);

struct State {
    is_away: bool,
    limiter: LocalLimiter,
}

impl Fake {
    /// Makes a server on which every bucket is full.
    pub fn new() -> Self {
        Self::at(SystemTime::UNIX_EPOCH + Duration::from_secs(YEAR_2026_S))
    }

    /// Makes a server whose clock begins at this moment, kept to the microsecond.
    pub fn at(now: SystemTime) -> Self {
        let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut limiter = LocalLimiter::unbounded();
        limiter.now_us = i64::try_from(since_1970.as_micros()).unwrap_or(0);
        Self(Arc::new(Mutex::new(State { is_away: false, limiter })))
    }

    /// Lets time pass, for buckets and for what limiters remember. Kept to the microsecond.
    pub fn advance(&self, time: Duration) {
        let us = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let mut state = locked(&self.0);
        state.limiter.now_us = state.limiter.now_us.saturating_add(us);
    }

    /// Begins an outage, or ends it.
    pub fn set_away(&self, is_away: bool) {
        locked(&self.0).is_away = is_away;
    }

    pub(crate) fn run(&self, command: &Cmd) -> Result<Value, Failure> {
        let mut state = locked(&self.0);
        if state.is_away {
            let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            return Err(Failure::NotConnected(refused.into()));
        }
        state.limiter.run(command).map_err(Failure::Replied)
    }

    pub(crate) fn since_1970(&self) -> Duration {
        Duration::from_micros(locked(&self.0).limiter.now_us.try_into().unwrap_or(0))
    }
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}
