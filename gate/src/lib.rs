//! Answers proxies that ask whether a request may pass: Envoy by gRPC, others over HTTP. The tokenbucket module in Redis or
//! Valkey decides.
//!
//! | module | |
//! |---|---|
//! | [`settings`] | what the command line and the environment say |
//! | [`limits`] | what the files say: which limit a descriptor has |
//! | [`decide`] | one request: which buckets, what is asked of Redis, what is answered |
//! | [`counters`] | the metrics |
//! | [`check`] | which descriptors an HTTP request has |
//! | [`doors`] | gRPC and HTTP |
//! | [`reload`] | files that change |
//! | `log_lines` | the log |
//! | [`program`] | start, signals, end |

pub mod check;
pub mod counters;
pub mod decide;
pub mod doors;
pub mod limits;
mod log_lines;
pub mod program;
pub mod reload;
pub mod settings;

/// The messages of Envoy's services, as the doors receive them and all modules use them.
pub mod messages {
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
}
