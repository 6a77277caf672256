//! Rate limits for axum, decided by the tokenbucket module in Redis or Valkey.
//!
//! [`limiter`] and [`layer`] are for copying, [`app`] and [`settings`] are an app that uses them.

pub mod app;
pub mod layer;
pub mod limiter;
pub mod settings;
