#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod batches;
#[cfg(feature = "fake")]
mod calendar;
#[cfg(any(feature = "sync", feature = "tokio"))]
mod connecting;
mod decimal;
mod decision;
mod denials;
mod error;
#[cfg(feature = "fake")]
pub mod fake;
mod hold;
mod limit;
mod limiter;
mod options;
mod request;
mod server;
#[cfg(feature = "sync")]
pub mod sync;
#[cfg(feature = "tokio")]
mod tasks;
#[cfg(feature = "tower")]
pub mod tower;
mod transport;

pub use decision::{Decision, JointDecision};
pub use error::Error;
pub use hold::Hold;
pub use limit::{Limit, LimitError};
pub use limiter::Limiter;
pub use options::{Fallback, OnError, Options};
pub use request::{Amount, Part};
pub use server::Server;
