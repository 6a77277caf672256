//! The HTTP endpoints.
