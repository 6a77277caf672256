//! The gRPC service of Envoy.
