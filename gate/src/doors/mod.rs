//! Where proxies ask.

pub mod grpc;
pub mod http;
