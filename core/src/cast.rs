//! Integers reinterpreted as signed or unsigned, bit for bit.
//!
//! Their own `cast_signed` and `cast_unsigned` came with Rust 1.87. The module is built by Debian 13's, which is 1.85.

/// Returns the signed number of the same 64 bits.
#[inline]
#[must_use]
pub const fn signed(value: u64) -> i64 {
    i64::from_ne_bytes(value.to_ne_bytes())
}

/// Returns the signed number of the same 32 bits, as servers need it for their flags.
#[inline]
#[must_use]
pub const fn signed_32(value: u32) -> i32 {
    i32::from_ne_bytes(value.to_ne_bytes())
}

/// Returns the unsigned number of the same 32 bits.
#[inline]
#[must_use]
pub const fn unsigned_32(value: i32) -> u32 {
    u32::from_ne_bytes(value.to_ne_bytes())
}
