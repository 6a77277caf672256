use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokenbucket_client::{Limit, OnError, Options, Server};

/// How often a Redis that was away is looked for.
const RETRY_EVERY: Duration = Duration::from_millis(200);

/// Where the Redis is; URLs of several nodes of one cluster, so that any of them may be away.
#[derive(Debug)]
pub enum Servers {
    Single(String),
    Cluster(Vec<String>),
}

#[derive(Debug)]
pub struct Settings {
    pub listen: SocketAddr,
    pub servers: Servers,
    pub redis_timeout: Duration,
    pub on_error: OnError,
    pub ip_limit: Limit,
    pub search_limit: Limit,
    pub export_limit: Limit,
}

impl Settings {
    /// # Errors
    ///
    /// One line that names the variable.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let read = |name: &'static str, default: &str| {
            let text = get(name).filter(|text| !text.is_empty()).unwrap_or_else(|| default.to_owned());
            Variable { name, text }
        };
        let host: IpAddr = read("HOST", "127.0.0.1").parse(|text| text.parse().ok(), "an IP address")?;
        let port = read("PORT", "3000").parse(|text| text.parse().ok(), "a port")?;
        let redis_timeout = read("REDIS_TIMEOUT_MS", "100").parse(
            |text| text.parse().ok().filter(|ms| (1..=60_000).contains(ms)),
            "a whole number from 1 to 60000",
        )?;
        Ok(Self {
            listen: SocketAddr::new(host, port),
            servers: servers(read("REDIS_URL", ""), read("REDIS_CLUSTER_URLS", ""))?,
            redis_timeout: Duration::from_millis(redis_timeout),
            on_error: read("ON_ERROR", "local").parse(on_error, "'local', 'open' or 'closed'")?,
            ip_limit: limit(read("IP_LIMIT", "20 10/1s"))?,
            search_limit: limit(read("SEARCH_LIMIT", "5 2/1s"))?,
            export_limit: limit(read("EXPORT_LIMIT", "10000 1000/1s"))?,
        })
    }

    /// The limits, and the variables they come from.
    pub fn limits(&self) -> [(&'static str, &Limit); 3] {
        [
            ("IP_LIMIT", &self.ip_limit),
            ("SEARCH_LIMIT", &self.search_limit),
            ("EXPORT_LIMIT", &self.export_limit),
        ]
    }

    /// What all limiters have in common.
    pub fn options(&self) -> Options {
        Options::new().on_error(self.on_error)
    }
}

impl Servers {
    /// # Errors
    ///
    /// One line that names the variable.
    pub fn connect(&self, timeout: Duration) -> Result<Server, String> {
        let server = match self {
            Self::Single(url) => Server::connect(url.as_str()).map_err(|error| format!("REDIS_URL: {error}")),
            Self::Cluster(urls) => Server::cluster(urls.iter().map(String::as_str))
                .map_err(|error| format!("REDIS_CLUSTER_URLS: {error}")),
        };
        Ok(server?.with_timeout(timeout).with_retry_every(RETRY_EVERY))
    }
}

struct Variable {
    name: &'static str,
    text: String,
}

impl Variable {
    fn parse<T>(&self, parse: impl Fn(&str) -> Option<T>, rule: &str) -> Result<T, String> {
        parse(&self.text).ok_or_else(|| format!("{}: {:?} is not {rule}", self.name, self.text))
    }
}

fn servers(single: Variable, cluster: Variable) -> Result<Servers, String> {
    match (single.text.as_str(), cluster.text.as_str()) {
        ("", "") => Ok(Servers::Single("redis://127.0.0.1:6379".to_owned())),
        (url, "") => Ok(Servers::Single(url.to_owned())),
        ("", urls) => Ok(Servers::Cluster(urls.split(',').map(|url| url.trim().to_owned()).collect())),
        _ => Err("REDIS_URL and REDIS_CLUSTER_URLS: set one of them".to_owned()),
    }
}

fn on_error(text: &str) -> Option<OnError> {
    match text {
        "local" => Some(OnError::Local),
        "open" => Some(OnError::Open),
        "closed" => Some(OnError::Closed),
        _ => None,
    }
}

/// `20 10/1s`: capacity and rate.
fn limit(variable: Variable) -> Result<Limit, String> {
    variable.text.parse().map_err(|error| format!("{}: {error}", variable.name))
}
