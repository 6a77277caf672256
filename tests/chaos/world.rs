//! What everybody shares: the time, the memory, what has happened so far, and whether it is over.

use crate::common::{Clock, Random};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::Instant;

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

/// The name of what makes things happen to the server.
pub const FAULTS: &str = "the faults";

/// Shared by the clients, the clock and the chaos.
pub struct World {
    pub port: u16,
    /// Read by whoever has a call in flight, so that it changes between calls only.
    pub now: RwLock<Now>,
    pub is_over: AtomicBool,
    /// Nobody waits any more, so that memory can be watched: a server keeps some for clients that waited.
    pub is_calm: AtomicBool,
    /// How often buckets were flushed, or memory was short or enough again.
    pub upheavals: AtomicU64,
    started: Instant,
    /// What each did last.
    history: Mutex<BTreeMap<String, VecDeque<String>>>,
    tally: Mutex<BTreeMap<String, u64>>,
}

impl World {
    pub fn new(port: u16, now_us: i64) -> Self {
        Self {
            port,
            now: RwLock::new(Now { us: now_us, memory: Memory::Free }),
            is_over: AtomicBool::new(false),
            is_calm: AtomicBool::new(false),
            upheavals: AtomicU64::new(0),
            started: Instant::now(),
            history: Mutex::default(),
            tally: Mutex::default(),
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

    /// Remembers what somebody does, for the case of a failure.
    pub fn remember(&self, who: &str, what: &str) {
        const REMEMBERED: usize = 50;
        let mut history = self.history.lock().unwrap();
        let own = history.entry(who.to_owned()).or_default();
        own.push_back(format!("{:9.3?}  {what}", self.started.elapsed()));
        if own.len() > REMEMBERED {
            own.pop_front();
        }
    }

    pub fn count(&self, what: &str) {
        *self.tally.lock().unwrap().entry(what.to_owned()).or_default() += 1;
    }

    /// How far it is, in one line.
    pub fn progress(&self) -> String {
        let tally = self.tally.lock().unwrap();
        // Commands alone are in capitals.
        let is_call = |what: &str| what.starts_with(|letter: char| letter.is_ascii_uppercase());
        let calls: u64 = tally.iter().filter(|(what, _)| is_call(what)).map(|(_, times)| times).sum();
        let events = tally.values().sum::<u64>() - calls;
        format!("{:>4} s  {calls} calls, {events} events", self.started.elapsed().as_secs())
    }

    /// What was counted, in lines that fit a terminal: the replies to commands, and what happened to the server.
    pub fn summary(&self) -> String {
        const IN_A_LINE: usize = 4;
        let tally = self.tally.lock().unwrap();
        let counted: Vec<_> = tally.iter().map(|(what, times)| format!("{what} {times}")).collect();
        counted.chunks(IN_A_LINE).map(|line| line.join(", ")).collect::<Vec<_>>().join("\n")
    }

    /// To be called by whoever goes: if that is by a panic, the first ends everything, and shows what it did last, what
    /// happened to the server, and all that is needed to look into it.
    pub fn leave(&self, who: &str) {
        if thread::panicking() && !self.is_over.swap(true, Ordering::SeqCst) {
            let mut history = self.history.lock().unwrap();
            let mut last = |who| history.entry(who).or_default().make_contiguous().join("\n");
            let [own, faults] = [who, FAULTS].map(|who| last(who.to_owned()));
            println!(
                "{who} failed:\n{own}\nwhat happened to the server:\n{faults}\nin all:\n{}",
                self.summary()
            );
        }
    }
}
