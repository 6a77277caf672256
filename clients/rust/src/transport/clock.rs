//! The time that a server's clients go by.

use std::time::{Duration, Instant, SystemTime};

#[cfg(feature = "fake")]
use crate::local::fake::Fake;
use crate::transport::background;

pub(crate) enum Clock {
    Real {
        began: Instant,
        since_1970: Duration,
    },
    #[cfg(feature = "fake")]
    Fake(Fake),
}

impl Clock {
    pub(crate) fn real() -> Self {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::Real { began: Instant::now(), since_1970 }
    }

    pub(crate) fn is_real(&self) -> bool {
        matches!(self, Self::Real { .. })
    }

    /// The time since some moment in the past.
    pub(crate) fn now(&self) -> Duration {
        match self {
            Self::Real { began, .. } => began.elapsed(),
            #[cfg(feature = "fake")]
            Self::Fake(fake) => fake.since_1970(),
        }
    }

    pub(crate) fn since_1970(&self) -> Duration {
        match self {
            Self::Real { began, since_1970 } => *since_1970 + began.elapsed(),
            #[cfg(feature = "fake")]
            Self::Fake(fake) => fake.since_1970(),
        }
    }

    /// For timers, which are of the real time alone.
    pub(crate) fn instant(&self, at: Duration) -> tokio::time::Instant {
        match self {
            Self::Real { began, .. } => (*began + at).into(),
            #[cfg(feature = "fake")]
            Self::Fake(_) => tokio::time::Instant::now(),
        }
    }

    /// Sleeps; the time of a fake passes at once.
    pub(crate) async fn sleep(&self, time: Duration) {
        match self {
            Self::Real { .. } => background::sleep(time).await,
            #[cfg(feature = "fake")]
            Self::Fake(fake) => fake.advance(time),
        }
    }
}
