//! argv to one typed request per command.
//!
//! The arguments stay where the server put them: a request borrows its key, and the numbers are read from the
//! raw bytes. Arguments are taken in order, and the first bad one is the error.

#![forbid(unsafe_code)]

use crate::bucket::{Limit, Operation};
use crate::effect::Effect;
use crate::error::Error;
use crate::number::{micro_tokens, whole, Rounding, MAX_LEN, MAX_TOKENS, MICRO_PER_TOKEN};
use crate::rate::{Rate, RateError, CENTURY_S};

/// The most buckets in one `TB.MTAKE`: a call must not keep the server busy for longer than a few milliseconds.
pub const MAX_BUCKETS: i64 = 1024;

/// The longest wait that can be accepted: 100 years, in milliseconds.
pub const MAX_WAIT_MS: i64 = CENTURY_S.cast_signed() * 1000;

/// One bucket, its limit, and what is wanted of it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a, A> {
    /// The argument that names the bucket.
    pub key: &'a A,
    /// The limit that came with the call.
    pub limit: Limit,
    /// What is wanted.
    pub operation: Operation,
}

/// One bucket, its limit, and what a `CL.THROTTLE` takes from it.
#[derive(Clone, Copy, Debug)]
pub struct Throttle<'a, A> {
    /// The argument that names the bucket.
    pub key: &'a A,
    /// The limit that came with the call.
    pub limit: Limit,
    /// What the call costs; 0 only looks.
    pub cost_micro: i64,
}

/// `key capacity rate [cost]`, of `TB.TAKE` and `TB.PEEK`.
///
/// # Errors
/// Of the first argument that is wrong, or [`Error::WrongArity`].
#[inline(always)] // Hot: the limit stays in registers.
pub fn take<A: AsRef<[u8]>>(arguments: &[A]) -> Result<Request<'_, A>, Error> {
    let (key, capacity, rate, cost) = match arguments {
        [key, capacity, rate] => (key, capacity, rate, None),
        [key, capacity, rate, cost] => (key, capacity, rate, Some(cost)),
        _ => return Err(Error::WrongArity),
    };
    let limit = limit(capacity, rate)?;
    let cost_micro = match cost {
        Some(cost) => self::cost(cost)?,
        None => MICRO_PER_TOKEN,
    };
    Ok(Request { key, limit, operation: Operation::Take { cost_micro } })
}

/// `key capacity rate max`, of `TB.TAKEUPTO`.
///
/// # Errors
/// Of the first argument that is wrong, or [`Error::WrongArity`].
pub fn take_up_to<A: AsRef<[u8]>>(arguments: &[A]) -> Result<Request<'_, A>, Error> {
    let [key, capacity, rate, max] = arguments else {
        return Err(Error::WrongArity);
    };
    let limit = limit(capacity, rate)?;
    let max_tokens = whole(max.as_ref(), MAX_TOKENS).filter(|max| *max >= 1).ok_or(Error::Max)?;
    Ok(Request { key, limit, operation: Operation::TakeUpTo { max_tokens } })
}

/// `key capacity rate cost max_wait_ms`, of `TB.RESERVE`.
///
/// # Errors
/// Of the first argument that is wrong, or [`Error::WrongArity`].
pub fn reserve<A: AsRef<[u8]>>(arguments: &[A]) -> Result<Request<'_, A>, Error> {
    let [key, capacity, rate, cost, max_wait] = arguments else {
        return Err(Error::WrongArity);
    };
    let limit = limit(capacity, rate)?;
    let cost_micro = self::cost(cost)?;
    let max_wait_ms = whole(max_wait.as_ref(), MAX_WAIT_MS).ok_or(Error::MaxWait)?;
    Ok(Request { key, limit, operation: Operation::Reserve { cost_micro, max_wait_ms } })
}

/// `key capacity rate amount`, of `TB.CHARGE`.
///
/// # Errors
/// Of the first argument that is wrong, or [`Error::WrongArity`].
pub fn charge<A: AsRef<[u8]>>(arguments: &[A]) -> Result<Request<'_, A>, Error> {
    let (key, limit, amount_micro) = amount(arguments, Rounding::Up)?;
    Ok(Request { key, limit, operation: Operation::Charge { amount_micro } })
}

