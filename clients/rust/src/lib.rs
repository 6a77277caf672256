#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod background;
mod batches;
mod caller;
mod calls;
mod clock;
mod cluster;
mod decision;
mod denials;
mod detached;
mod error;
#[cfg(feature = "fake")]
pub mod fake;
mod few;
mod hold;
mod joint;
mod late;
mod limit;
mod limiter;
mod link;
mod local;
mod locked;
mod node;
mod nodes;
mod options;
#[cfg(feature = "sync")]
mod park;
mod request;
mod sentinel;
mod server;
#[cfg(feature = "fake")]
mod simulated;
#[cfg(feature = "sync")]
pub mod sync;
#[cfg(feature = "tower")]
pub mod tower;
mod turn;
mod waiting;

pub use decision::{Decision, JointDecision};
pub use error::Error;
pub use hold::Hold;
pub use joint::JointLimiter;
pub use limit::{Limit, LimitError};
pub use limiter::Limiter;
pub use options::{Fallback, OnError, Options, ServerOptions};
pub use request::{Amount, Part};
pub use server::Server;
