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

/// Declares each error with its rule, the beginning of its line, which depends on no call: the code, the argument and what
/// it must be.
macro_rules! errors {
    ($($error:ident: $rule:literal,)*) => {
        /// The reason for refusing a call, which has changed nothing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Error {
            $(#[doc = $rule] $error,)*
        }

        impl Error {
            /// Returns the beginning of the line.
            #[must_use]
            pub const fn rule(self) -> &'static str {
                match self {
                    $(Self::$error => $rule,)*
                }
            }
        }
    };
}

errors! {
    WrongArity: "ERR wrong number of arguments",
    WrongType: "WRONGTYPE Operation against a key holding the wrong kind of value",
    OutOfMemory: "OOM bucket not created: used memory > 'maxmemory' and tokenbucket.on-oom is 'deny'",
    // Of an existing bucket.
    HoldOutOfMemory: "OOM hold not stored: used memory > 'maxmemory'",
    Capacity: "ERR capacity must be a decimal number of tokens from 0 to 1e12",
    Cost: "ERR cost must be a decimal number of tokens from 0 to 1e12",
    Amount: "ERR amount must be a decimal number of tokens from 0 to 1e12",
    Max: "ERR max must be a whole number of tokens from 1 to 1e12",
    // That of `TB.RESERVE`.
    MaxWait: "ERR max_wait_ms must be a whole number of milliseconds from 0 to 3155760000000",
    // That of a call that waits its turn.
    MaxTurnWait: "ERR max_wait_ms must be a whole number of milliseconds from 0 to 2592000000",
    Rate: "ERR rate:",
    // The command needs a rate above 0.
    RateOfPool: "ERR rate must be above 0 here; rate 0 (a semaphore) is for holds and TB.PEEK",
    RateOutOfRange: "ERR rate must be at least 1 token in 100 years (with @: 0.000001 at each boundary) and at most 1e12 tokens per second",
    RefillTooSlow: "ERR refilling capacity from empty at this rate would take more than 100 years",
    DebtTooDeep: "ERR the bucket would be more than 1e12 tokens in debt",
    NumKeys: "ERR numkeys must be a whole number from 1 to 1024",
    Each: "ERR each must be a whole number that divides numkeys",
    NumKeysMismatch: "ERR numkeys must match the number of '",
    Ttl: "ERR ttl_ms must be a whole number of milliseconds from 1 to 2592000000",
    // That of an override, which 0 ends.
    OverrideTtl: "ERR ttl_ms must be a whole number of milliseconds from 0 to 2592000000",
    OverrideOption: "ERR option must be FULL",
    FullOfNothing: "ERR FULL needs a capacity and a ttl_ms above 0",
    Id: "ERR id must be 1 to 128 bytes",
    Used: "ERR used must be a decimal number of tokens from 0 to 1e12",
    UsedOfPool: "ERR used must be 0 if the rate is 0 (nothing would refill it)",
    TooManyHolds: "ERR too many holds in the bucket (tokenbucket.max-holds)",
    DuplicateKey: "ERR key must not be given twice in one call",
    // What follows `max_wait_ms` is not a share.
    ShareOption: "ERR option must be SHARE tenant, or SHARE tenant WEIGHT weight",
    ShareOfSeveral: "ERR SHARE is for calls of one bucket that may wait: TB.BTAKE and TB.BHOLD",
    Tenant: "ERR tenant must be 1 to 128 bytes",
    Weight: "ERR weight must be a decimal number from 0.001 to 1000",
    TopOption: "ERR options of TB.TOP are COUNT n and RESET, each at most once",
    TopCount: "ERR COUNT must be a whole number of keys from 1 to 100000",
    Effect: "ERR effect must have the format that this module replicates",
    MaxBurst: "ERR max_burst must be a whole number of tokens from -1 to 999999999999",
    Count: "ERR count must be a whole number of tokens from 1 to 1e12",
    Period: "ERR period must be a whole number of seconds from 1 to 3155760000",
    Quantity: "ERR quantity must be a whole number of tokens from 0 to 1e12",
    BurstTooSlow: "ERR refilling max_burst + 1 tokens at count per period would take more than 100 years",
}

impl Error {
    /// Returns the argument whose value the line quotes: the first word of its rule, if that is an argument.
    fn argument(self) -> Option<&'static str> {
        let is_quoted = !matches!(
            self,
            Self::RateOfPool
                | Self::Effect
                | Self::OverrideOption
                | Self::FullOfNothing
                | Self::ShareOption
                | Self::ShareOfSeveral
        );
        self.rule().split(' ').nth(1).filter(|_| is_quoted)
    }

    /// Adds the place of the error, from 0, among the buckets or options of the call.
    #[cold]
    #[must_use]
    pub fn at(self, place: usize) -> Refusal {
        Refusal { error: self, place: Some(place) }
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
    /// The bucket or option, from 0.
    place: Option<usize>,
}

impl Refusal {
    /// Counts the place from the bucket at `first`.
    #[cold]
    #[must_use]
    pub fn behind(self, first: usize) -> Self {
        Self { place: self.place.map(|place| place.saturating_add(first)), ..self }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { error, place: None }
    }
}
