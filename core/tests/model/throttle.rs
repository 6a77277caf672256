//! The words of redis-cell: `CL.THROTTLE key max_burst count period [quantity]`.

use super::operation::Meant;
use super::{number, whole, Limit, Operation, MILLION};
use tokenbucket_core::error::Error;
use tokenbucket_core::number::MAX_TOKENS;

pub fn limit(max_burst: i64, count: i64, period_s: i64) -> Limit {
    Limit::new(&(max_burst + 1).to_string(), &format!("{count}/{period_s}s"))
}

pub fn take(quantity: i64) -> Operation {
    Operation::Take { cost_micro: quantity * MILLION }
}

/// What the arguments want, or the error of the first that is wrong.
pub fn read<'a>(arguments: &[&'a [u8]]) -> Result<Meant<'a>, Error> {
    let (key, burst, count, period, quantity) = match arguments {
        [key, burst, count, period] => (key, burst, count, period, b"1".as_slice()),
        [key, burst, count, period, quantity] => (key, burst, count, period, *quantity),
        _ => return Err(Error::WrongArity),
    };
    let positive = |bytes, max| number::whole_number(bytes, max).filter(|number| *number > 0);
    let burst = match *burst {
        b"-1" => -1,
        burst => number::whole_number(burst, MAX_TOKENS - 1).ok_or(Error::MaxBurst)?,
    };
    let count = positive(count, MAX_TOKENS).ok_or(Error::Count)?;
    let period_s = positive(period, number::CENTURY_S).ok_or(Error::Period)?;
    let quantity = number::whole_number(quantity, MAX_TOKENS).ok_or(Error::Quantity)?;
    if whole(burst + 1) * whole(period_s) > whole(number::CENTURY_S) * whole(count) {
        return Err(Error::BurstTooSlow);
    }
    Ok(Meant { key, limit: limit(burst, count, period_s), operation: take(quantity) })
}
