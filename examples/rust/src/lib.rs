//! An axum app whose rate limits are decided by the tokenbucket module in Redis or Valkey.

pub mod app;
pub mod settings;
