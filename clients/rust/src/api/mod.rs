//! Limiters, holds and servers, as users see them.

pub(crate) mod batches;
pub(crate) mod caller;
pub(crate) mod denials;
pub(crate) mod hold;
pub(crate) mod late;
pub(crate) mod limiter;
pub(crate) mod options;
pub(crate) mod server;
pub(crate) mod unsettled;
