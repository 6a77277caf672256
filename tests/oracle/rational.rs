//! Exact numbers.

use num_bigint::BigInt;
use num_rational::BigRational;

/// A number that is never rounded.
pub type Exact = BigRational;

/// `number` as an exact one.
pub fn integer(number: impl Into<BigInt>) -> Exact {
    Exact::from_integer(number.into())
}
