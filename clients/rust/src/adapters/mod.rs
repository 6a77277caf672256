//! Limiters for threads, and for frameworks.

#[cfg(feature = "sync")]
pub mod sync;
#[cfg(feature = "tower")]
pub mod tower;
