//! What happens to the server while its clients call.

use super::books::Books;
use super::world::{Memory, Now, World};
use crate::common::stored::{
    assert_same_buckets, begin_to_follow, buckets, buckets_alive, tells_of_a_crash, wait_until_replicated,
};
use crate::common::{is_before, wait_until, Connection, Random, Server, ServerBuilder};
use redis::Value;
use std::iter::repeat_n;
use std::sync::atomic::Ordering;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Something that happens: its name, how often in a round, and whether it leaves the process alone, so that its memory can
/// be watched.
type Event = (&'static str, usize, bool, fn(&mut Storm));

/// Why a server does not begin to write a file.
const BUSY: &[&str] = &["in progress", "is active"];

/// What happens in one round, in any order.
const EVENTS: [Event; 13] = [
    ("kill", 4, false, |storm| storm.kill()),
    ("disconnect", 2, false, |storm| storm.try_say("CLIENT KILL TYPE normal", &[])),
    ("replica", 3, false, |storm| storm.change_the_replicas()),
    ("compare", 2, false, |storm| storm.compare()),
    ("snapshot", 2, true, |storm| storm.try_say("BGSAVE", BUSY)),
    ("rewrite", 2, true, |storm| storm.try_say("BGREWRITEAOF", BUSY)),
    ("setting", 3, true, |storm| storm.change_a_setting()),
    ("squeeze", 2, true, |storm| storm.squeeze()),
    ("flush", 1, true, |storm| {
        let _now = storm.world.now.write().unwrap();
        storm.empty();
    }),
    ("purge", 1, true, |storm| storm.try_say("MEMORY PURGE", &[])),
    ("reload", 1, true, |storm| storm.try_say("DEBUG RELOAD", &[])),
    ("reload of the append-only file", 1, true, |storm| storm.try_say("DEBUG LOADAOF", &[])),
    ("audit", 1, true, |storm| storm.audit(&mut storm.world.now.write().unwrap())),
];

/// How often the clock leaps.
const TICK: Duration = Duration::from_millis(15);

/// How often it is said how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// The longest pause between two events.
const MOST_TICKS: u64 = 60;

/// The server that is called, its replicas, and what its clients believe to be in it.
pub struct Storm<'a> {
    world: &'a World,
    books: &'a [Mutex<Books>],
    random: Random,
    master: Server,
    /// A chain: none, a replica, or that and a replica of it.
    replicas: Vec<Server>,
    /// When it was last said how far it is.
    told: Instant,
}

/// A server that keeps its pace although its clock leaps by minutes.
fn leaping() -> ServerBuilder {
    Server::builder().option("repl-timeout", 3_600_000).option("repl-diskless-sync-delay", 0)
}

/// A server that has in its append-only file whatever it has acknowledged.
pub fn master() -> Server {
    leaping()
        .option("appendonly", "yes")
        .option("appendfsync", "always")
        .option("active-defrag-ignore-bytes", 1)
        .option("active-defrag-threshold-lower", 1)
        .controlled_clock()
        .start()
}

impl<'a> Storm<'a> {
    pub fn new(world: &'a World, books: &'a [Mutex<Books>], master: Server) -> Self {
        Self { world, books, random: Random::new(u64::MAX), master, replicas: vec![], told: Instant::now() }
    }

    /// One event after the other until the time is over, each at least once.
    pub fn rage(&mut self, duration: Duration) {
        let round: Vec<Event> = EVENTS.into_iter().flat_map(|event| repeat_n(event, event.1)).collect();
        let started = Instant::now();
        while !self.is_over() {
            for event in self.random.shuffled(&round) {
                let all_happened = EVENTS.iter().all(|(name, ..)| self.world.counted(name) > 0);
                if started.elapsed() >= duration && all_happened {
                    return;
                }
                self.happen(event);
            }
        }
    }

    /// Events that leave the process alone. Returns how many bytes the empty server uses, before and after.
    pub fn calm(&mut self, duration: Duration) -> (i64, i64) {
        self.replicas.clear();
        self.kill();
        self.try_say("BGSAVE", BUSY);
        let before = self.used_memory_when_empty();
        let round: Vec<Event> = EVENTS.into_iter().filter(|(_, _, is_calm, _)| *is_calm).collect();
        let started = Instant::now();
        while !self.is_over() && started.elapsed() < duration {
            self.random.shuffled(&round).into_iter().for_each(|event| self.happen(event));
        }
        (before, self.used_memory_when_empty())
    }

    fn is_over(&self) -> bool {
        self.world.is_over.load(Ordering::SeqCst)
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
        let is_settled = |books: &Mutex<Books>| books.lock().unwrap().is_settled();
        // Half of the time more happens before anybody looks at what became of a call that was cut off.
        if self.random.once_in(2) && !self.books.iter().all(is_settled) {
            self.audit(&mut self.world.now.write().unwrap());
        }
        self.world.remember(name);
        happen(self);
        self.world.count(name);
        if self.told.elapsed() >= PROGRESS {
            self.told = Instant::now();
            println!("{}", self.world.summary());
        }
    }

