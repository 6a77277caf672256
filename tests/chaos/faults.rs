//! What happens to the server while its clients call.

use super::possible_states::{Bucket, PossibleStates};
use super::waiters::{assert_pools, without_pools};
use super::world::{Memory, Now, World, FAULTS};
use crate::common::stored::{
    assert_same_buckets, begin_to_follow, buckets, buckets_alive, is_writing_files, tells_of_a_crash,
    wait_until_replicated, wait_while_time_passes,
};
use crate::common::{is_before, wait_until, Random, Server, ServerBuilder};
use redis::Value;
use std::iter::repeat_n;
use std::sync::atomic::Ordering;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Something that happens: its name, how often in a round, and whether it leaves the process alone, so that its memory can
/// be watched.
pub type Event = (&'static str, usize, bool, fn(&mut Faults));

/// Why a server does not begin to write a file.
const BUSY: &[&str] = &["in progress", "is active"];

/// What happens in one round, in any order.
const EVENTS: [Event; 16] = [
    ("kill", 4, false, |faults| faults.kill()),
    ("disconnect", 2, false, |faults| faults.try_say("CLIENT KILL TYPE normal", &[])),
    ("a replica comes", 2, false, |faults| faults.add_a_replica()),
    ("a replica goes", 1, false, |faults| drop(faults.replicas.pop())),
    ("a replica is cut off", 1, false, |faults| faults.try_say("CLIENT KILL TYPE replica", &[])),
    ("a replica is a master for a moment", 1, false, |faults| faults.promote_for_a_moment()),
    ("compare", 2, false, |faults| faults.compare()),
    ("snapshot", 2, true, |faults| faults.try_say("BGSAVE", BUSY)),
    ("rewrite", 2, true, |faults| faults.try_say("BGREWRITEAOF", BUSY)),
    ("setting", 3, true, |faults| faults.change_a_setting()),
    ("squeeze", 2, true, |faults| faults.squeeze()),
    ("flush", 1, true, |faults| {
        let _now = faults.world.now.write().unwrap();
        faults.empty();
    }),
    ("purge", 1, true, |faults| faults.try_say("MEMORY PURGE", &[])),
    ("reload", 1, true, |faults| faults.try_say("DEBUG RELOAD", &[])),
    ("reload of the append-only file", 1, true, |faults| faults.try_say("DEBUG LOADAOF", &[])),
    ("audit", 1, true, |faults| faults.audit(&faults.world.now.write().unwrap())),
];

/// How often the clock leaps.
const TICK: Duration = Duration::from_millis(15);

/// The longest pause between two events.
const MOST_TICKS: u64 = 60;

/// The server that is called, its replicas, and what its clients believe to be in it.
pub struct Faults<'a> {
    world: &'a World,
    states: &'a [Mutex<PossibleStates>],
    random: Random,
    master: Server,
    /// A chain: none, a replica, or that and a replica of it.
    replicas: Vec<Server>,
}

/// A server that keeps its pace although its clock leaps by minutes.
fn leaping() -> ServerBuilder {
    Server::builder().options("repl-timeout 3600000,repl-diskless-sync-delay 0")
}

/// A server that has in its append-only file whatever it has acknowledged.
pub fn master() -> Server {
    leaping()
        .options("appendonly yes,appendfsync always")
        .options("active-defrag-ignore-bytes 1,active-defrag-threshold-lower 1")
        .controlled_clock()
        .start()
}

impl<'a> Faults<'a> {
    pub fn new(world: &'a World, states: &'a [Mutex<PossibleStates>], master: Server) -> Self {
        Self { world, states, random: Random::new(u64::MAX), master, replicas: vec![] }
    }

    /// One event after the other until the time is over, each at least once.
    pub fn go_on(&mut self, duration: Duration, may_happen: fn(&Event) -> bool) {
        let events = EVENTS.into_iter().filter(may_happen);
        let round: Vec<Event> = events.flat_map(|event| repeat_n(event, event.1)).collect();
        let started = Instant::now();
        for number in 0.. {
            for event in self.random.shuffled(&round) {
                let is_over = self.world.is_over.load(Ordering::SeqCst);
                if is_over || (number > 0 && started.elapsed() >= duration) {
                    return;
                }
                self.happen(event);
            }
            println!("{}", self.world.progress());
        }
    }

