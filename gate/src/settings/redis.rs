//! The Redis to use, and how to connect.

use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo,
    TlsCertificates,
};
use tokenbucket_client::Server;

use super::{RedisType, Settings, SocketType};

impl Settings {
    /// Returns the server, the master or the cluster of `REDIS_URL`. Connects later.
    ///
    /// # Errors
    ///
    /// One line: which variable is wrong.
    pub fn server(&self) -> Result<Server, String> {
        let server = match self.redis_type {
            RedisType::Single => Server::connect(self.node(&self.redis_url, &self.redis_auth)?),
            RedisType::Cluster => Server::cluster(self.nodes(&self.redis_url, &self.redis_auth)?),
            RedisType::Sentinel => {
                let (master, sentinels) =
                    self.redis_url.split_once(',').ok_or("REDIS_URL: must be master,sentinel:port,…")?;
                // The sentinels report its address.
                let master = self.node(&format!("{}:6379", master.trim()), &self.redis_auth)?;
                let sentinels = self.nodes(sentinels, &self.redis_sentinel_auth)?;
                Server::sentinel(master, sentinels)
            }
        };
        let server = server.map_err(|error| format!("REDIS_URL: {error}"))?;
        Ok(server.with_timeout(self.redis_timeout))
    }

    /// Several with commas between. Those without a password have the user and the password of the first.
    fn nodes(&self, urls: &str, auth: &str) -> Result<Vec<ConnectionInfo>, String> {
        let mut nodes: Vec<ConnectionInfo> =
            urls.split(',').map(|url| self.node(url.trim(), auth)).collect::<Result<_, _>>()?;
        let first = nodes.first().map(|node| node.redis_settings().clone());
        for node in &mut nodes {
            if let (None, Some(first)) = (node.redis_settings().password(), &first) {
                *node = node.clone().set_redis_settings(first.clone());
            }
        }
        Ok(nodes)
    }

    fn node(&self, url: &str, auth: &str) -> Result<ConnectionInfo, String> {
        let info = self.address(url)?;
        let settings = with_auth(with_parameters(info.redis_settings().clone(), url)?, auth);
        let problem = match (settings.username(), settings.password()) {
            (_, Some(_)) => return self.with_tls(info.set_redis_settings(settings)),
            (Some(_), None) => "has a user and no password: REDIS_AUTH is a password, or user:password",
            // A password with / ? or # ends the host: the log would show what precedes it.
            (None, None) if url.contains("://") && url.contains('@') => {
                "has an @ but no password: percent-encode / ? # @ in it, or set REDIS_AUTH"
            }
            (None, None) => return self.with_tls(info.set_redis_settings(settings)),
        };
        Err(format!("REDIS_URL: {problem}"))
    }

    /// Reads a URL, or `host:port` and paths as in envoyproxy/ratelimit. Errors do not quote it: it may have a password.
    fn address(&self, url: &str) -> Result<ConnectionInfo, String> {
        let wrong = |reason: &str| format!("REDIS_URL: {reason}");
        if url.contains("://") {
            return url.into_connection_info().map_err(|error| wrong(&error.to_string()));
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
            ConnectionAddr::Tcp(host, port)
        };
        address.into_connection_info().map_err(|error| wrong(&error.to_string()))
    }

    /// Returns whether `REDIS_TLS` or one URL of the list asks for TLS. Then all have it: they share passwords.
    ///
    /// # Errors
    ///
    /// A URL says that it has none.
    fn uses_tls(&self) -> Result<bool, String> {
        let schemes = self.redis_url.split(',').filter_map(|url| Some(url.trim().split_once("://")?.0));
        let (with, without): (Vec<_>, Vec<_>) = schemes
            .map(str::to_ascii_lowercase)
            .partition(|scheme| matches!(&**scheme, "rediss" | "valkeys"));
        match (self.redis_tls, with.is_empty(), without.is_empty()) {
            (false, false, false) => {
                Err("REDIS_URL: has addresses with TLS and without: write rediss:// before all".to_owned())
            }
            (redis_tls, without_any, _) => Ok(redis_tls || !without_any),
        }
    }

    /// Sets up TLS if [it is used](Self::uses_tls).
    fn with_tls(&self, info: ConnectionInfo) -> Result<ConnectionInfo, String> {
        let info = match info.addr().clone() {
            ConnectionAddr::TcpTls { .. } => info,
            _ if !self.uses_tls()? => return Ok(info),
            ConnectionAddr::Tcp(host, port) => {
                let insecure = false;
                info.set_addr(ConnectionAddr::TcpTls { host, port, insecure, tls_params: None })
            }
            _ => return Err("REDIS_TLS=true needs a host in REDIS_URL, not a Unix socket".to_owned()),
        };
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

/// Reads the parameters of envoyproxy/ratelimit's driver: `?username=…&password=…&db=…`. The crate reads `protocol`, and all those
/// of a Unix socket.
fn with_parameters(mut settings: RedisConnectionInfo, url: &str) -> Result<RedisConnectionInfo, String> {
    let Some(url) = redis::parse_redis_url(url) else { return Ok(settings) };
    if url.fragment().is_some() {
        return Err("REDIS_URL: has a # part, which means nothing here".to_owned());
    }
    let is_socket = url.scheme().ends_with("unix");
    let known = if is_socket {
        ["user", "pass", "db", "protocol"]
    } else {
        ["username", "password", "db", "protocol"]
    };
    let mut has_db = !is_socket && !url.path().trim_matches('/').is_empty();
    for (name, value) in url.query_pairs() {
        settings = match &*name {
            name if !known.contains(&name) => {
                // It may be a part of a password that is not percent-encoded.
                let shown = if url.as_str().contains('@') {
                    String::new()
                } else {
                    format!(", not '{}'", crate::limits::yaml::shown(name))
                };
                let known = known.join(", ").replace(", protocol", " and protocol");
                return Err(format!("REDIS_URL: only {known} can follow the ?{shown}"));
            }
            "username" if settings.username().is_none() => settings.set_username(value),
            "password" if settings.password().is_none() => settings.set_password(value),
            "db" if !is_socket && !has_db => {
                has_db = true;
                settings.set_db(value.parse().map_err(|_| "REDIS_URL: db must be a number")?)
            }
            "username" | "password" | "db" if !is_socket => {
                return Err(format!("REDIS_URL: has {name} twice"))
            }
            _ => settings,
        };
    }
    Ok(settings)
}

/// Adds `password` or `user:password`. An empty part leaves that of the URL.
fn with_auth(mut settings: RedisConnectionInfo, auth: &str) -> RedisConnectionInfo {
    let (user, password) = auth.split_once(':').unwrap_or(("", auth));
    if !user.is_empty() {
        settings = settings.set_username(user);
    }
    if !password.is_empty() {
        settings = settings.set_password(password);
    }
    settings
}

pub(super) fn read(variable: &str, path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{variable}={path}: {error}"))
}
