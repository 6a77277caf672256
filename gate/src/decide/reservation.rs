//! Names reservations.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use tokio_rustls::rustls::crypto::{ring, SecureRandom};

use crate::messages;

static RANDOM: LazyLock<&dyn SecureRandom> = LazyLock::new(|| ring::default_provider().secure_random);

/// The id of a reservation's holds, with all that another gate needs to end them: two random numbers, the end in Unix
/// milliseconds, and the amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reservation([[u8; 8]; 4]);

impl Reservation {
    /// Makes a reservation of this amount that ends after `ttl`; `None` without random numbers.
    pub(super) fn new(amount: u64, ttl: Duration) -> Option<Self> {
        let mut random = [[0; 8]; 2];
        RANDOM.fill(random.as_flattened_mut()).ok()?;
        let [first, second] = random;
        let ends_at_ms = now_ms().saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        Some(Self([first, second, ends_at_ms.to_be_bytes(), amount.to_be_bytes()]))
    }

    /// Reads an id; `None` if it has another format.
    pub(super) fn parse(id: &str) -> Option<Self> {
        let mut numbers = [[0; 8]; 4];
        const_hex::decode_to_slice(id, numbers.as_flattened_mut()).ok()?;
        Some(Self(numbers))
    }

    pub(super) fn id(&self) -> String {
        const_hex::encode(self.0.as_flattened())
    }

    /// Returns the most that it holds of one bucket.
    pub(super) fn amount(&self) -> u64 {
        let [.., amount] = self.0;
        u64::from_be_bytes(amount)
    }

    /// Returns how long its holds last; `None` once they have ended.
    pub(super) fn time_left(&self) -> Option<Duration> {
        let [.., ends_at_ms, _] = self.0;
        let left_ms = u64::from_be_bytes(ends_at_ms).checked_sub(now_ms())?;
        Some(left_ms).filter(|ms| *ms > 0).map(Duration::from_millis)
    }
}

/// Returns the duration of a message; `None` below a millisecond.
pub(super) fn ttl(asked: &messages::Duration) -> Option<Duration> {
    let (seconds, nanos) = (u64::try_from(asked.seconds).ok()?, u64::try_from(asked.nanos).ok()?);
    let ttl = Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos));
    Some(ttl).filter(|ttl| ttl.as_millis() > 0)
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
