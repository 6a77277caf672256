//! Limits that this process enforces by itself.

#[cfg(feature = "fake")]
pub mod fake;
pub(crate) mod limiter;
