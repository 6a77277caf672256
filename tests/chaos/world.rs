//! What everybody shares: the time, the memory, what has happened so far, and whether it is over.

use crate::common::{Clock, Random};
use std::collections::{BTreeMap, VecDeque};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};
use std::time::{Duration, Instant};

/// How much memory the server has for new buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Free,
    FullAndDenying,
    FullAndAllowing,
}

/// What a call must know to be judged.
#[derive(Clone, Debug)]
pub struct Now {
    /// The clock of the servers, in Unix microseconds.
    pub us: i64,
    pub memory: Memory,
}

/// Shared by the clients, the clock and the chaos.
pub struct World {
    pub seed: u64,
    pub port: u16,
    /// Read by whoever has a call in flight, so that it changes between calls only.
    pub now: RwLock<Now>,
    /// Nobody connects while it is set. (To connect to a port of one's own machine on which nobody listens may
    /// connect one to oneself.)
    pub is_down: AtomicBool,
    started: Instant,
    over: AtomicBool,
    history: Mutex<VecDeque<String>>,
    tally: Mutex<BTreeMap<String, u64>>,
    failure: Mutex<Option<String>>,
}

/// Events that a failure shows.
const REMEMBERED: usize = 40;

impl World {
    pub fn new(seed: u64, port: u16, now_us: i64) -> Self {
        // All streams of numbers begin with it.
        std::env::set_var("SEED", seed.to_string());
        Self {
            seed,
            port,
            now: RwLock::new(Now { us: now_us, memory: Memory::Free }),
            is_down: AtomicBool::new(false),
            started: Instant::now(),
            over: AtomicBool::new(false),
            history: Mutex::default(),
            tally: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// Moves the clock between two calls: by a microsecond, by an hour, or by anything between.
    pub fn tick(&self, clock: &Clock, random: &mut Random) {
        const HOUR_US: i64 = 3_600_000_000;
        let longest_us = HOUR_US >> random.below(32);
        let mut now = self.now.write().unwrap();
        clock.advance_us(random.between(1, longest_us.max(1)));
        now.us = clock.now_us();
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    pub fn end(&self) {
        self.over.store(true, Ordering::SeqCst);
    }

    /// Remembers an event, for the case of a failure.
    pub fn remember(&self, event: &str) {
        let mut history = self.history.lock().unwrap();
        history.push_back(format!("{:9.3?}  {event}", self.elapsed()));
        if history.len() > REMEMBERED {
            history.pop_front();
        }
    }

    pub fn count(&self, what: &str) {
        *self.tally.lock().unwrap().entry(what.to_owned()).or_default() += 1;
    }

    pub fn counted(&self, what: &str) -> u64 {
        self.tally.lock().unwrap().get(what).copied().unwrap_or_default()
    }

    /// How far it is and what was counted, in one line.
    pub fn summary(&self) -> String {
        let tally = self.tally.lock().unwrap();
        let counted: Vec<_> = tally.iter().map(|(what, times)| format!("{what} {times}")).collect();
        format!("{:5.0?}  {}", self.elapsed(), counted.join(", "))
    }

    /// Lets somebody work. A first panic is the failure, with the worker's tail, and ends everything.
    pub fn guard<T: Worker>(&self, who: &str, mut worker: T, work: impl FnOnce(&mut T)) {
        let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| work(&mut worker))) else { return };
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        let failure = format!("{who}, after {:?}: {message}\n{}", self.elapsed(), worker.tail());
        self.failure.lock().unwrap().get_or_insert(failure);
        self.end();
    }

    /// What went wrong, with all that is needed to look into it.
    pub fn failure(&self) -> Option<String> {
        let failure = self.failure.lock().unwrap().clone()?;
        let history = self.history.lock().unwrap().make_contiguous().join("\n");
        let (seed, summary) = (self.seed, self.summary());
        Some(format!("CHAOS_SEED={seed} {failure}\nwhat happened last:\n{history}\nin all: {summary}"))
    }
}

/// Somebody whose failure ends everything.
pub trait Worker {
    /// What it did last.
    fn tail(&self) -> String;
}