    /// Events that leave the process alone. Returns how many bytes the empty server uses, before and after.
    pub fn calm(&mut self, duration: Duration) -> (i64, i64) {
        self.replicas.clear();
        self.world.is_calm.store(true, Ordering::SeqCst);
        self.kill();
        self.try_say("BGSAVE", BUSY);
        let before = self.used_memory_when_empty();
        self.go_on(duration, |(_, _, is_calm, _)| *is_calm);
        (before, self.used_memory_when_empty())
    }

    /// Lets time pass, on the clocks of the servers in leaps.
    fn pause(&mut self) {
        let ticks = self.random.below(MOST_TICKS);
        for _ in 0..ticks {
            thread::sleep(TICK);
            self.world.tick(self.master.clock(), &mut self.random);
        }
    }

    fn happen(&mut self, (name, _, _, happen): Event) {
        self.pause();
        let is_settled = |states: &Mutex<PossibleStates>| states.lock().unwrap().is_settled();
        // Half of the time more happens before anybody looks at what became of a call that was cut off.
        if self.random.once_in(2) && !self.states.iter().all(is_settled) {
            self.audit(&self.world.now.write().unwrap());
        }
        self.world.remember(FAULTS, name);
        self.world.count(name);
        happen(self);
    }

    /// A power cut, whatever the server is doing.
    fn kill(&mut self) {
        self.assert_well();
        self.master.kill();
        // With this lock nobody has a call in flight any more.
        let mut now = self.world.now.write().unwrap();
        self.master.start_again();
        now.memory = Memory::Free;
        if self.random.once_in(2) {
            self.audit(&now);
        }
    }

    /// Panics if a server has ended by itself, or one of its children crashed.
    pub fn assert_well(&self) {
        for server in self.replicas.iter().chain([&self.master]) {
            let log = server.log();
            // By another signal than the one by which servers end them.
            let child_crashed =
                |line: &str| line.contains("terminated by signal") && !line.trim_end().ends_with("signal 10");
            let crashed = tells_of_a_crash(&log) || log.lines().any(child_crashed);
            assert!(!crashed, "a server has crashed:\n{}", end_of(&log));
            server.connect();
        }
    }

    /// Compares every bucket of every client with what is stored, and keeps the one possible state.
    fn audit(&self, now: &Now) {
        let mut client = self.master.connect();
        let mut all_stored = without_pools(buckets(&mut client));
        assert_pools(&mut client);
        for states in self.states {
            let fate = states.lock().unwrap().settle(now, |Bucket { key, .. }| {
                let stored = all_stored.remove(key);
                if stored.is_none() {
                    let left = (client.run(&["TB.HOLDS", key]), client.expires_at_ms(key));
                    assert_eq!(left, (Value::Array(vec![]), None), "{key} has gone, and left something");
                }
                stored
            });
            fate.into_iter().for_each(|fate| self.world.count(fate));
        }
        assert!(all_stored.is_empty(), "there are buckets that nobody made: {:?}", all_stored.keys());
        self.world.count("audited");
    }

    /// The next of the chain, which has two at most.
    fn add_a_replica(&mut self) {
        if self.replicas.len() == 2 {
            return;
        }
        let replica = leaping()
            .clock_of(&self.master)
            .option("repl-diskless-load", self.random.pick(&["disabled", "swapdb"]))
            .option("appendonly", self.random.pick(&["yes", "no"]))
            .start();
        begin_to_follow(&replica, self.replicas.last().unwrap_or(&self.master));
        self.replicas.push(replica);
    }

    /// Lets a replica forget whom it follows, and start anew.
    fn promote_for_a_moment(&mut self) {
        if let Some(replica) = self.replicas.first() {
            replica.connect().say("REPLICAOF NO ONE");
            begin_to_follow(replica, &self.master);
        }
    }

