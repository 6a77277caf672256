//! An exact, atomic token bucket inside Redis and Valkey.
//!
//! A call passes through the module once, in one direction:
//!
//! ```text
//! argv bytes -> request (parsed, typed) -> bucket (arithmetic, time is an argument) -> decision
//!                   |                                                                     |
//!                redis::key  ------------ the only access to the server ------------  replicate, announce, reply
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`tokenbucket_core`] | everything that needs no server: requests, arithmetic, holds, effects, errors, the queue of waiting calls |
//! | `command` | the table of commands, and the steps that they share |
//! | `redis` | the server: keys, data type, clock, replication, registration. The only `unsafe` |
//!
//! Users rely on the commands, which the README and `docs/reference/commands` describe.

mod command;
mod redis;

/// The commands of the module.
const COMMANDS: redis::Commands = command::ALL;
