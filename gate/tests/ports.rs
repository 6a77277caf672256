//! Ports for the programs that tests start.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

/// A port below those that the kernel gives to clients, so that it stays free for a restart.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % 9000).expect("below 9000");
    loop {
        let port = 21_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 9000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
