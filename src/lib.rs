//! An exact, atomic token bucket inside Redis and Valkey.
//!
//! This file is the map of the house. A call walks through it once, in one direction:
//!
//! ```text
//! argv bytes -> request (parsed, typed) -> bucket (arithmetic, time is an argument) -> decision
//!                   |                                                                     |
//!                redis::key  ------------- the only door to the server -------------  replicate, announce, reply
//! ```
//!
//! | room | what is done there |
//! |---|---|
//! | [`bucket`] | the algorithm: a bucket, a limit, an operation, a decision. No Redis, no clock, no allocation |
//! | [`holds`] | the holds of a bucket, and when what they hold comes back |
//! | [`number`] | amounts of tokens: bytes to exact integers, and back |
//! | [`rate`] | rates: bytes to an exact ratio or a calendar, what flows at it, and when an amount has flowed |
//! | [`calendar`] | calendar rates: the boundaries of days, weeks, months and years |
//! | [`request`] | argv to one typed request per command |
//! | [`effect`] | what replicas and files are sent instead of the call, and when a key may expire |
//! | [`top`] | the keys that are denied most, in a bounded number of counters |
//! | [`error`] | every error that a client can see |
//! | `cast` | integers taken as signed or unsigned |
//! | `command` | one file per command, and what they share |
//! | `redis` | the server: keys, data type, clock, replication, registration. The only `unsafe` |
//!
//! `#[inline(always)]` stands on the way of a take, where the optimiser would not inline by itself: without it our share of
//! a take is 800 instructions instead of 525 (callgrind, Redis 7.0.15; `make guard` counts the
//! whole call).
//!
//! The public modules are public for the sake of tests, fuzz targets and benchmarks. What users rely on are the
//! commands, which the README and `docs/reference/commands` describe.

pub mod bucket;
pub mod calendar;
mod cast;
mod command;
pub mod effect;
pub mod error;
pub mod holds;
pub mod number;
pub mod rate;
mod redis;
pub mod request;
pub mod top;

/// What the module offers to the server that loads it.
const COMMANDS: redis::Commands = command::ALL;