/// `key capacity rate amount`, of `TB.GIVE`.
///
/// # Errors
/// Of the first argument that is wrong, or [`Error::WrongArity`].
pub fn give<A: AsRef<[u8]>>(arguments: &[A]) -> Result<Request<'_, A>, Error> {
    let (key, limit, amount_micro) = amount(arguments, Rounding::Down)?;
    Ok(Request { key, limit, operation: Operation::Give { amount_micro } })
}

/// `key`, of `TB.STATE`.
///
/// # Errors
/// [`Error::WrongArity`].
pub fn key<A>(arguments: &[A]) -> Result<&A, Error> {
    match arguments {
        [key] => Ok(key),
        _ => Err(Error::WrongArity),
    }
}

/// `numkeys key capacity rate cost [key capacity rate cost …]`, of `TB.MTAKE`.
///
/// # Errors
/// Of the first argument that is wrong, [`Error::DuplicateKey`], or [`Error::WrongArity`].
pub fn multi_take<A: AsRef<[u8]>>(arguments: &[A]) -> Result<Vec<Request<'_, A>>, Error> {
    let [numkeys, groups @ ..] = arguments else {
        return Err(Error::WrongArity);
    };
    let buckets = count(numkeys.as_ref()).ok_or(Error::NumKeys)?;
    if groups.len() != buckets.saturating_mul(4) {
        return Err(Error::NumKeysMismatch);
    }
    let mut requests = Vec::with_capacity(buckets);
    for group in groups.chunks_exact(4) {
        requests.push(take(group)?);
    }
    reject_duplicates(&requests, |request| request.key.as_ref())?;
    Ok(requests)
}

/// `key effect [key effect …]`, of `TB.RESTORE`.
///
/// # Errors
/// [`Error::State`], [`Error::DuplicateKey`], or [`Error::WrongArity`].
pub fn restore<A: AsRef<[u8]>>(arguments: &[A]) -> Result<Vec<(&A, Effect)>, Error> {
    if arguments.is_empty() || !arguments.len().is_multiple_of(2) {
        return Err(Error::WrongArity);
    }
    let effects = arguments
        .chunks_exact(2)
        .map(|pair| match pair {
            [key, effect] => Ok((key, Effect::decode(effect.as_ref()).ok_or(Error::State)?)),
            _ => Err(Error::WrongArity),
        })
        .collect::<Result<Vec<_>, _>>()?;
    reject_duplicates(&effects, |(key, _)| key.as_ref())?;
    Ok(effects)
}

/// The longest period of `CL.THROTTLE`: 100 years, in seconds.
pub const MAX_PERIOD_S: i64 = CENTURY_S.cast_signed();

/// `key max_burst count period [quantity]`, of `CL.THROTTLE`.
///
/// # Errors
/// Of the first argument that is wrong, or [`Error::WrongArity`].
pub fn throttle<A: AsRef<[u8]>>(arguments: &[A]) -> Result<Throttle<'_, A>, Error> {
    let (key, max_burst, count, period, quantity) = match arguments {
        [key, max_burst, count, period] => (key, max_burst, count, period, None),
        [key, max_burst, count, period, quantity] => (key, max_burst, count, period, Some(quantity)),
        _ => return Err(Error::WrongArity),
    };
    let capacity_tokens = burst_capacity(max_burst.as_ref()).ok_or(Error::MaxBurst)?;
    let count = at_least_one(count.as_ref(), MAX_TOKENS).ok_or(Error::Count)?;
    let period_s = at_least_one(period.as_ref(), MAX_PERIOD_S).ok_or(Error::Period)?;
    let quantity = match quantity {
        Some(quantity) => whole(quantity.as_ref(), MAX_TOKENS).ok_or(Error::Quantity)?,
        None => 1,
    };
    let rate = Rate::per_seconds(count, period_s).ok_or(Error::Count)?;
    let limit = Limit::new(micro(capacity_tokens), rate).ok_or(Error::BurstTooSlow)?;
    Ok(Throttle { key, limit, cost_micro: micro(quantity) })
}

