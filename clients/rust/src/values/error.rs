//! Errors, and whether the caller or the server caused them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, ParsingError, RedisError};

use crate::values::JointDecision;

/// Why there is no decision.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refuses the call, as it would the next time: a key of another type, a wrong password. `OnError` does not
    /// apply, because failing open would hide the mistake.
    #[error("{server}: {error}")]
    Refused {
        /// `host:port`.
        server: String,
        /// The server's reply.
        #[source]
        error: RedisError,
    },
    /// An argument of the call is wrong. The text says which.
    #[error("{0}")]
    BadArgument(String),
    /// The call needs the module, which the server has not loaded.
    #[error("{problem}; {advice}")]
    ModuleMissing {
        /// Names the server.
        problem: String,
        /// Tells the programmer what to do.
        advice: &'static str,
    },
    /// The buckets of one call are in several slots of a cluster: give their names a common hash tag.
    #[error("in a cluster, the names of one call have to share a hash tag, as in {{ada}}:requests")]
    CrossSlot,
    /// The hold was denied.
    #[error("denied{}", outlook(.0))]
    Denied(JointDecision),
    /// The server is away, and `OnError` is [`Error`](crate::OnError::Error). The text names the server and the reason.
    #[error("{0}")]
    ServerAway(String),
    /// The reply was lost, and `OnError` is [`Error`](crate::OnError::Error): the server, which the text names, may or may not
    /// have executed the call.
    #[error("{0}: the reply was lost; it is not known whether the call happened")]
    ReplyLost(String),
    /// The caller's own deadline is over, see [`sync::Limiter::within`](crate::sync::Limiter::within). Or the call would sleep
    /// on the thread that carries the connections, as one of a logger of the TLS library may.
    #[error("the caller's deadline is over")]
    DeadlinePassed,
}

impl Error {
    /// What a server replied to a call that would be wrong the next time as well.
    pub(crate) fn refused(server: &str, error: RedisError) -> Self {
        match error.code() {
            Some("CROSSSLOT") => Self::CrossSlot,
            Some("MOVED" | "ASK") => Self::BadArgument(format!(
                "server: {server} is a node of a cluster: connect with Server::cluster"
            )),
            _ => Self::Refused { server: server.to_owned(), error },
        }
    }
}

impl From<ParsingError> for Error {
    fn from(error: ParsingError) -> Self {
        Self::Refused { server: "the server".to_owned(), error: error.into() }
    }
}

fn outlook(denial: &JointDecision) -> String {
    match denial.binding.retry_after() {
        Some(wait) => format!("; there may be room in {} ms", wait.as_millis()),
        None => ": more than the limit ever holds".to_owned(),
    }
}

/// Why a request has no reply of use.
#[derive(thiserror::Error, Debug)]
pub(crate) enum Failure {
    /// Not sent: the node is away.
    #[error("it was not asked")]
    NotSent,
    /// Not sent: there is no connection.
    #[error("{0}")]
    NotConnected(RedisError),
    /// Not sent: connecting goes on, and another node may know as much.
    #[error("connecting takes longer than the timeout")]
    SlowToConnect,
    /// Not sent: this process gets no further connection, while others work.
    #[error("{0}")]
    NoMore(RedisError),
    /// Sent, and nothing came from the server for so long.
    #[error("no answer within {} ms", .0.as_millis())]
    Silent(Duration),
    /// Sent long ago; others are answered meanwhile.
    #[error("no answer, while other calls are answered")]
    TooOld,
    /// Sent, and the connection broke.
    #[error("{0}")]
    Broken(RedisError),
    /// The server's reply is an error.
    #[error("{0}")]
    Replied(RedisError),
}

impl Failure {
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Replied(error) => error.code(),
            _ => None,
        }
    }

    /// Returns whether the server itself has said so.
    pub(crate) fn is_reply(&self) -> bool {
        match self {
            Self::Replied(_) => true,
            Self::NotConnected(error) => error.code().is_some(),
            _ => false,
        }
    }

    /// Returns whether the server may have executed the request.
    pub(crate) fn was_sent(&self) -> bool {
        matches!(self, Self::Silent(_) | Self::TooOld | Self::Broken(_))
    }

    pub(crate) fn is_unknown_command(&self) -> bool {
        let detail = match self {
            Self::Replied(error) if error.code() == Some("ERR") => error.detail(),
            _ => None,
        };
        detail.is_some_and(|text| text.starts_with("unknown command"))
    }

    /// Returns whether the node knows of no node that serves the slot.
    pub(crate) fn is_unserved(&self) -> bool {
        matches!(self, Self::Replied(error) if is_unserved(error))
    }

    pub(crate) fn is_away(&self) -> bool {
        self.fault() == Fault::Away
    }

    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::NotSent | Self::SlowToConnect | Self::TooOld | Self::NoMore(_) => Fault::OneCall,
            Self::NotConnected(error) if is_tls_mistake(error) => Fault::Callers,
            Self::NotConnected(error) if is_busy(error) => Fault::Away,
            Self::Silent(_) | Self::Broken(_) => Fault::Away,
            Self::NotConnected(error) | Self::Replied(error) => fault_of(error),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call would be wrong the next time as well.
    Callers,
    /// The server does not answer, or cannot decide.
    Away,
    /// The server is there and refuses this write, which says nothing about the next.
    Refusing,
    /// Of this call alone, which says nothing about the server.
    OneCall,
}

fn fault_of(error: &RedisError) -> Fault {
    let is_full = || error.detail().is_some_and(|text| text.contains("max number of clients"));
    match error.code() {
        // It serves its own slots.
        Some(_) if is_unserved(error) => Fault::Refusing,
        Some("LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" | "UNKILLABLE") => Fault::Away,
        Some("OOM" | "READONLY" | "MISCONF" | "NOREPLICAS" | "TRYAGAIN" | "UNBLOCKED") => Fault::Refusing,
        Some("ERR") if is_full() => Fault::Away,
        Some(_) => Fault::Callers,
        None => match error.kind() {
            ErrorKind::Io | ErrorKind::Parse | ErrorKind::ClusterConnectionNotFound => Fault::Away,
            _ => Fault::Callers,
        },
    }
}

fn is_unserved(error: &RedisError) -> bool {
    let is_of_slot = |text: &str| text.starts_with("Hash slot not served");
    error.code() == Some("CLUSTERDOWN") && error.detail().is_some_and(is_of_slot)
}

/// Returns whether the server runs a script, and so selects no database: of that reply the driver drops the code.
fn is_busy(error: &RedisError) -> bool {
    error.detail().is_some_and(|text| text.contains("is busy running"))
}

/// Returns whether the two sides do not agree on TLS: a certificate that is not trusted, or a reply that is not TLS. A server
/// without TLS may also be silent or hang up, as one that is away.
fn is_tls_mistake(error: &RedisError) -> bool {
    type Shared = Arc<dyn std::error::Error + Send + Sync>;
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Shared>());
    source
        .and_then(|shared| shared.downcast_ref::<io::Error>())
        .is_some_and(|error| matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput))
}
