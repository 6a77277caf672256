//! A rate limit service for proxies: Envoy by gRPC, others over HTTP. The tokenbucket module in Redis or Valkey decides.
//!
//! | module | |
//! |---|---|
//! | [`settings`] | the command line and the environment |
//! | [`limits`] | the files: the limit of a descriptor |
//! | [`decide`] | one request: its buckets, the calls to Redis, the reply |
//! | [`counters`] | the metrics |
//! | [`check`] | the descriptors of an HTTP request |
//! | [`services`] | gRPC and HTTP |
//! | [`reload`] | files that change |
//! | [`xds`] | limits of a control plane |
//! | `log_lines` | the log |
//! | [`program`] | start, signals, end |

use std::future::Future;

pub mod check;
pub mod counters;
pub mod decide;
pub mod limits;
mod log_lines;
pub mod program;
pub mod reload;
pub mod services;
pub mod settings;
pub mod xds;

/// Completes work that must not be dropped, such as a charge for used tokens, even if its caller is.
async fn to_the_end<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// The messages of Envoy's and Kuadrant's services, as the services receive them and all modules use them.
/// `proto/kuadrant.proto` describes fields.
#[rustfmt::skip] // a line for each field
pub mod messages {
    pub use envoy_types::pb::envoy::config::core::v3::HeaderValue;
    pub use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
        Entry, RateLimitOverride as Override,
    };
    pub use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor as Descriptor;
    pub use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
    pub use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
        Code, DescriptorStatus as Status, RateLimit as CurrentLimit,
    };
    pub use envoy_types::pb::envoy::service::ratelimit::v3::{
        RateLimitRequest as Request, RateLimitResponse as Response,
    };
    pub use envoy_types::pb::google::protobuf::{Duration, Struct, Value};

    /// Asks to reserve an amount under every limit of the descriptors.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ReserveRequest {
        #[prost(string, tag = "1")] pub domain: String,
        #[prost(message, repeated, tag = "2")] pub descriptors: Vec<Descriptor>,
        #[prost(uint64, tag = "3")] pub amount: u64,
        #[prost(message, optional, tag = "4")] pub ttl: Option<Duration>,
    }

    /// Says whether the amount is reserved.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct ReserveResponse {
        #[prost(enumeration = "Code", tag = "1")] pub code: i32,
        #[prost(string, tag = "2")] pub reservation_id: String,
        #[prost(message, repeated, tag = "3")] pub response_headers_to_add: Vec<HeaderValue>,
    }

    /// Ends a reservation with what was used.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct CommitRequest {
        #[prost(string, tag = "1")] pub domain: String,
        #[prost(message, repeated, tag = "2")] pub descriptors: Vec<Descriptor>,
        #[prost(string, tag = "3")] pub reservation_id: String,
        #[prost(uint64, tag = "4")] pub actual_amount: u64,
    }

    /// Says whether there was a reservation.
    #[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
    pub struct CommitResponse {
        #[prost(bool, tag = "1")] pub reservation_released: bool,
    }
}
