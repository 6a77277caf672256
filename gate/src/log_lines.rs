//! The log: one line for each message, on standard error.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

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
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = rfc3339(now.as_millis());
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

/// `2026-11-22T17:08:35.012Z`, for milliseconds since 1970.
fn rfc3339(ms: u128) -> String {
    let ms = u64::try_from(ms).unwrap_or(u64::MAX);
    let (seconds, ms) = (ms / 1_000, ms % 1_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Counts years from March on, so that the day of leap years is the last of one.
    let days = days.saturating_add(719_468);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year + 400 * era + next;
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}
