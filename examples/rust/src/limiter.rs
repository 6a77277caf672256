//! Token bucket limits on the `redis` crate and the tokenbucket module; copy this file.
//!
//! ```no_run
//! # use std::time::Duration;
//! # use tokenbucket_axum::limiter::{Limit, Limiter, Redis};
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = Redis::single("redis://127.0.0.1:6379")?;
//! let limiter = Limiter::new(redis, Duration::from_millis(100));
//! let search = Limit::new(5, 2, Duration::from_secs(1))?;
//! if limiter.take("search:alice", search, 1).await?.is_allowed() {
//!     // ...
//! }
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
use redis::cluster::{ClusterClientBuilder, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    Client, Cmd, ErrorKind, FromRedisValue, IntoConnectionInfo, ParsingError, Pipeline, ProtocolVersion,
    RedisError, RedisFuture, RedisResult, Value,
};

/// A try to connect that takes longer has failed.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// An outage is over once nothing has failed for so long. In a cluster some nodes answer while
/// another is away; that is one outage, not one for each call.
const OVER_AFTER: Duration = Duration::from_secs(1);

/// How many tokens a bucket holds, and how fast they come back.
///
/// Nothing of it is stored in Redis: a new limit counts from the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    capacity: u64,
    count: u64,
    period_ms: u128,
}

impl Limit {
    /// `count` tokens flow in per `period`, up to `capacity`. A capacity of 0 lets nobody through.
    ///
    /// # Errors
    ///
    /// A count of 0, or a period that is not a whole number of milliseconds above 0. (How large all
    /// this may be, the server knows: [`Limiter::peek`] asks it.)
    pub fn new(capacity: u64, count: u64, period: Duration) -> Result<Self, LimitError> {
        if count == 0 {
            return Err(LimitError("count is 0: no token would ever flow in"));
        }
        if period.is_zero() || !period.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(LimitError("period is not a whole number of milliseconds above 0"));
        }
        Ok(Self { capacity, count, period_ms: period.as_millis() })
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// As the commands take it. An exact ratio: 100 an hour is not rounded to 0.0277 a second.
    fn rate(&self) -> String {
        format!("{}/{}ms", self.count, self.period_ms)
    }
}

/// What cannot be a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitError(&'static str);

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for LimitError {}

/// What the server decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    pub outcome: Outcome,
    /// Whole tokens left; negative while the bucket is in debt.
    pub remaining: i64,
    /// Until the bucket is full.
    pub reset_after: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    /// The same call is allowed after this long if nobody else takes, and not a millisecond earlier.
    RetryAfter(Duration),
    /// Waiting does not help: the cost is above the capacity.
    Never,
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        self.outcome == Outcome::Allowed
    }
}

impl FromRedisValue for Decision {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let (allowed, remaining, retry_after_ms, reset_after_ms) =
            <(i64, i64, i64, u64)>::from_redis_value(value)?;
        let outcome = match (allowed, u64::try_from(retry_after_ms)) {
            (1, _) => Outcome::Allowed,
            (_, Ok(ms)) => Outcome::RetryAfter(Duration::from_millis(ms)),
            (_, Err(_)) => Outcome::Never,
        };
        Ok(Self { outcome, remaining, reset_after: Duration::from_millis(reset_after_ms) })
    }
}

/// A connection to a single server or to a cluster; clones share it. Speaks RESP3, by which it
/// also learns at once that a connection was lost.
#[derive(Clone)]
pub enum Redis {
    Single(ConnectionManager),
    Cluster(ClusterConnection),
}

impl Redis {
    /// Connects in the background, and again whenever the connection is lost. Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// The URL is none.
    pub fn single(url: &str) -> RedisResult<Self> {
        let info = url.into_connection_info()?;
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings).set_tcp_settings(tcp_settings()))?;
        let config = ConnectionManagerConfig::new()
            // While there is no server, a call fails at once (and starts the next attempt) instead
            // of waiting for attempts to come.
            .set_number_of_retries(0)
            .set_connection_timeout(Some(CONNECT_WITHIN))
            // The limiter has a timeout of its own.
            .set_response_timeout(None);
        client.get_connection_manager_lazy(config).map(Self::Single)
    }

    /// The same for a cluster that has one of `urls` among its nodes. `timeout` is the limiter's.
    ///
    /// # Errors
    ///
    /// There is no URL, or one that is none.
    pub fn cluster<'a>(urls: impl IntoIterator<Item = &'a str>, timeout: Duration) -> RedisResult<Self> {
        let client = ClusterClientBuilder::new(urls)
            .use_protocol(ProtocolVersion::RESP3)
            .tcp_settings(tcp_settings())
            // For redirections. A retry of a call whose reply was lost can take twice: that errs on
            // the side of the limit.
            .retries(2)
            // Milliseconds. By default more than a second, which nobody would wait for.
            .min_retry_wait(5)
            .max_retry_wait(20)
            .build()?;
        let config = ClusterConfig::new()
            .set_connection_timeout(CONNECT_WITHIN)
            // So that the client's own questions, as for the slots, end too. Not before the limiter
            // gives up: after a timeout redis 1.8 retries a call only when the next one comes.
            .set_response_timeout(timeout.max(CONNECT_WITHIN));
        Ok(Self::Cluster(client.get_pending_async_connection_with_config(config)))
    }
}

