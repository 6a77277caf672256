//! Says how requests are decided, whatever the files say.

use std::time::Duration;

use tokenbucket_client::OnError;

/// The settings that all limits share.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The prefix of all bucket names (`CACHE_KEY_PREFIX`).
    pub prefix: String,
    /// Lets every request pass: the overall code is never OVER_LIMIT (`SHADOW_MODE`).
    pub shadow_mode: bool,
    /// Treats every limit as a quota (`QUOTA_MODE`).
    pub quota_mode: bool,
    /// Takes no call for a report unless a limit says so (`PAID_BEFOREHAND`).
    pub paid_beforehand: bool,
    /// The part of a limit above which a hit counts as near it (`NEAR_LIMIT_RATIO`).
    pub near_limit_ratio: f64,
    /// The most denials that are cached here; 0 for none (from `LOCAL_CACHE_SIZE_IN_BYTES`).
    pub remember_denials: usize,
    /// The names of the three headers, if they are sent (`LIMIT_RESPONSE_HEADERS_ENABLED`, `LIMIT_*_HEADER`).
    pub headers: Option<[String; 3]>,
    /// Adds dynamic metadata to replies (`RESPONSE_DYNAMIC_METADATA`).
    pub dynamic_metadata: bool,
    /// The longest time that a reservation lasts (`RESERVATION_MAX_TTL`).
    pub reservation_max_ttl: Duration,
    /// The largest part of a capacity that one reservation takes (`RESERVATION_MAX_FRACTION`).
    pub reservation_max_fraction: f64,
    /// The reply while Redis is away (`ON_ERROR`): an error, after which the proxy decides, or all requests pass, or none.
    pub on_error: OnError,
}
