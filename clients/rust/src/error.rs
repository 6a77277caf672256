//! What goes wrong, and whose fault it is.

use std::fmt;

use redis::{ErrorKind, RedisError};

use crate::decision::JointDecision;

/// Why there is no decision. A server that is away is none of it: then the policy decides, see
/// [`OnError`](crate::OnError).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The call is wrong or not permitted, and would be the next time as well: a capacity that cannot be, a key of
    /// another type, a wrong password. Failing open must not hide it.
    Refused(RedisError),
    /// The server has not loaded the module.
    ModuleMissing(&'static str),
    /// The buckets of one call are in several slots of a cluster.
    CrossSlot,
    /// The hold was denied.
    Denied(JointDecision),
}

pub(crate) const LOAD_THE_MODULE: Error =
    Error::ModuleMissing("the server has no tokenbucket module: load it, or set Fallback::Script");
pub(crate) const HOLDS_NEED_THE_MODULE: Error =
    Error::ModuleMissing("holds need the tokenbucket module, which the server has not loaded");

const SHARE_A_HASH_TAG: &str =
    "in a cluster, the names of one call have to share a hash tag, as in {ada}:requests";

/// What the server replied to a call that would be wrong the next time as well.
impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        match error.code() {
            Some("CROSSSLOT") => Self::CrossSlot,
            _ => Self::Refused(error),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::ModuleMissing(text) => f.write_str(text),
            Self::CrossSlot => f.write_str(SHARE_A_HASH_TAG),
            Self::Denied(decision) => match decision.binding.retry_after() {
                Some(wait) => write!(f, "denied; there may be room in {} ms", wait.as_millis()),
                None => f.write_str("denied: more than the limit ever holds"),
            },
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(error) => Some(error),
            Self::ModuleMissing(_) | Self::CrossSlot | Self::Denied(_) => None,
        }
    }
}

/// Why a command has no reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The fake never lets anybody wait.
    #[cfg_attr(not(any(feature = "sync", feature = "tokio")), allow(dead_code))]
    TimedOut,
    Redis(RedisError),
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => f.write_str("no answer in time"),
            Self::Redis(error) => error.fmt(f),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call would be wrong the next time as well.
    Callers,
    /// Nobody answers, or nobody who decides.
    Away,
    /// The server is there and refuses this write, which says nothing about the next.
    Refusing,
}

impl Failure {
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::TimedOut => Fault::Away,
            Self::Redis(error) => fault_of(error),
        }
    }

    pub(crate) fn is_unknown_command(&self) -> bool {
        self.has_code("ERR") && self.detail().is_some_and(|text| text.starts_with("unknown command"))
    }

    pub(crate) fn is_unknown_script(&self) -> bool {
        self.has_code("NOSCRIPT")
    }

    /// Whether the connection broke before there was a reply.
    pub(crate) fn is_broken_connection(&self) -> bool {
        matches!(self, Self::Redis(error) if error.is_connection_dropped())
    }

    fn has_code(&self, code: &str) -> bool {
        matches!(self, Self::Redis(error) if error.code() == Some(code))
    }

    fn detail(&self) -> Option<&str> {
        match self {
            Self::Redis(error) => error.detail(),
            Self::TimedOut => None,
        }
    }
}

fn fault_of(error: &RedisError) -> Fault {
    match error.code() {
        Some("LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "UNKILLABLE" | "MOVED" | "ASK") => {
            Fault::Away
        }
        Some("OOM" | "READONLY" | "MISCONF" | "NOREPLICAS" | "TRYAGAIN") => Fault::Refusing,
        Some(_) => Fault::Callers,
        None => match error.kind() {
            ErrorKind::Io | ErrorKind::Parse | ErrorKind::ClusterConnectionNotFound => Fault::Away,
            _ => Fault::Callers,
        },
    }
}
