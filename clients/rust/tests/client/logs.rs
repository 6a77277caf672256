//! What was logged about the server of a test.

use std::cell::Cell;
use std::sync::{Mutex, Once};

use tokenbucket_client::sync::Limiter;

use crate::servers::Server;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// A limiter to ask before a line about this address.
static ASKED: Mutex<Option<(String, Limiter)>> = Mutex::new(None);

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
        let asked = ASKED.lock().expect("no panic").clone();
        if let Some((_, limiter)) = asked.filter(|(address, _)| record.args().to_string().contains(address)) {
            limiter.take("log", 1).expect("a decision");
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

/// Lets the logger take "log" from this limiter before each line about this server.
pub fn ask(server: &Server, limiter: Limiter) {
    *ASKED.lock().expect("no panic") = Some((address(server), limiter));
}

/// Returns what was logged about this server since the last call.
pub fn lines(server: &Server) -> Vec<String> {
    let address = address(server);
    LINES.lock().expect("no panic").extract_if(.., |line| line.contains(&address)).collect()
}

fn address(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port)
}
