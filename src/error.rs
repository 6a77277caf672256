//! Every error that a client can see, once. The text is exactly what goes over the wire.
//!
//! Each text is a constant: nothing that a client sent is ever echoed, so nothing unprintable can come back, and
//! an error costs no allocation.

#![forbid(unsafe_code)]

use std::ffi::CStr;
use std::fmt;

/// Why a call was refused. A refused call has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too few or too many arguments; the server words this one, naming the command.
    WrongArity,
    /// The key holds another type.
    WrongType,
    /// The bucket would have to be created and the server is over `maxmemory`.
    OutOfMemory,
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
    /// The rate is malformed, or zero.
    Rate,
    /// The rate is 0, for a command that needs one.
    RateOfPool,
    /// The rate is out of bounds.
    RateOutOfRange,
    /// Capacity and rate are fine, but not together.
    RefillTooSlow,
    /// A charge beyond the deepest debt.
    DebtTooDeep,
    /// The `numkeys` of a call is not a number of buckets.
    NumKeys,
    /// `numkeys` and the number of arguments behind it do not agree.
    NumKeysMismatch,
    /// The same in `TB.MHOLD`.
    NumKeysOfAmounts,
    /// The same in `TB.MSETTLE`.
    NumKeysOfUsed,
    /// The same key twice in one call.
    DuplicateKey,
    /// The `ttl_ms` of a hold is out of bounds.
    Ttl,
    /// The `id` of a hold is empty or too long.
    Id,
    /// What was used of a hold is not an amount of tokens.
    Used,
    /// Something was used of a hold of a pool.
    UsedOfPool,
    /// The bucket has as many holds as it may have.
    TooManyHolds,
    /// An option of `TB.TOP` that is none, or is given twice.
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
    /// The error line, without the `-` in front and the line end.
    #[must_use]
    pub const fn text(self) -> &'static CStr {
        match self {
            Self::WrongArity => c"ERR wrong number of arguments",
            Self::WrongType => c"WRONGTYPE Operation against a key holding the wrong kind of value",
            Self::OutOfMemory => {
                c"OOM bucket not created: used memory > 'maxmemory' and tokenbucket.on-oom is 'deny'"
            }
            Self::Capacity => c"ERR capacity must be a decimal number of tokens from 0 to 1e12",
            Self::Cost => c"ERR cost must be a decimal number of tokens from 0 to 1e12",
            Self::Amount => c"ERR amount must be a decimal number of tokens from 0 to 1e12",
            Self::Max => c"ERR max must be a whole number of tokens from 1 to 1e12",
            Self::MaxWait => c"ERR max_wait_ms must be a whole number of milliseconds from 0 to 3155760000000",
            Self::Rate => {
                c"ERR rate must be tokens per second above 0, like 5 or 0.25, count/period, like 100/m or 10/15s (ms, s, m, h, d), or count@period, like 1000@d or 1000@mo+09:00 (also w, y)"
            }
            Self::RateOfPool => {
                c"ERR rate 0 is a pool that nothing but ending holds refills: only TB.HOLD, TB.SETTLE, TB.MHOLD, TB.MSETTLE, TB.PEEK and TB.GIVE accept it"
            }
            Self::RateOutOfRange => {
                c"ERR rate must be at least 1 token in 100 years (with @: 0.000001 at each boundary) and at most 1e12 tokens per second"
            }
            Self::RefillTooSlow => {
                c"ERR refilling capacity from empty at this rate would take more than 100 years"
            }
            Self::DebtTooDeep => c"ERR amount would put the bucket more than 1e12 tokens into debt",
            Self::NumKeys => c"ERR numkeys must be a whole number from 1 to 1024",
            Self::NumKeysMismatch => c"ERR numkeys must match the number of 'key capacity rate cost' groups",
            Self::NumKeysOfAmounts => {
                c"ERR numkeys must match the number of 'key capacity rate amount' groups"
            }
            Self::NumKeysOfUsed => c"ERR numkeys must match the number of 'key capacity rate used' groups",
            Self::Ttl => c"ERR ttl_ms must be a whole number of milliseconds from 1 to 2592000000",
            Self::Id => c"ERR id must be 1 to 128 bytes",
            Self::Used => c"ERR used must be a decimal number of tokens from 0 to 1e12",
            Self::UsedOfPool => c"ERR used must be 0 where the rate is 0: it would never flow in again",
            Self::TooManyHolds => c"ERR the bucket has tokenbucket.max-holds holds already",
            Self::DuplicateKey => c"ERR key must not be given twice in one call",
            Self::TopOption => c"ERR options of TB.TOP are COUNT n and RESET, each at most once",
            Self::TopCount => c"ERR COUNT must be a whole number of keys from 1 to 100000",
            Self::Effect => c"ERR effect must be one as this module replicates it",
            Self::MaxBurst => c"ERR max_burst must be a whole number of tokens from -1 to 999999999999",
            Self::Count => c"ERR count must be a whole number of tokens from 1 to 1e12",
            Self::Period => c"ERR period must be a whole number of seconds from 1 to 3155760000",
            Self::Quantity => c"ERR quantity must be a whole number of tokens from 0 to 1e12",
            Self::BurstTooSlow => {
                c"ERR refilling max_burst + 1 tokens at count per period would take more than 100 years"
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text().to_string_lossy())
    }
}

impl std::error::Error for Error {}