/// What a burst of `max_burst` on top of one token needs room for. -1 is a limit of nothing at all: clients that
/// send their limit less one send it for somebody who is suspended.
fn burst_capacity(max_burst: &[u8]) -> Option<i64> {
    match max_burst {
        b"-1" => Some(0),
        digits => whole(digits, MAX_TOKENS.saturating_sub(1)).map(|burst| burst.saturating_add(1)),
    }
}

fn at_least_one(bytes: &[u8], max: i64) -> Option<u64> {
    whole(bytes, max).filter(|value| *value >= 1).map(i64::unsigned_abs)
}

/// Whole tokens, at most [`MAX_TOKENS`], in micro-tokens.
fn micro(tokens: i64) -> i64 {
    tokens.saturating_mul(MICRO_PER_TOKEN)
}

/// The number of buckets, in plain digits only.
///
/// The server reads this argument too, to find the keys for its ACL and for cluster routing, and it knows no
/// other spelling. What the two read differently would be a key that nobody checked.
#[must_use]
pub fn count(numkeys: &[u8]) -> Option<usize> {
    let is_short = numkeys.len() <= MAX_LEN;
    if !is_short || !matches!(numkeys, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit)) {
        return None;
    }
    usize::try_from(whole(numkeys, MAX_BUCKETS)?).ok()
}

/// Few keys are compared with each other, but only where a fingerprint says that two may be the same; many are
/// sorted.
fn reject_duplicates<T>(items: &[T], key: impl Fn(&T) -> &[u8]) -> Result<(), Error> {
    const FEW: usize = 32;
    let mut keys: Vec<&[u8]> = items.iter().map(key).collect();
    let twice = if keys.len() <= FEW {
        let mut seen = 0u64;
        keys.iter().enumerate().any(|(index, key)| {
            let fingerprint = fingerprint(key);
            let maybe = seen & fingerprint != 0;
            seen |= fingerprint;
            maybe && keys.iter().take(index).any(|earlier| earlier == key)
        })
    } else {
        keys.sort_unstable();
        keys.windows(2).any(|pair| matches!(pair, [a, b] if a == b))
    };
    if twice {
        return Err(Error::DuplicateKey);
    }
    Ok(())
}

/// One of 64 bits, by the end of a key, where keys differ most.
fn fingerprint(key: &[u8]) -> u64 {
    let byte = |from_end: usize| key.iter().nth_back(from_end).copied().map_or(0, u32::from);
    1u64.rotate_left(byte(0).wrapping_add(byte(1).wrapping_mul(10)))
}

fn amount<A: AsRef<[u8]>>(arguments: &[A], rounding: Rounding) -> Result<(&A, Limit, i64), Error> {
    let [key, capacity, rate, amount] = arguments else {
        return Err(Error::WrongArity);
    };
    let limit = limit(capacity, rate)?;
    let amount_micro = micro_tokens(amount.as_ref(), rounding).ok_or(Error::Amount)?;
    Ok((key, limit, amount_micro))
}

#[inline(always)]
fn limit<A: AsRef<[u8]>>(capacity: &A, rate: &A) -> Result<Limit, Error> {
    let capacity_micro = micro_tokens(capacity.as_ref(), Rounding::Down).ok_or(Error::Capacity)?;
    let rate = Rate::parse(rate.as_ref()).map_err(|error| match error {
        RateError::Malformed | RateError::Zero => Error::Rate,
        RateError::OutOfRange => Error::RateOutOfRange,
    })?;
    Limit::new(capacity_micro, rate).ok_or(Error::RefillTooSlow)
}

#[inline(always)]
fn cost<A: AsRef<[u8]>>(cost: &A) -> Result<i64, Error> {
    micro_tokens(cost.as_ref(), Rounding::Up).ok_or(Error::Cost)
}
