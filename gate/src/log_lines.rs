//! The log: one line for each message, on standard error.

use std::io::Write;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::settings::LogFormat;

/// Writes messages of this program and its Redis client from `level` on.
pub fn start(level: LevelFilter, format: LogFormat) {
    if log::set_boxed_logger(Box::new(Lines { format })).is_ok() {
        log::set_max_level(level);
    }
}

struct Lines {
    format: LogFormat,
}

impl Log for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Libraries log each packet; what matters to an operator is logged here.
        // notify warns when a watched folder is removed, which it sees twice: in the folder and in its parent.
        let is_noise = metadata.level() > Level::Warn || metadata.target().starts_with("notify");
        !is_noise || metadata.target().starts_with("tokenbucket")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let time = DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Millis, true);
        let line = match self.format {
            LogFormat::Text => {
                // Names of a request may contain anything.
                let message = record.args().to_string().replace(|c: char| c.is_control(), " ");
                format!("{time} {} {message}\n", record.level())
            }
            LogFormat::Json => {
                let level = record.level().as_str().to_lowercase();
                let message = record.args().to_string();
                let line = serde_json::json!({ "@timestamp": time, "level": level, "@message": message });
                format!("{line}\n")
            }
        };
        // One write, so that lines of threads do not mix. There is no place to report a failure.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}
