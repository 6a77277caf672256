//! Names reservations.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use tokio_rustls::rustls::crypto::{ring, SecureRandom};

use crate::messages;

/// What an id says: the random number, the end and the amount.
const BYTES: usize = 32;

static RANDOM: LazyLock<&dyn SecureRandom> = LazyLock::new(|| ring::default_provider().secure_random);

/// A reservation: the id of its holds, which says all that another gate needs to end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reservation {
    random: [u8; 16],
    /// Unix milliseconds.
    ends_at_ms: u64,
    /// The most that it asks of one bucket.
    pub(super) amount: u64,
}

impl Reservation {
    /// Makes one of this amount that ends after `ttl`; `None` without random numbers.
    pub(super) fn new(amount: u64, ttl: Duration) -> Option<Self> {
        let mut random = [0; 16];
        RANDOM.fill(&mut random).ok()?;
        let ends_at_ms = now_ms().saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        Some(Self { random, ends_at_ms, amount })
    }

    /// Reads an id; `None` if no gate has made it.
    pub(super) fn parse(id: &str) -> Option<Self> {
        let mut bytes = [0; BYTES];
        hex::decode_to_slice(id, &mut bytes).ok()?;
        let (random, rest) = bytes.split_first_chunk()?;
        let (ends_at_ms, amount) = rest.split_first_chunk()?;
        let number = u64::from_be_bytes;
        Some(Self {
            random: *random,
            ends_at_ms: number(*ends_at_ms),
            amount: number(amount.try_into().ok()?),
        })
    }

    /// Returns the id.
    pub(super) fn id(&self) -> String {
        let (ends_at_ms, amount) = (self.ends_at_ms.to_be_bytes(), self.amount.to_be_bytes());
        hex::encode([self.random.as_slice(), &ends_at_ms, &amount].concat())
    }

    /// Returns how long its holds last; nothing once they have ended.
    pub(super) fn time_left(&self) -> Option<Duration> {
        self.ends_at_ms.checked_sub(now_ms()).filter(|ms| *ms > 0).map(Duration::from_millis)
    }
}

/// Returns a time as it was asked for; `None` below a millisecond.
pub(super) fn ttl(asked: &messages::Duration) -> Option<Duration> {
    let (seconds, nanos) = (u64::try_from(asked.seconds).ok()?, u64::try_from(asked.nanos).ok()?);
    let ttl = Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos));
    Some(ttl).filter(|ttl| ttl.as_millis() > 0)
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
