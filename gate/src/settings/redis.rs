//! The Redis to use, and how to connect.

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo,
    TlsCertificates,
};
use tokenbucket_client::{Server, ServerOptions};

use super::{RedisType, Settings, SocketType};

impl Settings {
    /// Returns the server, the master or the cluster of `REDIS_URL`. Connects later.
    ///
    /// # Errors
    ///
    /// One line: which variable is wrong.
    pub fn server(&self) -> Result<Server, String> {
        let options = ServerOptions::new().timeout(self.redis_timeout);
        let wrong = |error| format!("REDIS_URL: {error}");
        match self.redis_type {
            RedisType::Single => {
                Server::connect_with(self.node(&self.redis_url, &self.redis_auth)?, options).map_err(wrong)
            }
            RedisType::Cluster => {
                let nodes = self.nodes(&self.redis_url, &self.redis_auth)?;
                Server::cluster_with(nodes, options).map_err(wrong)
            }
            RedisType::Sentinel => {
                let (master, sentinels) =
                    self.redis_url.split_once(',').ok_or("REDIS_URL: must be master,sentinel:port,…")?;
                // The sentinels report its address.
                let master = self.node(&format!("{}:6379", master.trim()), &self.redis_auth)?;
                let sentinels = self.nodes(sentinels, &self.redis_sentinel_auth)?;
                Server::sentinel_with(master, sentinels, options).map_err(wrong)
            }
        }
    }

    /// Several with commas between.
    fn nodes(&self, urls: &str, auth: &str) -> Result<Vec<ConnectionInfo>, String> {
        urls.split(',').map(|url| self.node(url.trim(), auth)).collect()
    }

    fn node(&self, url: &str, auth: &str) -> Result<ConnectionInfo, String> {
        let info = self.address(url)?;
        let mut settings = info.redis_settings().clone();
        if !auth.is_empty() {
            settings = with_auth(settings, auth);
        }
        self.with_certificates(info.set_redis_settings(settings))
    }

    /// Reads a URL, or `host:port` and paths as in envoyproxy/ratelimit. Errors do not quote it: it may have a password.
    fn address(&self, url: &str) -> Result<ConnectionInfo, String> {
        let wrong = |reason: &str| format!("REDIS_URL: {reason}");
        if url.contains("://") {
            let info = url.into_connection_info().map_err(|error| format!("REDIS_URL: {error}"))?;
            let has_password = info.redis_settings().password().is_some();
            // A password with / ? or # ends the host: the log would show what precedes it.
            return match url.contains('@') && !has_password {
                true => {
                    Err(wrong("has an @ but no password: percent-encode / ? # @ in it, or set REDIS_AUTH"))
                }
                false => Ok(info),
            };
        }
        let is_path = url.starts_with('/') || self.redis_socket_type == Some(SocketType::Unix);
        if url.contains('@') && !url.starts_with('/') {
            return Err(wrong(
                "set user and password by REDIS_AUTH, or write redis://user:password@host:port",
            ));
        }
        let address = if is_path && self.redis_type == RedisType::Single {
            ConnectionAddr::Unix(url.into())
        } else {
            let (host, port) =
                url.rsplit_once(':').ok_or_else(|| wrong("must be host:port, a path or a URL"))?;
            let port = port.parse().map_err(|_| wrong("has no port after the last colon"))?;
            let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
            if host.is_empty() {
                return Err(wrong("has no host"));
            }
            if self.redis_tls {
                ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
            } else {
                ConnectionAddr::Tcp(host, port)
            }
        };
        address.into_connection_info().map_err(|error| wrong(&error.to_string()))
    }

    fn with_certificates(&self, info: ConnectionInfo) -> Result<ConnectionInfo, String> {
        if !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Ok(info);
        }
        let client_tls = match (self.redis_tls_client_cert.as_str(), self.redis_tls_client_key.as_str()) {
            ("", "") => None,
            ("", _) => return Err("REDIS_TLS_CLIENT_KEY needs REDIS_TLS_CLIENT_CERT".to_owned()),
            (_, "") => return Err("REDIS_TLS_CLIENT_CERT needs REDIS_TLS_CLIENT_KEY".to_owned()),
            (cert, key) => Some(ClientTlsConfig {
                client_cert: read("REDIS_TLS_CLIENT_CERT", cert)?,
                client_key: read("REDIS_TLS_CLIENT_KEY", key)?,
            }),
        };
        let root_cert = match self.redis_tls_cacert.as_str() {
            "" => None,
            path => Some(read("REDIS_TLS_CACERT", path)?),
        };
        let info = if client_tls.is_none() && root_cert.is_none() {
            info
        } else {
            let client = Client::build_with_tls(info, TlsCertificates { client_tls, root_cert });
            client.map_err(|error| format!("REDIS_TLS: {error}"))?.get_connection_info().clone()
        };
        let mut address = info.addr().clone();
        address.set_danger_accept_invalid_hostnames(self.redis_tls_skip_hostname_verification);
        Ok(info.set_addr(address))
    }
}

/// `password` or `user:password`.
fn with_auth(settings: RedisConnectionInfo, auth: &str) -> RedisConnectionInfo {
    match auth.split_once(':') {
        Some((user, password)) => settings.set_username(user).set_password(password),
        None => settings.set_password(auth),
    }
}

fn read(variable: &str, path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{variable}={path}: {error}"))
}
