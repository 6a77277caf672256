//! Numbers of tokens.

use std::fmt;

use redis::{RedisWrite, ToRedisArgs};
use tokenbucket_core::number::{micro_tokens, Rounding};

use crate::values::Error;

const MOST_TOKENS: f64 = 1e12;

/// Tokens: a cost, a charge, what is held or used. Kept to a millionth of a token.
///
/// ```
/// use tokenbucket_client::Amount;
///
/// assert!(Amount::from(0.5) < Amount::from(2_u64));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Amount(f64);

impl Amount {
    /// The number of tokens, if it is a whole one above 0 that a batch may serve.
    pub(crate) fn as_whole(self) -> Option<u64> {
        let is_whole = self.0 >= 1.0 && self.0 <= MOST_TOKENS && self.0.fract() == 0.0;
        is_whole.then_some(self.0 as u64)
    }

    /// Returns whether the server takes it for nothing, as it does float noise.
    pub(crate) fn is_zero(self) -> bool {
        self.micro() == 0
    }

    /// Returns it as a cost in millionths of a token, as the server reads it.
    pub(crate) fn micro(self) -> i64 {
        micro_tokens(&self.to_redis_args().concat(), Rounding::Up).unwrap_or(i64::MAX)
    }

    /// Checks that this command takes it.
    pub(crate) fn checked(self, operation: &str) -> Result<Self, Error> {
        let (argument, least) = match operation {
            "TB.MTAKE" | "TB.TAKEANY" | "TB.PEEK" | "TB.RESERVE" => ("cost", 0.0),
            "TB.TAKEUPTO" => ("most", 1.0),
            "TB.MSETTLE" => ("used", 0.0),
            _ => ("amount", 0.0),
        };
        if (least..=MOST_TOKENS).contains(&self.0) {
            // -0.0, which commands write as -0, becomes 0.
            return Ok(Self(self.0 + 0.0));
        }
        let problem = format!("{argument}: {self} is not a number of tokens from {least} to 1e12");
        Err(Error::BadArgument(problem))
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! amounts_of {
    ($($number:ty)*) => {$(
        /// Exact up to 2^53, far above the 10^12 tokens that the server allows.
        impl From<$number> for Amount {
            fn from(tokens: $number) -> Self {
                Self(tokens as f64)
            }
        }
    )*};
}

amounts_of!(f64 i32 u32 u64 usize);

impl ToRedisArgs for Amount {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        match self.as_whole() {
            // Much cheaper than of a float.
            Some(whole) => whole.write_redis_args(out),
            // Commands take at most 128 bytes, which zeros would fill.
            None if self.0 > 0.0 && self.0 < 1e-6 => out.write_arg_fmt(format_args!("{:e}", self.0)),
            None => out.write_arg_fmt(self),
        }
    }
}
