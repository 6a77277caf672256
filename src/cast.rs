//! 32-bit integers reinterpreted as signed or unsigned, bit for bit, as the server's flags need it.
//!
//! Their own `cast_signed` and `cast_unsigned` came with Rust 1.87. The module is built by Debian 13's, which is 1.85.

/// Returns the signed number of the same 32 bits.
#[inline]
#[must_use]
pub(crate) const fn signed_32(value: u32) -> i32 {
    i32::from_ne_bytes(value.to_ne_bytes())
}

/// Returns the unsigned number of the same 32 bits.
#[inline]
#[must_use]
pub(crate) const fn unsigned_32(value: i32) -> u32 {
    u32::from_ne_bytes(value.to_ne_bytes())
}
