//! Every error that a client can see, once, and the line that is replied.
//!
//! While a call is read and decided an error is one byte, so that the hot path neither copies nor allocates for it. Building
//! the line finds the wrong argument again and quotes it.
//!
//! A line quotes at most [`MAX_QUOTED`] bytes of what was sent, and printable ASCII only.

mod line;
mod quote;
mod rate;

pub use quote::MAX_QUOTED;

use crate::bucket::DebtTooDeep;
use std::fmt;
use std::num::NonZeroU32;

/// The reason for refusing a call, which has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too few or too many arguments.
    WrongArity,
    /// The key holds another type.
    WrongType,
    /// The bucket would have to be created and the server is over `maxmemory`.
    OutOfMemory,
    /// There is no memory for a hold of an existing bucket.
    HoldOutOfMemory,
    /// The capacity is not an amount of tokens.
    Capacity,
    /// The cost is not an amount of tokens.
    Cost,
    /// The amount is not an amount of tokens.
    Amount,
    /// The `max` of `TB.TAKEUPTO` is not a whole number of tokens.
    Max,
    /// The `max_wait_ms` of `TB.RESERVE` is not a whole number of milliseconds.
    MaxWait,
    /// The `max_wait_ms` of a call that waits its turn is not a whole number of milliseconds.
    MaxTurnWait,
    /// `tokenbucket.max-waiters` calls wait already.
    TooManyWaiters,
    /// The rate is malformed, or zero.
    Rate,
    /// The rate is 0, and the command needs one above 0.
    RateOfPool,
    /// The rate is out of bounds.
    RateOutOfRange,
    /// The capacity takes too long to refill at the rate.
    RefillTooSlow,
    /// The call would put the bucket beyond the deepest debt.
    DebtTooDeep,
    /// The `numkeys` of a call is not a number of buckets.
    NumKeys,
    /// `numkeys` does not match the number of arguments behind it.
    NumKeysMismatch,
    /// One call names a key twice.
    DuplicateKey,
    /// The `ttl_ms` of a hold is out of bounds.
    Ttl,
    /// The `id` of a hold is empty or too long.
    Id,
    /// The `used` of a settlement is not an amount of tokens.
    Used,
    /// The `used` of a settlement is above 0, and the rate is 0.
    UsedOfPool,
    /// The bucket has `tokenbucket.max-holds` holds already.
    TooManyHolds,
    /// What follows `max_wait_ms` is not a share.
    ShareOption,
    /// A call of several buckets has a share.
    ShareOfSeveral,
    /// The `tenant` of a share is empty or too long.
    Tenant,
    /// The `weight` of a share is out of bounds.
    Weight,
    /// An option of `TB.TOP` is unknown, or given twice.
    TopOption,
    /// The `COUNT` of `TB.TOP` is not a number of keys.
    TopCount,
    /// The effect given to `TB.RESTORE` is malformed.
    Effect,
    /// The `max_burst` of `CL.THROTTLE` is out of bounds.
    MaxBurst,
    /// The `count` of `CL.THROTTLE` is not a number of tokens.
    Count,
    /// The `period` of `CL.THROTTLE` is not a number of seconds.
    Period,
    /// The `quantity` of `CL.THROTTLE` is not a number of tokens.
    Quantity,
    /// The limit of a `CL.THROTTLE` takes too long to refill.
    BurstTooSlow,
}

