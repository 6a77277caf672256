//! The time that a server's clients go by.

use std::future::pending;
use std::time::{Duration, Instant, SystemTime};

#[cfg(feature = "fake")]
use crate::local::fake::Fake;
use crate::transport::background::timeout;

pub(crate) enum Clock {
    /// Steady from its first moment on, even if the system's clock is set.
    Real { began: Instant, began_at: Duration },
    #[cfg(feature = "fake")]
    Fake(Fake),
}

impl Clock {
    pub(crate) fn real() -> Self {
        let began_at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::Real { began: Instant::now(), began_at }
    }

    pub(crate) fn is_real(&self) -> bool {
        matches!(self, Self::Real { .. })
    }

    /// The time since 1970.
    pub(crate) fn now(&self) -> Duration {
        match self {
            Self::Real { began, began_at } => *began_at + began.elapsed(),
            #[cfg(feature = "fake")]
            Self::Fake(fake) => fake.since_1970(),
        }
    }

    /// Sleeps; the time of a fake passes at once.
    pub(crate) async fn sleep(&self, time: Duration) {
        match self {
            Self::Real { .. } => drop(timeout(time, pending::<()>()).await),
            #[cfg(feature = "fake")]
            Self::Fake(fake) => fake.advance(time),
        }
    }
}
