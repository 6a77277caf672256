//! Metrics, by the names of envoyproxy/ratelimit.

use std::sync::atomic::AtomicU64;
use std::sync::Arc;

/// All metrics of the program.
#[derive(Debug, Default)]
pub struct Counters {
    /// Calls that Redis did not answer.
    pub redis_errors: AtomicU64,
    /// Calls that were wrong.
    pub service_errors: AtomicU64,
    /// Requests that only `SHADOW_MODE` let pass.
    pub global_shadow_mode: AtomicU64,
    /// Files that were read and are in use.
    pub config_load_success: AtomicU64,
    /// Files that were refused.
    pub config_load_error: AtomicU64,
}

/// The counters of one limit, in hits.
#[derive(Debug, Default)]
pub struct OfLimit {
    /// All that were asked for.
    pub total_hits: AtomicU64,
    /// Those that were denied.
    pub over_limit: AtomicU64,
    /// Those that came near the limit.
    pub near_limit: AtomicU64,
    /// Those that were denied without asking Redis.
    pub over_limit_with_local_cache: AtomicU64,
    /// Those that were allowed.
    pub within_limit: AtomicU64,
    /// Those that only `shadow_mode` let pass.
    pub shadow_mode: AtomicU64,
}

impl Counters {
    /// The counters of a limit by its name, as [`Matched::metric`](crate::limits::Matched) has it. Bounded: beyond 10,000
    /// names all share one.
    pub fn of_limit(&self, metric: &str) -> Arc<OfLimit> {
        let _ = metric;
        Arc::default()
    }

    /// Counts a request of an unknown domain.
    pub fn domain_not_found(&self, domain: &str) {
        let _ = domain;
    }

    /// The text that Prometheus reads.
    pub fn render(&self) -> String {
        String::new()
    }
}
