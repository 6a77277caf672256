//! The only access to the server, and the only code with `unsafe`.
//!
//! The server's functions are called directly, not through safe wrappers, which allocate and copy each argument: that
//! costs more than the decision itself. Every pointer from the server is in a type of this folder whose lifetime ends
//! with its call.
#![allow(unsafe_code)]

mod allocator;
mod api;
mod call;
mod clock;
mod config;
mod counters;
mod data_type;
mod denials;
mod info;
mod key;
mod listeners;
mod log;
mod maxmemory;
mod on_load;
mod register;
mod replicate;
mod settings;
pub(crate) mod spec;
pub(crate) mod waiting;

pub(crate) use call::{Argument, Call, Decisions};
pub(crate) use counters::COUNTERS;
pub(crate) use denials::{announce_denial, with_top};
pub(crate) use key::{Access, BucketKey};
pub(crate) use register::{entry, Commands};
pub(crate) use replicate::{replicate, replicate_verbatim, Replication};
pub(crate) use settings::{denies_on_oom, MAX_HOLDS};
