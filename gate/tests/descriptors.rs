//! Configurations of a control plane, as Envoy Gateway makes them.

use tokenbucket_gate::limits::config_messages::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy};
use tokenbucket_gate::messages::Unit;

/// A configuration with the name of its domain, as Envoy Gateway has them.
pub fn config(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig { name: domain.to_owned(), domain: domain.to_owned(), descriptors }
}

/// A descriptor without a limit.
pub fn descriptor(key: &str, value: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        descriptors,
        ..RateLimitDescriptor::default()
    }
}

/// A descriptor with a limit.
pub fn limited(key: &str, value: &str, requests_per_unit: u32, unit: Unit) -> RateLimitDescriptor {
    let policy = RateLimitPolicy { unit: unit.into(), requests_per_unit, ..RateLimitPolicy::default() };
    RateLimitDescriptor { rate_limit: Some(policy), ..descriptor(key, value, Vec::new()) }
}
