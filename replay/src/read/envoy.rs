//! Envoy's default text format, which has the client's address in `X-Forwarded-For` alone.
//!
//! `[2026-01-01T00:00:00.123Z] "GET /path HTTP/1.1" 200 - 0 12 3 2 "192.0.2.1" "agent" "request id" "host" "upstream"`

use super::text::Place::{Token, Word};
use super::text::{Layout, Text};
use super::Format;

static LAYOUT: Layout = Layout {
    name: "Envoy's text format",
    start: |line| line.starts_with(b"[").then_some(0),
    time: 0,
    fields: &[
        ("request", Token(1)),
        ("method", Word(1, 0)),
        ("path", Word(1, 1)),
        ("status", Token(2)),
        ("bytes", Token(5)),
        ("forwarded", Token(8)),
        ("agent", Token(9)),
        ("host", Token(11)),
    ],
};

/// Reads it, whatever the first line is.
pub fn format(_first_line: &[u8]) -> Option<Box<dyn Format>> {
    Text::format(&LAYOUT)
}
