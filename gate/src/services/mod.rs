//! The servers that proxies call.
//!
//! | module | |
//! |---|---|
//! | [`listen`] | accepts connections, few enough to serve all of them |
//! | [`tls`] | certificates, and those that replace them |
//! | [`grpc`] | the services of Envoy and Kuadrant, health, reflection |
//! | `message` | their requests, decoded |
//! | [`http`] | the HTTP server |
//! | `in_flight` | bounds the memory of all requests together |
//! | `json` | requests and replies as proto3 JSON |

pub mod grpc;
pub mod http;
mod in_flight;
mod json;
pub mod listen;
mod message;
pub mod tls;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use tonic_health::server::HealthReporter;
use tonic_health::ServingStatus;

use crate::check::Rules;
use crate::counters::{add, Counters};
use crate::decide::Decider;
use crate::limits::Limits;
pub use in_flight::InFlight;

/// The descriptors of Envoy's messages: reflection shows them, and `/json` reads and writes by them.
const ENVOY_DESCRIPTORS: &[u8] = include_bytes!("ratelimit.binpb");

/// The state that all services share.
pub struct Gate {
    pub decider: Decider,
    /// The limits in use; none before the first were loaded.
    pub limits: ArcSwapOption<Limits>,
    /// The rules for requests over HTTP; none without `CHECK_FILE`.
    pub rules: ArcSwapOption<Rules>,
    pub counters: Arc<Counters>,
    pub health: Health,
    pub in_flight: Arc<InFlight>,
}

impl Gate {
    /// Returns the limits of this moment: a reload does not change them halfway.
    pub fn limits(&self) -> Option<Arc<Limits>> {
        self.limits.load_full()
    }

    /// Decides by these limits from the next request on.
    pub async fn use_limits(&self, limits: Limits) {
        let has_limits = !limits.is_empty();
        self.counters.reserve(&limits);
        self.limits.store(Some(Arc::new(limits)));
        add(&self.counters.config_load_success, 1);
        self.health.set_limits(has_limits).await;
    }
}

/// The health for proxies: `/healthcheck`, and the service `ratelimit` of the gRPC health protocol.
#[derive(Debug)]
pub struct Health {
    redis: AtomicBool,
    limits: AtomicBool,
    needs_limits: bool,
    stopping: AtomicBool,
    reporter: HealthReporter,
}

impl Health {
    /// Creates a health that waits for Redis, and for limits if these are needed.
    pub fn new(reporter: HealthReporter, needs_limits: bool) -> Self {
        let [redis, stopping] = [AtomicBool::new(false), AtomicBool::new(false)];
        Self { redis, limits: AtomicBool::new(!needs_limits), needs_limits, stopping, reporter }
    }

    pub async fn set_redis(&self, answers: bool) {
        self.set(&self.redis, answers).await;
    }

    pub async fn set_limits(&self, exist: bool) {
        self.set(&self.limits, exist || !self.needs_limits).await;
    }

    pub async fn set_stopping(&self) {
        self.set(&self.stopping, true).await;
    }

    async fn set(&self, state: &AtomicBool, value: bool) {
        if state.swap(value, Ordering::Relaxed) != value {
            self.publish().await;
        }
    }

    pub fn is_serving(&self) -> bool {
        let [redis, limits, stopping] =
            [&self.redis, &self.limits, &self.stopping].map(|state| state.load(Ordering::Relaxed));
        redis && limits && !stopping
    }

    pub async fn publish(&self) {
        let status = if self.is_serving() { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.reporter.set_service_status("ratelimit", status).await;
    }
}
