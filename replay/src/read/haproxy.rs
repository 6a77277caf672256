//! HAProxy's HTTP and TCP formats, behind whatever syslog writes in front.
//!
//! `haproxy[7]: 192.0.2.1:33317 [06/Feb/2009:12:14:14.655] front back/server 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0
//! 0/0 {captured headers} "GET /path HTTP/1.1"`

use memchr::memmem;

use super::text::Place::{Token, Word};
use super::text::{Layout, Text, BRACES};
use super::Format;

static LAYOUT: Layout = Layout {
    name: "HAProxy log",
    start,
    time: 1,
    fields: &[
        ("ip", Token(0)),
        ("frontend", Token(2)),
        ("backend", Token(3)),
        ("status", Token(5)),
        ("bytes", Token(6)),
        ("captured", Token(BRACES)),
        ("request", Token(12)),
        ("method", Word(12, 0)),
        ("path", Word(12, 1)),
    ],
};

/// Finds the client's address: the word before ` [06/Feb/2009:12:14:14.655]`.
fn start(line: &[u8]) -> Option<usize> {
    let is_time = |at: &usize| {
        matches!(
            line.get(at + 2..),
            Some([_, _, b'/', _, _, _, b'/', _, _, _, _, b':', _, _, b':', _, _, b':', _, _, b'.', ..])
        )
    };
    let at = memmem::find_iter(line, b" [").find(is_time)?;
    let before = line.get(..at)?;
    Some(before.iter().rposition(|byte| *byte == b' ').map_or(0, |space| space + 1))
}

/// Reads it, whatever the first line is.
pub fn format(_first_line: &[u8]) -> Option<Box<dyn Format>> {
    Text::format(&LAYOUT)
}
