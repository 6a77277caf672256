//! Where a server is, and that it does not answer there.

use std::io;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, RedisError, RedisResult,
};
use tokio::task::JoinError;

/// Reads a URL. Speaks RESP3, by which a closed connection is noticed at once.
pub(crate) fn settings(url: impl IntoConnectionInfo) -> RedisResult<ConnectionInfo> {
    let info = read(url)?;
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    // What a closed socket has not delivered is dropped: a hold that came later would be nobody's.
    let tcp = TcpSettings::default().set_nodelay(true).set_linger_time(Duration::ZERO);
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp))
}

pub(crate) fn read(url: impl IntoConnectionInfo) -> RedisResult<ConnectionInfo> {
    url.into_connection_info().map_err(explained)
}

/// Says how to mend a URL. The driver does not, and the URL itself may contain a password.
fn explained(error: RedisError) -> RedisError {
    let text = error.to_string();
    let advice = if text.contains("TLS") {
        "rediss:// needs the redis crate with a feature for TLS, such as tokio-rustls-comp"
    } else if text.contains("did not parse") {
        "invalid URL: write redis://host:port, rediss://host:port for TLS, or unix:///path"
    } else {
        return error;
    };
    (ErrorKind::InvalidClientConfig, advice).into()
}

/// Keeps the settings, at another address.
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
    io::Error::new(io::ErrorKind::TimedOut, "connecting takes longer than the timeout").into()
}

/// Explains why a task that connects did not end. With the features of TLS alone, rustls has no cryptography and panics. So does
/// tokio if it can start no thread that looks up a name.
pub(crate) fn unfinished(error: JoinError) -> RedisError {
    let Ok(panic) = error.try_into_panic() else { return timed_out() };
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason");
    if text.contains("CryptoProvider") {
        let advice = "the driver panicked; TLS by rustls needs the crate rustls too";
        return (ErrorKind::InvalidClientConfig, advice).into();
    }
    io::Error::other(format!("the driver panicked: {text}")).into()
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