impl Error {
    /// Returns the beginning of the line, which depends on no call: the code, the argument and its rule.
    #[must_use]
    pub const fn rule(self) -> &'static str {
        match self {
            Self::WrongArity => "ERR wrong number of arguments",
            Self::WrongType => "WRONGTYPE Operation against a key holding the wrong kind of value",
            Self::OutOfMemory => {
                "OOM bucket not created: used memory > 'maxmemory' and tokenbucket.on-oom is 'deny'"
            }
            Self::HoldOutOfMemory => "OOM hold not stored: used memory > 'maxmemory'",
            Self::Capacity => "ERR capacity must be a decimal number of tokens from 0 to 1e12",
            Self::Cost => "ERR cost must be a decimal number of tokens from 0 to 1e12",
            Self::Amount => "ERR amount must be a decimal number of tokens from 0 to 1e12",
            Self::Max => "ERR max must be a whole number of tokens from 1 to 1e12",
            Self::MaxWait => "ERR max_wait_ms must be a whole number of milliseconds from 0 to 3155760000000",
            Self::MaxTurnWait => "ERR max_wait_ms must be a whole number of milliseconds from 0 to 2592000000",
            Self::TooManyWaiters => "ERR too many waiting calls (tokenbucket.max-waiters)",
            Self::Rate => "ERR rate:",
            Self::RateOfPool => {
                "ERR rate must be above 0 here; rate 0 (a semaphore) is for holds, TB.PEEK and TB.GIVE"
            }
            Self::RateOutOfRange => {
                "ERR rate must be at least 1 token in 100 years (with @: 0.000001 at each boundary) and at most 1e12 tokens per second"
            }
            Self::RefillTooSlow => {
                "ERR refilling capacity from empty at this rate would take more than 100 years"
            }
            Self::DebtTooDeep => "ERR the bucket would be more than 1e12 tokens in debt",
            Self::NumKeys => "ERR numkeys must be a whole number from 1 to 1024",
            Self::NumKeysMismatch => "ERR numkeys must match the number of '",
            Self::Ttl => "ERR ttl_ms must be a whole number of milliseconds from 1 to 2592000000",
            Self::Id => "ERR id must be 1 to 128 bytes",
            Self::Used => "ERR used must be a decimal number of tokens from 0 to 1e12",
            Self::UsedOfPool => "ERR used must be 0 if the rate is 0 (nothing would refill it)",
            Self::TooManyHolds => "ERR too many holds in the bucket (tokenbucket.max-holds)",
            Self::DuplicateKey => "ERR key must not be given twice in one call",
            Self::ShareOption => "ERR option must be SHARE tenant, or SHARE tenant WEIGHT weight",
            Self::ShareOfSeveral => "ERR SHARE is for calls of one bucket that may wait: TB.BTAKE and TB.BHOLD",
            Self::Tenant => "ERR tenant must be 1 to 128 bytes",
            Self::Weight => "ERR weight must be a decimal number from 0.001 to 1000",
            Self::TopOption => "ERR options of TB.TOP are COUNT n and RESET, each at most once",
            Self::TopCount => "ERR COUNT must be a whole number of keys from 1 to 100000",
            Self::Effect => "ERR effect must have the format that this module replicates",
            Self::MaxBurst => "ERR max_burst must be a whole number of tokens from -1 to 999999999999",
            Self::Count => "ERR count must be a whole number of tokens from 1 to 1e12",
            Self::Period => "ERR period must be a whole number of seconds from 1 to 3155760000",
            Self::Quantity => "ERR quantity must be a whole number of tokens from 0 to 1e12",
            Self::BurstTooSlow => {
                "ERR refilling max_burst + 1 tokens at count per period would take more than 100 years"
            }
        }
    }

    /// Returns the argument whose value the line quotes: the first word of its rule, if that is an argument.
    fn argument(self) -> Option<&'static str> {
        let is_quoted =
            !matches!(self, Self::RateOfPool | Self::Effect | Self::ShareOption | Self::ShareOfSeveral);
        self.rule().split(' ').nth(1).filter(|_| is_quoted)
    }

    /// Adds the place of the error, from 0, among the buckets or options of the call.
    #[cold]
    #[must_use]
    pub fn at(self, place: usize) -> Refusal {
        let number = u32::try_from(place).unwrap_or(u32::MAX).saturating_add(1);
        Refusal { error: self, number: NonZeroU32::new(number) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.rule())
    }
}

impl std::error::Error for Error {}

impl From<DebtTooDeep> for Error {
    fn from(_: DebtTooDeep) -> Self {
        Self::DebtTooDeep
    }
}

/// An error, and its place among the buckets or options of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The error.
    pub error: Error,
    /// The bucket or option, from 1.
    number: Option<NonZeroU32>,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { error, number: None }
    }
}

impl Refusal {
    /// Returns the bucket or option, from 0.
    fn place(self) -> Option<usize> {
        self.number.and_then(|number| usize::try_from(number.get()).ok()?.checked_sub(1))
    }
}
