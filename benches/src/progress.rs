//! Says on standard error what is being done and how far it is.

use std::fmt::Display;
use std::time::Instant;

/// The steps of a run.
pub struct Progress {
    done: usize,
    steps: usize,
    since: Instant,
}

impl Progress {
    pub fn new(steps: usize) -> Self {
        Self { done: 0, steps, since: Instant::now() }
    }

    /// Announces the next step.
    pub fn step(&mut self, what: impl Display) {
        self.done += 1;
        self.note(what);
    }

    /// Says something about the current step.
    pub fn note(&self, what: impl Display) {
        eprintln!("[{:>3}/{}] {:>4} s  {what}", self.done, self.steps, self.since.elapsed().as_secs());
    }
}
