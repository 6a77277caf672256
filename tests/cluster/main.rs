//! What a cluster does to buckets. What Sentinel does: `tests/procedures/sentinel.rs`.

#[allow(dead_code, unused_imports)] // tests/server uses all of it.
#[path = "../common/mod.rs"]
mod common;

mod nodes;
mod resharding;
mod waiting;
