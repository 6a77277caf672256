//! The contract in exact arithmetic: the one model by which the module is judged, by properties, on servers, in chaos
//! and by the fuzz targets.
//!
//! Written from the contract and from nothing else. Amounts and levels are fractions of micro-tokens, times fractions of
//! microseconds; nothing here is fast, and nothing is rounded before it is told.
//!
//! | file | what it knows |
//! |---|---|
//! | `number` | what the bytes of a number or a rate mean |
//! | `calendar` | calendar rates, by a calendar of somebody else's |
//! | `limit` | what flows in between two moments, and when a level is reached |
//! | `operation` | each operation: its words, and what it moves |
//! | `queue` | calls that wait, and whose turn it is |
//! | `call` | one call, also on what is held: what it does to a level, and what may be told of it |
//! | `bucket` | what a key holds, as far as one can know it from outside, and when the key may go |
//! | `judged` | the module's arithmetic beside the model, where there is no server |
#![allow(dead_code, unused_imports)] // Each test program and each fuzz target uses its own part of this.

pub mod bucket;
pub mod calendar;
pub mod call;
pub mod judged;
pub mod limit;
pub mod number;
pub mod operation;
pub mod queue;

pub use bucket::{Model, Trace};
pub use call::HoldOperation;
pub use judged::Judged;
pub use limit::{milliseconds, End, Flow, Limit};
pub use tokenbucket_core::bucket::{Bucket, Operation};

use num_bigint::BigInt;

pub type Exact = num_rational::BigRational;

/// Micro-tokens in a token, and microseconds in a second.
pub const MILLION: i64 = 1_000_000;

pub fn whole(number: impl Into<BigInt>) -> Exact {
    Exact::from_integer(number.into())
}
