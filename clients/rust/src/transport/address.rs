//! Where a server is, and that it does not answer there.

use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError};

/// The same at another address.
pub(crate) fn at(like: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let address = match like.addr().clone() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure, tls_params }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    like.clone().set_addr(address)
}

pub(crate) fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

/// Replaces an error that quotes the password: a server that lacks a command replies with its arguments.
pub(crate) fn without_password(error: RedisError) -> RedisError {
    match error.detail() {
        Some(text) if text.starts_with("unknown command") => {
            (ErrorKind::InvalidClientConfig, "the server lacks HELLO or AUTH").into()
        }
        _ => error,
    }
}
