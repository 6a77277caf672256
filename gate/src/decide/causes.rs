//! Logs why there is no decision.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokenbucket_client::Error;

/// The time between two lines about one cause.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// The most causes that are logged within that time.
const MOST_CAUSES: usize = 100;

/// When each cause was last logged: under load a cause meets thousands of calls a second.
#[derive(Default)]
pub(super) struct Causes(Mutex<HashMap<String, Instant>>);

impl Causes {
    /// Logs the error after `what`, unless this cause was logged within the last minute.
    pub(super) fn log(&self, what: &str, error: &Error) {
        let cause = match error {
            Error::Refused { server, error } => {
                format!("{what}: {server}: {}", error.code().unwrap_or_default())
            }
            other => format!("{what}: {}", problem_of(other)),
        };
        if self.is_new(cause) {
            log::warn!("{what}: {}", problem_of(error));
        }
    }

    /// Logs a line, unless it was logged within the last minute.
    pub(super) fn note(&self, line: String) {
        if self.is_new(line.clone()) {
            log::warn!("{line}");
        }
    }

    fn is_new(&self, cause: String) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() >= MOST_CAUSES {
            logged.retain(|_, at| at.elapsed() < LOG_EVERY);
        }
        let is_new = logged.get(&cause).is_none_or(|at| at.elapsed() >= LOG_EVERY);
        let has_room = logged.len() < MOST_CAUSES || logged.contains_key(&cause);
        if is_new && has_room {
            logged.insert(cause, Instant::now());
        }
        is_new && has_room
    }
}

/// Returns an error as operators read it: without the advice to programmers that follows a missing module.
pub(super) fn problem_of(error: &Error) -> String {
    match error {
        Error::ModuleMissing { problem, .. } => problem.clone(),
        other => other.to_string(),
    }
}
