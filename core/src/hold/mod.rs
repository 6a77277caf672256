//! What a bucket has beside its level: holds, which are amounts under ids that return at a given time, and an override of its
//! limit.
//!
//! # Why nothing has to sweep
//!
//! Between two writes the level only grows, by the refill and by holds that end. Cutting a growing level off at the
//! capacity at each step gives the result of cutting it off once, at the end. So the level at any moment is that of the
//! last write, plus the flow since, plus the amounts of all stored holds that have ended, and at most the capacity. A hold
//! that has ended may stay in the list until the next write.
//!
//! # When a level is reached
//!
//! Below the capacity nothing is cut off, so the sum itself can be searched. Let `S(k)` be the sum of the first `k` holds by
//! end. The first `k` for which level, `S(k)` and the flow until hold `k` ends suffice gives the answer: that end, or the
//! moment before it at which the flow completes `S(k - 1)`.

mod bytes;
mod change;
mod extension;
mod item;
mod limit_override;
mod list;

pub use change::{ExtensionChange, ExtensionChanges};
pub use extension::{Extension, Replaced, NO_EXTENSION};
pub use item::{Hold, MAX_ID_LEN};
pub use limit_override::{Begun, Override};
pub use list::Holds;

/// The most holds that a bucket may have, and the largest value of `tokenbucket.max-holds`. Files and effects with more are
/// refused, because reading, listing and freeing take time for each.
pub const MAX_HOLDS: u32 = 100_000;
