//! What the contract says, in exact arithmetic: by this the module is judged, by the tests and by the fuzz targets.
//!
//! Written from the contract and from nothing else. Nothing here is fast, and nothing is rounded before it is told.
#![allow(dead_code)] // Each test file and each fuzz target uses its own part of this.

pub mod bucket;
pub mod decimal;
pub mod judge;
pub mod module;
pub mod numbers;
pub mod rational;
pub mod request;
