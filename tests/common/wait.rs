//! Waiting for what a healthy server does at once.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long anything may take. Generous: machines are busy. `TIMEOUT_S` gives servers in an emulator longer.
pub fn timeout() -> Duration {
    static TIMEOUT: OnceLock<Duration> = OnceLock::new();
    *TIMEOUT.get_or_init(|| {
        let told =
            std::env::var("TIMEOUT_S").map_or(30, |seconds| seconds.parse().expect("TIMEOUT_S is seconds"));
        Duration::from_secs(told)
    })
}

/// Waits until `condition` holds; panics with `what` if it never does.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for(what, || condition().then_some(()));
}

/// Waits until something is found, and returns it.
pub fn wait_for<T>(what: &str, find: impl FnMut() -> Option<T>) -> T {
    wait_within(timeout(), what, find)
}

/// Waits for at most `timeout` until something is found, and returns it: some work keeps a healthy server busy for longer.
pub fn wait_within<T>(timeout: Duration, what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {timeout:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
