//! The common and the combined log format, of nginx, Apache, Traefik and many others.
//!
//! `192.0.2.1 - alice [17/May/2015:10:05:03 +0000] "GET /path HTTP/1.1" 200 512 "referrer" "agent" "forwarded for"`

use super::text::{Layout, Text};
use super::Format;

static LAYOUT: Layout = Layout {
    name: "common or combined log",
    start: |_| Some(0),
    time: 3,
    fields: "ip=0 user=2 request=4 method=4.0 path=4.1 status=5 bytes=6 referrer=7 agent=8 forwarded=9",
};

/// Reads it, whatever the first line is.
pub fn format(_first_line: &[u8]) -> Option<Box<dyn Format>> {
    Text::format(&LAYOUT)
}
