//! What was logged about the server of a test.

use std::cell::Cell;
use std::sync::{Mutex, Once};

use crate::servers::Server;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    /// Lets the logger run a runtime on this thread, as one that sends lines elsewhere may.
    pub static RUNS_A_RUNTIME: Cell<bool> = const { Cell::new(false) };
}

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("tokenbucket_client")
    }

    fn log(&self, record: &log::Record<'_>) {
        if RUNS_A_RUNTIME.get() {
            tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(async {});
        }
        if self.enabled(record.metadata()) {
            LINES.lock().expect("no panic").push(record.args().to_string());
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

/// Returns what was logged about this server since the last call.
pub fn lines(server: &Server) -> Vec<String> {
    let address = format!("127.0.0.1:{}", server.port);
    LINES.lock().expect("no panic").extract_if(.., |line| line.contains(&address)).collect()
}
