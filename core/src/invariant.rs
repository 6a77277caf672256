//! What the code relies on, and a test may prove wrong.

/// Passes on what must be there.
///
/// Without it a release goes on, because no mistake of ours may stop a server. A test ends with the reason.
#[inline]
pub fn expected<T>(found: Option<T>, reason: &str) -> Option<T> {
    debug_assert!(found.is_some(), "{reason}");
    found
}
