//! One limit of a file.

use std::sync::Arc;

use tokenbucket_client::Limit;

use crate::messages::{CurrentLimit, Struct};

/// A `rate_limit` of a file, or the override of a request.
#[derive(Debug)]
pub struct Rule {
    /// The bucket: `requests_per_unit: 3, unit: minute` is `3 3/m`. Of `requests_per_unit: 0` it is `0 1/m`, which denies
    /// every cost above 0.
    pub limit: Limit,
    /// Tokens of the limit, to count with.
    pub capacity: f64,
    /// The limit in replies.
    pub current: CurrentLimit,
    /// The longest debt, in milliseconds: the unit, or the time of a single token if that is longer.
    pub unit_ms: u64,
    /// The largest debt: the tokens that flow in during `unit_ms`.
    pub most_debt: u64,
    /// Everything passes, uncounted.
    pub unlimited: bool,
    /// Counts, and never denies.
    pub shadow_mode: bool,
    /// It denies only if all limits of the request are exceeded.
    pub quota_mode: bool,
    /// `paid_afterwards` of the file: charges each cost whatever the level, or none that is denied. Without it, reports are
    /// recognised.
    pub paid_afterwards: Option<bool>,
    /// What `replaces` refers to; may be empty.
    pub name: String,
    /// Names of the limits that it replaces.
    pub replaces: Vec<String>,
    /// Goes into the dynamic metadata of the reply when the descriptor passes.
    pub metadata: Option<Struct>,
}

impl Rule {
    pub(super) fn plain(limit: Limit, current: CurrentLimit, unit_ms: u64, most_debt: u64) -> Self {
        Self {
            capacity: limit.capacity().parse().unwrap_or(0.0),
            limit,
            current,
            unit_ms,
            most_debt,
            unlimited: false,
            shadow_mode: false,
            quota_mode: false,
            paid_afterwards: None,
            name: String::new(),
            replaces: Vec::new(),
            metadata: None,
        }
    }
}

/// The limit of one descriptor of a request.
#[derive(Clone, Debug)]
pub struct Matched {
    pub rule: Arc<Rule>,
    /// The name of the bucket without `CACHE_KEY_PREFIX`, unambiguous whatever keys and values contain, with a hash tag.
    pub bucket: String,
    /// The name of the metrics: `domain.key_value.key`, with values according to `detailed_metric`, `value_to_metric` and
    /// `share_threshold`.
    pub metric: String,
}
