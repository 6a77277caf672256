//! The number of buckets in a call of several.

use crate::number::{whole, MAX_LEN};

/// The most buckets in one `TB.MTAKE`: a call must not keep the server busy for longer than a few milliseconds.
pub const MAX_BUCKETS: i64 = 1024;

/// The number of buckets, in plain digits only.
///
/// The server reads this argument too, to find the keys for its ACL and for cluster routing, and it knows no
/// other spelling. What the two read differently would be a key that nobody checked.
#[must_use]
pub fn parse(numkeys: &[u8]) -> Option<usize> {
    let is_short = numkeys.len() <= MAX_LEN;
    if !is_short || !matches!(numkeys, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit)) {
        return None;
    }
    usize::try_from(whole(numkeys, MAX_BUCKETS)?).ok()
}
