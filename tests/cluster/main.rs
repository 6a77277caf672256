//! What a cluster does to buckets, and what Sentinel does.

#[allow(dead_code, unused_imports)] // tests/server uses all of it.
#[path = "../common/mod.rs"]
mod common;

mod nodes;
mod resharding;
mod sentinel;
mod waiting;
