//! Reads the limit of a call: a capacity and a rate.

use crate::bucket::Limit;
use crate::error::Error;
use crate::number::{micro_tokens, Rounding};
use crate::rate::{Rate, RateError};

/// Reads a limit whose rate is above 0.
///
/// # Errors
/// The one of the first argument that is wrong.
#[inline(always)] // Hot: the limit stays in registers.
pub fn parse<A: AsRef<[u8]>>(capacity: &A, rate: &A) -> Result<Limit, Error> {
    let capacity_micro = capacity_micro(capacity)?;
    let rate = Rate::parse(rate.as_ref()).map_err(|error| match error {
        RateError::Malformed => Error::Rate,
        RateError::Zero => Error::RateOfPool,
        RateError::OutOfRange => Error::RateOutOfRange,
    })?;
    Limit::new(capacity_micro, rate).ok_or(Error::RefillTooSlow)
}

/// Reads a limit whose rate may be 0.
///
/// # Errors
/// As of [`parse`].
#[inline]
pub fn or_pool<A: AsRef<[u8]>>(capacity: &A, rate: &A) -> Result<Limit, Error> {
    match parse(capacity, rate) {
        Err(Error::RateOfPool) => pool(capacity),
        other => other,
    }
}

fn pool<A: AsRef<[u8]>>(capacity: &A) -> Result<Limit, Error> {
    Ok(Limit::pool(capacity_micro(capacity)?))
}

#[inline(always)]
fn capacity_micro<A: AsRef<[u8]>>(capacity: &A) -> Result<i64, Error> {
    micro_tokens(capacity.as_ref(), Rounding::Down).ok_or(Error::Capacity)
}
