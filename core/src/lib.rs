//! The exact token bucket of the tokenbucket module, without a server: no Redis, no clock, no I/O.
//!
//! Time is an argument, and every number is an integer: levels in micro-tokens, times in microseconds.
//!
//! ```
//! use tokenbucket_core::bucket::{Limit, Operation};
//! use tokenbucket_core::rate::Rate;
//!
//! let limit = Limit::new(10_000_000, Rate::parse(b"100/m").unwrap()).unwrap();
//! let take = Operation::Take { cost_micro: 3_000_000 };
//! let outcome = limit.decide(None, take, 1_700_000_000_000_000).unwrap();
//! assert_eq!((outcome.decision.allowed, outcome.decision.remaining), (1, 7));
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`bucket`] | the algorithm: a bucket, a limit, an operation; `bucket/decide.rs` decides |
//! | [`hold`] | what a bucket has beside its level: its holds, an override of its limit, their bytes, and their changes |
//! | [`number`] | amounts of tokens: bytes to exact integers, and back |
//! | [`rate`] | rates: reading them (`rate/read.rs`), exact ratios, the calendar, the flow in a time, and the time of an amount |
//! | [`numkeys`] | the number of buckets in a call of several |
//! | [`limit`] | the limit of a call: a capacity and a rate |
//! | [`request`] | the arguments of each command to one typed request |
//! | [`plan`] | a request on a bucket to what it will do |
//! | [`effect`] | the result of a write, for replicas and files |
//! | [`expiry`] | when the key of a bucket expires |
//! | [`queue`] | waiting calls in order of arrival or by shares, and which is next |
//! | [`top`] | the most denied keys, in a bounded number of counters |
//! | [`invariant`] | broken invariants end tests, and never a release |
//! | [`error`] | every error that a client can see |
//! | [`cast`] | integers reinterpreted as signed or unsigned |
//!
//! `#[inline(always)]` is for the path of a take, where the optimiser would not inline by itself: without it the module's
//! share of a take is 800 instructions instead of 525 (callgrind, Redis 7.0.15; `make guard` counts the whole call).
//!
//! Users rely on the module's commands. This interface changes whenever the module needs it.
#![forbid(unsafe_code)]

pub mod bucket;
pub mod cast;
pub mod effect;
pub mod error;
pub mod expiry;
pub mod hold;
pub mod invariant;
pub mod limit;
pub mod number;
pub mod numkeys;
pub mod plan;
pub mod queue;
pub mod rate;
pub mod request;
pub mod top;
