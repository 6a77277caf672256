//! Envoy's default text format, which has the client's address in `X-Forwarded-For` alone.
//!
//! `[2026-01-01T00:00:00.123Z] "GET /path HTTP/1.1" 200 - 0 12 3 2 "192.0.2.1" "agent" "request id" "host" "upstream"`

use super::text::{Layout, Text};
use super::Format;

static LAYOUT: Layout = Layout {
    name: "Envoy's text format",
    start: |line| line.starts_with(b"[").then_some(0),
    time: 0,
    fields: "request=1 method=1.0 path=1.1 status=2 bytes=5 forwarded=8 agent=9 host=11",
};

/// Reads it, whatever the first line is.
pub fn format(_first_line: &[u8]) -> Option<Box<dyn Format>> {
    Text::format(&LAYOUT)
}
