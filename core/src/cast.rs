//! Integers reinterpreted as signed, bit for bit.
//!
//! Their own `cast_signed` came with Rust 1.87. The module is built by Debian 13's, which is 1.85.

/// Returns the signed number of the same 64 bits.
#[inline]
#[must_use]
pub const fn signed(value: u64) -> i64 {
    i64::from_ne_bytes(value.to_ne_bytes())
}
