//! One hold.

use crate::bucket::MAX_TIME_US;
use crate::number::MAX_MICRO;
use std::sync::Arc;

/// The longest id of a hold, in bytes.
pub const MAX_ID_LEN: usize = 128;

/// Tokens that are taken until a moment, under an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its id: 1 to [`MAX_ID_LEN`] bytes.
    pub id: Arc<[u8]>,
    /// Micro-tokens that are held: 1 to [`MAX_MICRO`].
    pub amount_micro: i64,
    /// When they return, in Unix microseconds: 0 to [`MAX_TIME_US`].
    pub ends_at_us: i64,
}

impl Hold {
    /// Checks a hold from outside; `None` if a field is out of bounds.
    #[must_use]
    pub fn checked(id: &[u8], amount_micro: i64, ends_at_us: i64) -> Option<Self> {
        let is_one = (1..=MAX_ID_LEN).contains(&id.len())
            && (1..=MAX_MICRO).contains(&amount_micro)
            && (0..=MAX_TIME_US).contains(&ends_at_us);
        is_one.then(|| Self { id: id.into(), amount_micro, ends_at_us })
    }

    /// Returns whether it precedes another in the order of holds: by end, then by id.
    #[must_use]
    pub fn is_before(&self, other: &Self) -> bool {
        self.place() < other.place()
    }

    /// Returns the sort key: the end, then the id.
    pub(super) fn place(&self) -> (i64, &[u8]) {
        (self.ends_at_us, &self.id)
    }
}
