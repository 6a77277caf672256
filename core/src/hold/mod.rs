//! The holds of one bucket: amounts under ids, each of which returns at a moment.
//!
//! # Why nothing has to sweep
//!
//! Between two writes everything only flows in: the refill, and the holds that end. What only grows and is cut off at
//! the capacity at each step is the same as what grows without bounds and is cut off once, at the end. So the level at
//! any moment is that of the last write, plus what flowed since, plus the amounts of all stored holds that have ended
//! by then, and never more than the capacity. A hold that has ended may stay in the list until the next write.
//!
//! # When a level is reached
//!
//! Below the capacity nothing is cut off, so the sum itself can be searched. In the order of their ends, let `S(k)` be
//! what the first `k` holds bring together. The first `k` for which level, `S(k)` and what flows until hold `k` ends
//! suffice gives the answer: that end, or the moment before it at which the flow alone completes `S(k - 1)`.

mod bytes;
mod decide;
mod item;
mod list;

pub use decide::Plan;
pub use item::{Hold, MAX_ID_LEN};
pub use list::Holds;

/// The most holds that a bucket may have, and the largest value of `tokenbucket.max-holds`. Files and effects are refused
/// beyond it, because reading, listing and freeing holds takes time for each.
pub const MAX_HOLDS: u32 = 100_000;
