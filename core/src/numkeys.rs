//! The number of buckets in a call of several.

use crate::number::{whole, MAX_LEN};

/// The most buckets in one `TB.MTAKE`: a call must not keep the server busy for longer than a few milliseconds.
pub const MAX_BUCKETS: i64 = 1024;

/// Reads the number of buckets, in plain digits only, as servers read the `numkeys` of their own commands.
///
/// The server does not read this one: to it, every fourth argument is a key. So calls with any other number of arguments
/// must be refused.
#[must_use]
pub fn parse(numkeys: &[u8]) -> Option<usize> {
    let is_short = numkeys.len() <= MAX_LEN;
    if !is_short || !matches!(numkeys, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit)) {
        return None;
    }
    usize::try_from(whole(numkeys, MAX_BUCKETS)?).ok()
}
