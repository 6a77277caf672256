//! Waiting for what a healthy server does at once.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long anything may take. Generous: machines are busy. `PATIENCE_S` gives servers in an emulator longer.
pub fn patience() -> Duration {
    static PATIENCE: OnceLock<Duration> = OnceLock::new();
    *PATIENCE.get_or_init(|| {
        let told =
            std::env::var("PATIENCE_S").map_or(30, |seconds| seconds.parse().expect("PATIENCE_S is seconds"));
        Duration::from_secs(told)
    })
}

/// Waits until `condition` holds; panics with `what` if it never does.
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    wait_longer(patience(), what, condition);
}

/// The same, for what keeps even a healthy server busy.
pub fn wait_longer(patience: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    poll(patience, what, || condition().then_some(()));
}

/// Waits until something is found, and returns it.
pub fn wait_for<T>(what: &str, find: impl FnMut() -> Option<T>) -> T {
    poll(patience(), what, find)
}

fn poll<T>(patience: Duration, what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {patience:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
