//! A server in memory, whose time stands still until it is told otherwise: for tests of your own.
//!
//! ```
//! # use std::time::Duration;
//! use tokenbucket_client::fake::Fake;
//! use tokenbucket_client::{Limit, Limiter};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fake = Fake::new();
//! let limiter = Limiter::new(&fake.server(), Limit::new(1, "1/s")?);
//! assert!(limiter.take("alice", 1).await?.allowed);
//! assert!(!limiter.take("alice", 1).await?.allowed);
//! fake.advance(Duration::from_secs(1));
//! assert!(limiter.take("alice", 1).await?.allowed);
//! # Ok(())
//! # }
//! ```
//!
//! It decides as the module does, to the micro-token. Its calendar begins at midnight UTC of January 1st, 2026, or when it
//! is told, see [`Fake::at`]. Holds are not renewed in the background, and a reservation sleeps by advancing the time.

use std::time::{Duration, SystemTime};

use crate::api::options::ServerOptions;
use crate::api::server::Server;
use crate::local::simulated::Simulated;

const YEAR_2026_S: u64 = 1_767_225_600;

/// Stands where a server stands; clones are the same one.
#[derive(Clone)]
pub struct Fake(Simulated);

impl Fake {
    /// One on which every bucket is full.
    pub fn new() -> Self {
        Self::at(SystemTime::UNIX_EPOCH + Duration::from_secs(YEAR_2026_S))
    }

    /// The same, whose time begins at this moment, kept to the microsecond.
    pub fn at(now: SystemTime) -> Self {
        Self(Simulated::at(now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()))
    }

    /// For [`Limiter::new`](crate::Limiter::new).
    pub fn server(&self) -> Server {
        self.server_with(ServerOptions::new())
    }

    /// The same with these options.
    pub fn server_with(&self, options: ServerOptions) -> Server {
        Server::simulated(&self.0, options)
    }

    /// For [`sync::Limiter::new`](crate::sync::Limiter::new).
    #[cfg(feature = "sync")]
    pub fn sync_server(&self) -> crate::sync::Server {
        crate::sync::Server(self.server())
    }

    /// Lets time pass, for buckets and for what limiters remember. Kept to the microsecond.
    pub fn advance(&self, time: Duration) {
        self.0.advance(time);
    }

    /// Makes it answer nobody, or everybody again.
    pub fn set_away(&self, is_away: bool) {
        self.0.set_away(is_away);
    }

    /// Makes every bucket full.
    pub fn reset(&self) {
        self.0.reset();
    }
}

impl Default for Fake {
    fn default() -> Self {
        Self::new()
    }
}
