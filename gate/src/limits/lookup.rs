//! Which limit a descriptor has.

/// One level of nested descriptors.
#[derive(Debug, Default)]
pub(super) struct Level {}
