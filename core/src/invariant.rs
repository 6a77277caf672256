//! Invariants that tests may prove wrong.

/// Returns `found`, which must be `Some`.
///
/// `None` ends a test, with the reason. A release continues, because no mistake of ours may stop a server.
#[inline]
pub fn expected<T>(found: Option<T>, reason: &str) -> Option<T> {
    debug_assert!(found.is_some(), "{reason}");
    found
}
