//! The command line and the environment.
//!
//! The variables are those of envoyproxy/ratelimit, by their names. Each is also an option: `GRPC_PORT` is `--grpc-port`.

mod redis;
mod values;
mod xds;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use log::LevelFilter;
use tokenbucket_client::OnError;

use crate::limits::Options;
use values::{bool_of_go, duration_of_go, level};
pub use xds::ControlPlane;

/// What the program is asked to do.
#[derive(Debug, Parser)]
#[command(name = "tokenbucket-gate", version, about)]
#[command(after_help = "Each option can also be set by an environment variable: --grpc-port by GRPC_PORT.")]
pub struct Arguments {
    /// Instead of serving.
    #[command(subcommand)]
    pub instead: Option<Instead>,
    /// For serving.
    #[command(flatten)]
    pub settings: Settings,
}

/// What the program does instead of serving.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Instead {
    /// Checks files of limits, and CHECK_FILE if it is set, and ends: 0 if all can be used, else 1
    Check {
        /// Files of limits, as they would be loaded together
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Time, level, message.
    Text,
    /// One object in each line.
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RedisType {
    /// One server.
    Single,
    /// The master that sentinels report.
    Sentinel,
    /// A cluster.
    Cluster,
}

/// How to connect to a single Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SocketType {
    /// `host:port`.
    Tcp,
    Unix,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ConfigType {
    /// Files.
    File,
    /// A control plane.
    GrpcXdsSotw,
}

/// Makes settings, each of which is an option and a variable: `name: type = default, more = of clap's`. A field is named as
/// its variable.
macro_rules! settings {
    ($(#[$about:meta])* $all:ident $([$part:ident: $of:ty])? {
        $($(#[$doc:meta])* $name:ident: $type:ty $(= $default:literal)? $(, $more:ident = $value:expr)*;)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, clap::Args)]
        #[allow(clippy::struct_excessive_bools)] // each is a setting of its own
        pub struct $all {
            $(
                $(#[$doc])*
                #[arg(long, env $(, default_value = $default)? $(, $more = $value)*)]
                pub $name: $type,
            )*
            $(#[command(flatten)] pub $part: $of,)?
        }
    };
}

settings! {
/// How requests are decided, whatever the files say.
Policy {
    /// Memory for denials, 256 bytes each; 0 asks Redis every time
    local_cache_size_in_bytes: usize = "0", value_parser = values::cache_bytes;
    /// Part of a limit from which on a hit counts as near it
    near_limit_ratio: f64 = "0.8", value_parser = values::ratio;
    /// Prefix of all keys in Redis
    cache_key_prefix: String = "";
    /// Send the headers below
    limit_response_headers_enabled: bool = "false";
    /// Name of the header for the limit
    limit_limit_header: String = "RateLimit-Limit";
    /// Name of the header for the remaining requests
    limit_remaining_header: String = "RateLimit-Remaining";
    /// Name of the header for the seconds until the limit resets
    limit_reset_header: String = "RateLimit-Reset";
    /// Count, and deny nothing
    shadow_mode: bool = "false";
    /// Treat every descriptor as a quota
    quota_mode: bool = "false";
    /// Take no call for a report, except on quotas and where the file says paid_afterwards: true
    paid_beforehand: bool = "false";
    /// Add dynamic metadata to replies
    response_dynamic_metadata: bool = "false";
    /// Longest time of a reservation
    reservation_max_ttl: Duration = "60s", value_parser = values::reservation_ttl;
    /// Largest part of a capacity that one reservation takes
    reservation_max_fraction: f64 = "0.5", value_parser = values::ratio;
    /// Reply while Redis is away: error, allow or deny
    on_error: OnError = "error", value_parser = values::on_error;
}
}

settings! {
/// All settings for serving.
Settings [policy: Policy] {
    /// Address of the HTTP server: /healthcheck, /json, /check, /metrics
    host: String = "0.0.0.0";
    /// Port of the HTTP server
    port: u16 = "8080";
    /// Address of the debug server: /rlconfig
    debug_host: String = "127.0.0.1";
    /// Port of the debug server
    debug_port: u16 = "6070";
    /// Address of the gRPC server
    grpc_host: String = "0.0.0.0";
    /// Port of the gRPC server
    grpc_port: u16 = "8081";
    /// Path of a Unix socket for gRPC, instead of a port
    grpc_uds: String = "";
    /// Age at which gRPC connections are asked to end
    grpc_max_connection_age: Duration = "24h", value_parser = duration_of_go;
    /// Time after that in which they end
    grpc_max_connection_age_grace: Duration = "1h", value_parser = duration_of_go;
    /// Silence after which a connection is closed; it may last twice as long
    connection_idle_timeout: Duration = "60s", value_parser = duration_of_go;

    /// Whether gRPC uses TLS
    grpc_server_use_tls: bool = "false";
    /// Certificate chain of the gRPC server, PEM
    grpc_server_tls_cert: String = "";
    /// Private key of the gRPC server, PEM
    grpc_server_tls_key: String = "";
    /// Authorities that sign certificates of gRPC clients, PEM; clients need no certificate without it
    grpc_client_tls_cacert: String = "";
    /// Name that the certificate of a gRPC client must have
    grpc_client_tls_san: String = "";

    /// trace, debug, info, warn or error
    log_level: LevelFilter = "warn", value_parser = level;
    /// Format of the log
    log_format: LogFormat = "text", ignore_case = true;

    /// Serve Prometheus on PROMETHEUS_ADDR too; /metrics of the HTTP server is always there
    use_prometheus: bool = "false";
    /// Address and port for Prometheus
    prometheus_addr: String = ":9090";
    /// Path for Prometheus
    prometheus_path: String = "/metrics";

    /// Folder of the configuration; may be a symbolic link that is swapped
    runtime_root: String = "/srv/runtime_data/current";
    /// Folder in RUNTIME_ROOT
    runtime_subdirectory: String = "";
    /// Folder in RUNTIME_SUBDIRECTORY that has the files of limits
    runtime_appdirectory: String = "config";
    /// Ignore files and folders whose name begins with a dot
    runtime_ignoredotfiles: bool = "false";
    /// Allow several files of one domain
    merge_domain_config: bool = "false";
    /// Key of the descriptor entries that choose the slot of a cluster; the first entry without it
    hash_tag_key: String = "";

    /// File of rules for /check: which descriptors a request of a proxy has
    check_file: String = "";
    /// limitador's file of limits, beside those in RUNTIME_ROOT
    limitador_limits_file: String = "";

    /// Where limits come from: FILE, or GRPC_XDS_SOTW for a control plane
    config_type: ConfigType = "FILE";
    /// host:port of the control plane
    config_grpc_xds_server_url: String = "localhost:18000";
    /// The id by which the control plane knows this gate
    config_grpc_xds_node_id: String = "default";
    /// More about this gate: key=value,…
    config_grpc_xds_node_metadata: String = "";
    /// Headers for the control plane: name:value,…
    config_grpc_xds_client_additional_headers: String = "", hide_env_values = true;
    /// Whether the control plane uses TLS
    config_grpc_xds_server_use_tls: bool = "false";
    /// Certificate chain for the control plane, PEM
    config_grpc_xds_client_tls_cert: String = "";
    /// Private key for the control plane, PEM
    config_grpc_xds_client_tls_key: String = "";
    /// Authorities that sign the certificate of the control plane, PEM, beside those of the system
    config_grpc_xds_server_tls_cacert: String = "";
    /// Name that the certificate of the control plane must have instead of its host
    config_grpc_xds_server_tls_san: String = "";
    /// Longest message of the control plane
    xds_client_max_msg_size_in_bytes: usize = "4194304";
    /// Serve before the control plane has sent limits
    force_start_without_initial_config: bool = "false";

    /// Not healthy without limits
    healthy_with_at_least_one_config_loaded: bool = "false";
    /// Not healthy while Redis is away
    redis_health_check_active_connection: bool = "false";

    /// tcp or unix; by default a REDIS_URL that begins with / is a Unix socket
    redis_socket_type: Option<SocketType>, ignore_case = true;
    /// SINGLE, SENTINEL or CLUSTER
    redis_type: RedisType = "SINGLE", ignore_case = true;
    /// host:port, a path, redis://… or rediss://…; master,sentinel:port,… for SENTINEL; nodes with commas for CLUSTER
    redis_url: String = "127.0.0.1:6379", hide_env_values = true;
    /// Password, or user:password
    redis_auth: String = "", hide_env_values = true;
    /// Password of the sentinels, or user:password
    redis_sentinel_auth: String = "", hide_env_values = true;
    /// Whether Redis uses TLS
    redis_tls: bool = "false";
    /// Certificate chain for Redis, PEM
    redis_tls_client_cert: String = "";
    /// Private key for Redis, PEM
    redis_tls_client_key: String = "";
    /// Authorities that sign the certificate of Redis, PEM; those of the system without it
    redis_tls_cacert: String = "";
    /// Accept a certificate of Redis for another host
    redis_tls_skip_hostname_verification: bool = "false";
    /// Silence after which Redis counts as away
    redis_timeout: Duration = "100ms", value_parser = duration_of_go;
}
}

/// Lets a setting that is off by default be an option without a value too.
fn switch(arg: Arg) -> Arg {
    if arg.get_default_values() != ["false"] {
        return arg;
    }
    let arg = arg.action(ArgAction::Set).value_parser(bool_of_go).num_args(0..=1);
    arg.require_equals(true).default_missing_value("true")
}

/// The reason why the program cannot start, in one line, or the text to print instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    Print(String),
    Mistake(String),
}

impl Arguments {
    /// Reads the words of the command line, the first of which is the program, and the environment.
    ///
    /// # Errors
    ///
    /// See [`Stop`].
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, Stop> {
        let matches = Self::command().mut_args(switch).try_get_matches_from(words);
        let arguments = matches.and_then(|matches| Self::from_arg_matches(&matches)).map_err(|e| stop(&e))?;
        if arguments.instead.is_none() {
            arguments.settings.judge().map_err(Stop::Mistake)?;
        }
        Ok(arguments)
    }
}

fn stop(error: &clap::Error) -> Stop {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Stop::Print(error.to_string());
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let option =
        text(ContextKind::InvalidArg).and_then(|arg| arg.split([' ', '[']).next()?.strip_prefix("--"));
    let (Some(option), Some(value)) = (option, text(ContextKind::InvalidValue)) else {
        let line = error.to_string();
        let line = line.lines().take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
        // A URL in the wrong place may have a password.
        let words = line.split_whitespace().map(|word| if word.contains('@') { "…" } else { word });
        let words: Vec<&str> = words.collect();
        return Stop::Mistake(words.join(" ").trim_start_matches("error: ").to_owned());
    };
    let variable = option.to_uppercase().replace('-', "_");
    let reason = match (std::error::Error::source(error), error.get(ContextKind::ValidValue)) {
        (Some(reason), _) => reason.to_string(),
        (None, Some(ContextValue::Strings(values))) if values.is_empty() => "must not be empty".to_owned(),
        (None, Some(ContextValue::Strings(values))) => format!("must be one of {}", values.join(", ")),
        _ => "cannot be read".to_owned(),
    };
    Stop::Mistake(format!("{variable}={value}: {reason}"))
}

impl Policy {
    /// Returns the names of the three headers, if they are sent.
    pub(crate) fn headers(&self) -> Option<[&str; 3]> {
        let names = [&self.limit_limit_header, &self.limit_remaining_header, &self.limit_reset_header];
        self.limit_response_headers_enabled.then(|| names.map(String::as_str))
    }
}

impl Settings {
    /// Checks what no single value shows.
    fn judge(&self) -> Result<(), String> {
        for (name, accepted, reason) in REFUSED {
            let value = std::env::var(name).ok().filter(|value| !accepted.contains(&value.as_str()));
            if let Some(value) = value {
                return Err(format!("{name}={value}: {reason}"));
            }
        }
        if self.grpc_server_use_tls
            && (self.grpc_server_tls_cert.is_empty() || self.grpc_server_tls_key.is_empty())
        {
            return Err(
                "GRPC_SERVER_USE_TLS=true needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY".to_owned()
            );
        }
        if self.config_type == ConfigType::GrpcXdsSotw && !self.limitador_limits_file.is_empty() {
            return Err("LIMITADOR_LIMITS_FILE needs CONFIG_TYPE=FILE".to_owned());
        }
        if !self.grpc_client_tls_san.is_empty() && self.grpc_client_tls_cacert.is_empty() {
            return Err("GRPC_CLIENT_TLS_SAN needs GRPC_CLIENT_TLS_CACERT".to_owned());
        }
        if self.connection_idle_timeout.is_zero() {
            return Err("CONNECTION_IDLE_TIMEOUT=0: must be above 0".to_owned());
        }
        if !self.prometheus_path.starts_with('/') || self.prometheus_path.contains(['{', '}']) {
            return Err(format!("PROMETHEUS_PATH={}: must be a path", self.prometheus_path));
        }
        Ok(())
    }

    /// Returns the age at which connections of gRPC are closed, even active ones.
    pub fn last_age(&self) -> Option<Duration> {
        let [age, grace] = [self.grpc_max_connection_age, self.grpc_max_connection_age_grace];
        (!age.is_zero() && !grace.is_zero()).then(|| age.saturating_add(grace))
    }

    /// Returns how files of limits are read.
    pub fn limits_options(&self) -> Options {
        let hash_tag_key = Some(self.hash_tag_key.clone()).filter(|key| !key.is_empty());
        Options { merge: self.merge_domain_config, hash_tag_key }
    }

    /// Returns the folder that has the files of limits.
    pub fn limits_folder(&self) -> PathBuf {
        Path::new(&self.runtime_root).join(&self.runtime_subdirectory).join(&self.runtime_appdirectory)
    }

    /// `HOST:PORT` of [`prometheus_addr`](Self::prometheus_addr); without a host, all addresses.
    ///
    /// # Errors
    ///
    /// There is no port.
    pub fn prometheus_address(&self) -> Result<(String, u16), String> {
        let no_port = || format!("PROMETHEUS_ADDR={}: must be host:port", self.prometheus_addr);
        let (host, port) = self.prometheus_addr.rsplit_once(':').ok_or_else(no_port)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok((host.to_owned(), port.parse().map_err(|_| no_port())?))
    }
}

/// Returns the variables of envoyproxy/ratelimit that are set and have no effect here.
pub fn without_meaning() -> Vec<&'static str> {
    WITHOUT_MEANING.split_whitespace().filter(|name| std::env::var_os(name).is_some()).collect()
}

/// Variables of envoyproxy/ratelimit that may only have these values.
const REFUSED: [(&str, &[&str], &str); 2] = [
    (
        "REDIS_PERSECOND",
        &["0", "f", "F", "false", "FALSE", "False"],
        "one server decides on all limits: unset it",
    ),
    ("BACKEND_TYPE", &["redis"], "must be redis"),
];

const WITHOUT_MEANING: &str = "\
    GRPC_SERVER_TLS_CA_CERT CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL
    XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL
    XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER
    USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS USE_STATSD STATSD_HOST STATSD_PORT EXTRA_TAGS
    STATS_FLUSH_INTERVAL DISABLE_STATS PROMETHEUS_MAPPER_YAML PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS
    RUNTIME_WATCH_ROOT EXPIRATION_JITTER_MAX_SECONDS STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
    REDIS_POOL_SIZE REDIS_PIPELINE_WINDOW REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM
    REDIS_PERSECOND_SOCKET_TYPE REDIS_PERSECOND_TYPE REDIS_PERSECOND_URL REDIS_PERSECOND_POOL_SIZE
    REDIS_PERSECOND_AUTH REDIS_PERSECOND_TLS REDIS_PERSECOND_SENTINEL_AUTH
    REDIS_PERSECOND_PIPELINE_WINDOW REDIS_PERSECOND_PIPELINE_LIMIT
    REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM REDIS_PERSECOND_TIMEOUT REDIS_POOL_ON_EMPTY_BEHAVIOR
    REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL
    REDIS_STARTUP_MAX_ELAPSED_TIME MEMCACHE_HOST_PORT MEMCACHE_MAX_IDLE_CONNS MEMCACHE_SRV
    MEMCACHE_SRV_REFRESH MEMCACHE_TLS MEMCACHE_TLS_CLIENT_CERT MEMCACHE_TLS_CLIENT_KEY
    MEMCACHE_TLS_CACERT MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION TRACING_ENABLED TRACING_SERVICE_NAME
    TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID TRACING_EXPORTER_PROTOCOL
    TRACING_SAMPLING_RATE";
