//! How a request reaches its server, and its reply the caller.

pub(crate) mod address;
pub(crate) mod background;
pub(crate) mod calls;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod detached;
pub(crate) mod late;
pub(crate) mod link;
pub(crate) mod locked;
pub(crate) mod node;
pub(crate) mod nodes;
#[cfg(feature = "sync")]
pub(crate) mod park;
pub(crate) mod sentinel;
pub(crate) mod turn;
pub(crate) mod waiting;
