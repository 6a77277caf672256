//! The words of redis-cell: `CL.THROTTLE key max_burst count period [quantity]`, and its five fields.

use super::call::Call;
use super::limit::tokens;
use super::operation::Meant;
use super::{number, whole, Exact, Limit, Model, Operation, Trace, MILLION};
use num_traits::ToPrimitive;
use tokenbucket_core::error::Error;
use tokenbucket_core::number::MAX_TOKENS;

/// Limited, limit, remaining, retry after and reset after in seconds.
pub type Reply = [i64; 5];

pub fn limit(max_burst: i64, count: i64, period_s: i64) -> Limit {
    Limit::new(&(max_burst + 1).to_string(), &format!("{count}/{period_s}s"))
}

pub fn take(quantity: i64) -> Operation {
    Operation::Take { cost_micro: quantity * MILLION }
}

/// Judges a reply, and does what it says.
#[track_caller]
pub fn follow(model: &mut Model, limit: &Limit, quantity: i64, now_us: i64, reply: Reply) -> Trace {
    let [limited, capacity, remaining, retry_after_s, reset_after_s] = reply;
    let allowed = 1 - limited;
    let call = Call::new(model, limit, take(quantity).into(), now_us);
    let [least, most] = call.allowed();
    let (_, stored) = call.after(allowed);
    // Between what the lowest and the highest possible level make of a field.
    let within = |told: i64, field: &dyn Fn(&Exact) -> i64| {
        let [one, other] = [field(&stored.low), field(&stored.high)];
        (one.min(other)..=one.max(other)).contains(&told)
    };
    let wait_s = |level: &Exact, wanted: &Exact| {
        whole_seconds(&call.reaches_in_us(level, wanted, &call.holds).expect("no pool"))
    };
    let never = allowed == 1 || call.taken > limit.capacity;
    let right = (least..=most).contains(&Some(allowed))
        && whole(capacity) * whole(MILLION) == limit.capacity
        && within(remaining, &|level| tokens(level).to_i64().unwrap().max(0))
        && within(reset_after_s, &|level| wait_s(level, &limit.capacity))
        && match never {
            true => retry_after_s == -1,
            false => within(retry_after_s, &|level| wait_s(level, &call.taken)),
        };
    assert!(right, "{quantity} of {limit:?} at {now_us}: {reply:?}, {model:?}");
    model.apply(limit, take(quantity), now_us, allowed, false)
}

/// Seconds as redis-cell tells them: rounded up, except that less than a millisecond is nothing.
fn whole_seconds(time_us: &Exact) -> i64 {
    let ms = (time_us.ceil() / whole(1000)).floor();
    (ms / whole(1000)).ceil().to_integer().to_i64().unwrap()
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
