//! HAProxy's HTTP and TCP formats, behind whatever syslog writes in front.
//!
//! `haproxy[7]: 192.0.2.1:33317 [06/Feb/2009:12:14:14.655] front back/server 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0
//! 0/0 {captured headers} "GET /path HTTP/1.1"`

use memchr::memmem;

use super::text::{Layout, Text};
use super::Format;

static LAYOUT: Layout = Layout {
    name: "HAProxy log",
    start,
    time: 1,
    fields: "ip=0 frontend=2 backend=3 status=5 bytes=6 captured=100 request=12 method=12.0 path=12.1",
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
