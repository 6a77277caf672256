//! What was logged on the thread of a test, on which all its tasks run.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("tokenbucket_client")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            LINES.with_borrow_mut(|lines| lines.push(record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// Starts to listen.
pub fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Logger).expect("no other logger");
        log::set_max_level(log::LevelFilter::Warn);
    });
}

/// What was logged since the last call.
pub fn lines() -> Vec<String> {
    LINES.take()
}
