//! Limits, requests, decisions and errors.

mod amount;
mod decision;
mod error;
mod headers;
mod limit;
mod request;
pub(crate) mod rules;

pub use amount::Amount;
pub use decision::{Decision, JointDecision};
pub use error::Error;
pub use limit::Limit;
pub use request::Part;

pub(crate) use decision::random_bits;
pub(crate) use error::{Failure, Fault};
pub(crate) use request::{each_once, By, Request, Share, SCRIPT};
