//! Limits, requests, decisions and errors.

pub(crate) mod decision;
pub(crate) mod error;
pub(crate) mod limit;
pub(crate) mod request;
pub(crate) mod rules;