    /// A power cut, whatever the server is doing.
    fn kill(&mut self) {
        self.assert_well();
        self.world.is_down.store(true, Ordering::SeqCst);
        self.master.kill();
        // With this lock nobody has a call in flight any more.
        let mut now = self.world.now.write().unwrap();
        self.master.start_again();
        now.memory = Memory::Free;
        if self.random.once_in(2) {
            self.audit(&mut now);
        }
        self.world.is_down.store(false, Ordering::SeqCst);
    }

    /// Panics if a server has ended by itself, or one of its children crashed.
    pub fn assert_well(&self) {
        for server in self.replicas.iter().chain([&self.master]) {
            let log = server.log();
            let crashed = tells_of_a_crash(&log) || log.lines().any(tells_of_a_crashed_child);
            assert!(!crashed, "a server has crashed:\n{}", end_of(&log));
            server.connect();
        }
    }

    /// Compares every bucket of every client with what is stored, and ends all doubt. One that is not there has left
    /// nothing.
    fn audit(&self, now: &mut Now) {
        let mut client = self.client();
        let stored = buckets(&mut client);
        let mut known = 0;
        for books in self.books {
            let mut books = books.lock().unwrap();
            let fate = books.settle(now, |key| stored.get(key).cloned());
            fate.into_iter().for_each(|fate| self.world.count(fate));
            for key in books.page().iter().map(|bucket| &bucket.key) {
                known += usize::from(stored.contains_key(key));
                let left = (client.run(&["TB.HOLDS", key]), client.expires_at_ms(key));
                let is_there = stored.contains_key(key);
                assert!(is_there || left == (Value::Array(vec![]), None), "{key} has left {left:?}");
            }
        }
        assert_eq!(known, stored.len(), "there are buckets that nobody made: {:?}", stored.keys());
        self.world.count("audited");
    }

    /// The next of the chain.
    fn add_a_replica(&mut self) {
        let replica = leaping()
            .clock_of(&self.master)
            .option("repl-diskless-load", self.random.pick(&["disabled", "swapdb"]))
            .option("appendonly", self.random.pick(&["yes", "no"]))
            .start();
        begin_to_follow(&replica, self.replicas.last().unwrap_or(&self.master));
        self.replicas.push(replica);
    }

    /// A replica comes, or one of it; they go, are cut off for a moment, or one forgets whom it follows and starts anew.
    fn change_the_replicas(&mut self) {
        let change = match (self.replicas.len(), self.random.below(5)) {
            (0, _) | (1, 0 | 1) => {
                self.add_a_replica();
                "a replica comes"
            }
            (_, 0 | 1) => {
                self.replicas.truncate(1);
                "the last replica is killed"
            }
            (_, 2) => {
                self.try_say("CLIENT KILL TYPE replica", &[]);
                "a replica is cut off"
            }
            (_, 3) => {
                self.replicas[0].connect().say("REPLICAOF NO ONE");
                begin_to_follow(&self.replicas[0], &self.master);
                "a replica becomes a master and a replica again"
            }
            _ => {
                self.replicas.clear();
                "the replicas are killed"
            }
        };
        self.world.remember(change);
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
        let expected = buckets(&mut self.client());
        for replica in &self.replicas {
            assert_same_buckets(&buckets(&mut replica.connect()), &expected, "on a replica");
            self.world.count("replicas compared");
        }
    }

    fn client(&self) -> Connection {
        self.master.connect()
    }

    /// Sends a command that may be refused for one of these reasons alone.
    fn try_say(&self, words: &str, excuses: &[&str]) {
        if let Err(error) = self.client().try_run(&words.split(' ').collect::<Vec<_>>()) {
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
        self.world.remember(setting);
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
        let most_bytes = i32::from(memory != Memory::Free);
        let mut client = self.client();
        client.say(&format!("CONFIG SET maxmemory {most_bytes}"));
        if !is_before(7, 0) {
            let on_oom = if memory == Memory::FullAndAllowing { "allow" } else { "deny" };
            client.say(&format!("CONFIG SET tokenbucket.on-oom {on_oom}"));
        }
        now.memory = memory;
    }

    /// To be called while nobody has a call in flight.
    fn empty(&self) {
        self.client().say("FLUSHALL ASYNC");
        self.books.iter().for_each(|books| books.lock().unwrap().reset());
    }

    /// Bytes, without what belongs to connections, scripts, slow calls and statistics.
    fn used_memory_when_empty(&self) -> i64 {
        let _now = self.world.now.write().unwrap();
        self.empty();
        let mut client = self.client();
        for words in ["CLIENT KILL TYPE normal", "SCRIPT FLUSH", "SLOWLOG RESET", "CONFIG RESETSTAT"] {
            client.say(words);
        }
        wait_until("all buckets are freed", || buckets_alive(&mut client) == 0);
        client.used_memory()
    }
}

impl Drop for Storm<'_> {
    fn drop(&mut self) {
        let log = || format!("the server's log ends with:\n{}", end_of(&self.master.log()));
        self.world.leave("the server", log);
    }
}

/// Whether a line of a log says that a child ended by a signal other than the one by which servers end children.
fn tells_of_a_crashed_child(line: &str) -> bool {
    const ENDED_BY_ITS_SERVER: &str = "signal 10";
    line.contains("terminated by signal") && !line.trim_end().ends_with(ENDED_BY_ITS_SERVER)
}

fn end_of(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(100)..].join("\n")
}