fn tcp_settings() -> TcpSettings {
    let settings = TcpSettings::default().set_nodelay(true);
    // A server that vanished without a word must not hold the connection for the quarter of an
    // hour that TCP would go on trying.
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(2));
    settings
}

/// So that any command of the `redis` crate runs on either.
impl ConnectionLike for Redis {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Single(connection) => connection.req_packed_command(cmd),
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Single(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}

/// Asks Redis for decisions, each within a timeout; clones share the connection.
#[derive(Clone)]
pub struct Limiter {
    redis: Redis,
    timeout: Duration,
    /// The last failure of an outage that is not over.
    last_failure: Arc<Mutex<Option<Instant>>>,
}

impl Limiter {
    pub fn new(redis: Redis, timeout: Duration) -> Self {
        Self { redis, timeout, last_failure: Arc::default() }
    }

    /// The same limiter with another timeout.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Takes `cost` tokens from the bucket at `key` if it holds them, else nothing.
    pub async fn take(&self, key: &str, limit: Limit, cost: u64) -> Result<Decision, TakeError> {
        self.decide("TB.TAKE", key, limit, cost).await
    }

    /// What [`Limiter::take`] would decide; takes nothing.
    pub async fn peek(&self, key: &str, limit: Limit, cost: u64) -> Result<Decision, TakeError> {
        self.decide("TB.PEEK", key, limit, cost).await
    }

    async fn decide(&self, name: &str, key: &str, limit: Limit, cost: u64) -> Result<Decision, TakeError> {
        let mut command = redis::cmd(name);
        command.arg(key).arg(limit.capacity).arg(limit.rate()).arg(cost);
        let mut redis = self.redis.clone();
        let result = match tokio::time::timeout(self.timeout, command.query_async(&mut redis)).await {
            Ok(Ok(decision)) => Ok(decision),
            Ok(Err(error)) if is_callers_mistake(&error) => return Err(TakeError::Refused(error)),
            Ok(Err(error)) => Err(TakeError::Unavailable(error)),
            Err(_) => Err(TakeError::TimedOut(self.timeout)),
        };
        self.log_outage(&result);
        result
    }

    /// Logs when an outage begins and when it ends, not for every call in between.
    fn log_outage(&self, result: &Result<Decision, TakeError>) {
        let mut last_failure = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        match (result, *last_failure) {
            (Ok(_), None) => {}
            (Ok(_), Some(at)) if at.elapsed() < OVER_AFTER => {}
            (Ok(_), Some(_)) => {
                *last_failure = None;
                log::warn!("Redis is back, limiting again");
            }
            (Err(error), before) => {
                *last_failure = Some(Instant::now());
                if before.is_none() {
                    log::warn!("cannot ask Redis for limits: {error}");
                }
            }
        }
    }
}

/// Whether the call was wrong in itself. (An unknown command is not: that is a server which came
/// back without the module.)
fn is_callers_mistake(error: &RedisError) -> bool {
    match error.code() {
        Some("ERR") => !error.detail().is_some_and(|text| text.starts_with("unknown command")),
        Some("WRONGTYPE") => true,
        _ => error.kind() == ErrorKind::UnexpectedReturnType,
    }
}

/// Why there is no decision.
#[derive(Debug)]
pub enum TakeError {
    /// Redis did not answer in time.
    TimedOut(Duration),
    /// Redis is not there, or not able to decide.
    Unavailable(RedisError),
    /// The call was wrong in itself, as a key that holds something else. It fails the same way each
    /// time, so it must not pass because it failed.
    Refused(RedisError),
}

impl fmt::Display for TakeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(timeout) => write!(f, "no answer within {} ms", timeout.as_millis()),
            Self::Unavailable(error) | Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for TakeError {}