    /// Compares every bucket of every replica, while nobody writes.
    fn compare(&mut self) {
        if self.replicas.is_empty() {
            self.add_a_replica();
        }
        for replica in &self.replicas {
            let mut client = replica.connect();
            // The load goes on meanwhile.
            wait_until("a replica is linked", || {
                self.world.tick(self.master.clock(), &mut self.random);
                client.info("replication", "master_link_status") == "up"
            });
        }
        let mut now = self.world.now.write().unwrap();
        self.replicas.iter().for_each(|replica| wait_until_replicated(replica, &self.master));
        // The wait may have moved the clock.
        now.us = self.master.clock().now_us();
        let expected = buckets(&mut self.master.connect());
        for replica in &self.replicas {
            let found = without_pools(buckets(&mut replica.connect()));
            assert_same_buckets(&found, &without_pools(expected.clone()), "on a replica");
            // Somebody who waits may have been served since.
            wait_until("a replica has the same slots", || {
                buckets(&mut replica.connect()) == buckets(&mut self.master.connect())
            });
            self.world.count("replicas compared");
        }
    }

    /// Sends a command that may be refused for one of these reasons alone.
    fn try_say(&self, words: &str, excuses: &[&str]) {
        if let Err(error) = self.master.connect().try_run(&words.split(' ').collect::<Vec<_>>()) {
            assert!(excuses.iter().any(|excuse| error.contains(excuse)), "{words}: {error}");
        }
    }

    fn change_a_setting(&mut self) {
        #[rustfmt::skip]
        let setting = *self.random.pick(&[
            "hz 1", "hz 100", "hz 500", "activedefrag yes", "activedefrag no", "active-expire-effort 10",
            "notify-keyspace-events KEA", "notify-keyspace-events Ed", "rdb-key-save-delay 0", "rdb-key-save-delay 3000",
            "repl-diskless-sync yes", "repl-diskless-sync no", "aof-use-rdb-preamble yes", "aof-use-rdb-preamble no",
            "lazyfree-lazy-expire yes", "lazyfree-lazy-user-del yes",
        ]);
        self.world.remember(FAULTS, setting);
        // Not every server has been built with an allocator that can, and the oldest have no events of modules.
        let excuses = ["Active defragmentation cannot be enabled", "DISABLED", "Invalid argument 'Ed'"];
        self.try_say(&format!("CONFIG SET {setting}"), &excuses);
    }

    /// No memory for new buckets, for a moment.
    fn squeeze(&mut self) {
        let allowing = !is_before(7, 0) && self.random.once_in(2);
        let memory = if allowing { Memory::FullAndAllowing } else { Memory::FullAndDenying };
        self.set_memory(memory);
        self.pause();
        self.set_memory(Memory::Free);
    }

    fn set_memory(&self, memory: Memory) {
        let mut now = self.world.now.write().unwrap();
        self.world.upheavals.fetch_add(1, Ordering::SeqCst);
        let most_bytes = i32::from(memory != Memory::Free);
        let mut client = self.master.connect();
        client.say(&format!("CONFIG SET maxmemory {most_bytes}"));
        if !is_before(7, 0) {
            let on_oom = if memory == Memory::FullAndAllowing { "allow" } else { "deny" };
            client.say(&format!("CONFIG SET tokenbucket.on-oom {on_oom}"));
        }
        now.memory = memory;
    }

    /// To be called while nobody has a call in flight.
    fn empty(&self) {
        self.world.upheavals.fetch_add(1, Ordering::SeqCst);
        self.master.connect().say("FLUSHALL ASYNC");
        self.states.iter().for_each(|states| states.lock().unwrap().reset());
    }

    /// Bytes, without what belongs to connections, scripts, slow calls and statistics.
    fn used_memory_when_empty(&self) -> i64 {
        let mut now = self.world.now.write().unwrap();
        self.empty();
        let mut client = self.master.connect();
        for words in ["CLIENT KILL TYPE normal", "SCRIPT FLUSH", "SLOWLOG RESET", "CONFIG RESETSTAT"] {
            client.say(words);
        }
        wait_until("all buckets are freed", || buckets_alive(&mut client) == 0);
        // Before 7.0 a server holds 10 MB for what it has to tell a child that rewrites the append-only file.
        wait_while_time_passes(&[self.master.clock()], "no file is written", || {
            !is_writing_files(&mut client)
        });
        now.us = self.master.clock().now_us();
        client.used_memory()
    }
}

impl Drop for Faults<'_> {
    fn drop(&mut self) {
        self.world.remember(FAULTS, &format!("the log ends with:\n{}", end_of(&self.master.log())));
        self.world.leave(FAULTS);
    }
}

fn end_of(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(100)..].join("\n")
}
