//! Addresses of clients as keys.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr};

use memchr::memchr;

/// Appends the key of a client: its address without the port; of IPv6 the network of 64 bits, which one client has to
/// itself. A name stays a name.
pub fn append_key(text: &[u8], key: &mut Vec<u8>) {
    let text = text.trim_ascii();
    // Nothing else has a colon, and neither a name nor an address of IPv4 changes.
    match memchr(b':', text).and_then(|_| parsed(text)) {
        Some(address) => match address.to_canonical() {
            IpAddr::V4(address) => drop(write!(key, "{address}")),
            IpAddr::V6(address) => {
                let network = Ipv6Addr::from_bits(address.to_bits() >> 64 << 64);
                let _ = write!(key, "{network}/64");
            }
        },
        None => key.extend_from_slice(text),
    }
}

/// Returns the last address of `X-Forwarded-For`, which the nearest proxy added: clients can forge those before it.
pub fn last_forwarded(text: &[u8]) -> Option<&[u8]> {
    let last = text.rsplit(|byte| *byte == b',').next()?.trim_ascii();
    parsed(last).is_some().then_some(last)
}

/// Reads `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80` or `fe80::1%eth0`.
fn parsed(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let host = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => text,
    };
    let host = host.split_once('%').map_or(host, |(host, _zone)| host);
    host.parse().ok().or_else(|| host.split_once(':')?.0.parse().ok())
}
