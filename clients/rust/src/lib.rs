#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "sync"), allow(rustdoc::broken_intra_doc_links))]

mod adapters;
mod api;
mod local;
mod transport;
mod values;

#[cfg(feature = "sync")]
pub use adapters::sync;
#[cfg(feature = "tower")]
pub use adapters::tower;
pub use api::hold::Hold;
pub use api::limiter::Limiter;
pub use api::options::{OnError, Options};
pub use api::server::Server;
#[cfg(feature = "fake")]
pub use local::fake;
pub use values::{Amount, Decision, Error, JointDecision, Limit, Part};
