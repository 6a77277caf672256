//! Limits that this process enforces by itself.

pub(crate) mod buckets;
#[cfg(feature = "fake")]
pub mod fake;
