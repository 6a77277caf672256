//! What happens to the server while its clients call.

use super::books::Books;
use super::replicas::{leaping, Replicas};
use super::step::STRING_KEY;
use super::world::{Memory, Now, World};
use crate::common::stored::{buckets, buckets_alive, tells_of_a_crash, Buckets};
use crate::common::{is_before, wait_until, walk, Connection, Random, Server};
use std::fs;
use std::sync::atomic::Ordering;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use Event::{
    Audit, Compare, Disconnect, Flush, Kill, Purge, Reload, Replica, Rewrite, Setting, Snapshot, Squeeze,
    SubReplica,
};

/// An event, counted by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Kill,
    Disconnect,
    Replica,
    SubReplica,
    Compare,
    Snapshot,
    Rewrite,
    Setting,
    Squeeze,
    Flush,
    Purge,
    Reload,
    Audit,
}

/// What happens in one round, in any order.
#[rustfmt::skip]
const DECK: [Event; 24] = [
    Kill, Kill, Kill, Kill, Disconnect, Disconnect, Replica, Replica, SubReplica, Compare, Compare, Snapshot, Snapshot,
    Rewrite, Rewrite, Setting, Setting, Setting, Squeeze, Squeeze, Flush, Purge, Reload, Audit,
];

/// What happens where the memory of one process is watched.
const CALM_DECK: [Event; 8] = [Snapshot, Rewrite, Setting, Squeeze, Flush, Purge, Reload, Audit];

/// How often the clock leaps.
const TICK: Duration = Duration::from_millis(15);

/// The longest pause between two events.
const MOST_TICKS: u64 = 60;

/// The server that is called, its replicas, and what its clients believe to be in it.
pub struct Storm<'a> {
    world: &'a World,
    books: &'a [Mutex<Books>],
    random: Random,
    primary: Server,
    replicas: Replicas,
}

/// A server that has in its append-only file whatever it has acknowledged.
pub fn primary() -> Server {
    let primary = leaping()
        .option("appendonly", "yes")
        .option("appendfsync", "always")
        .option("active-defrag-ignore-bytes", 1)
        .option("active-defrag-threshold-lower", 1)
        .controlled_clock()
        .start();
    primary.connect().run(&["SET", STRING_KEY, ""]);
    primary
}

impl<'a> Storm<'a> {
    pub fn new(world: &'a World, books: &'a [Mutex<Books>], primary: Server) -> Self {
        Self { world, books, random: Random::new(u64::MAX), primary, replicas: Replicas::default() }
    }

    /// One event after the other until the time is over, each at least once.
    pub fn rage(&mut self, duration: Duration) {
        let started = Instant::now();
        while !self.world.is_over() {
            for event in self.random.shuffled(&DECK) {
                if started.elapsed() >= duration && self.all_happened() {
                    return;
                }
                self.happen(event);
            }
        }
    }

    fn all_happened(&self) -> bool {
        DECK.iter().all(|event| self.world.counted(&format!("{event:?}")) > 0)
    }

    /// Events that leave the process alone. Returns how many bytes the empty server uses, before and after.
    pub fn calm(&mut self, duration: Duration) -> (i64, i64) {
        self.replicas.end();
        self.happen(Kill);
        self.happen(Snapshot);
        let before = self.used_memory_when_empty();
        let started = Instant::now();
        while !self.world.is_over() && started.elapsed() < duration {
            for event in self.random.shuffled(&CALM_DECK) {
                self.happen(event);
            }
        }
        (before, self.used_memory_when_empty())
    }

    /// Lets time pass, on the clocks of the servers in leaps.
    fn pause(&mut self) {
        let ticks = self.random.below(MOST_TICKS);
        for _ in 0..ticks {
            thread::sleep(TICK);
            self.world.tick(self.primary.clock(), &mut self.random);
        }
    }

    fn happen(&mut self, event: Event) {
        self.pause();
        self.world.remember(format!("{event:?}"));
        match event {
            Kill => self.kill(),
            Disconnect => self.try_say("CLIENT KILL TYPE normal", &[]),
            Replica => self.replicas.change(&self.primary, &mut self.random, self.world),
            SubReplica => {
                self.replicas.change_sub_replica(&self.primary, &mut self.random, self.world);
            }
            Compare => self.compare(),
            Snapshot => self.try_say("BGSAVE", &["in progress", "is active"]),
            Rewrite => self.try_say("BGREWRITEAOF", &["in progress", "is active"]),
            Setting => self.change_a_setting(),
            Squeeze => self.squeeze(),
            Flush => self.flush(),
            Purge => self.try_say("MEMORY PURGE", &[]),
            Reload => self.reload(),
            Audit => self.audit(&mut self.world.now.write().unwrap()),
        }
        self.world.count(&format!("{event:?}"));
    }

    /// A power cut, whatever the server is doing.
    fn kill(&mut self) {
        self.assert_well();
        self.world.is_down.store(true, Ordering::SeqCst);
        self.primary.kill();
        // With this lock nobody has a call in flight any more.
        let mut now = self.world.now.write().unwrap();
        self.primary.start_again();
        now.memory = Memory::Free;
        if self.random.once_in(2) {
            self.audit(&mut now);
        }
        self.world.is_down.store(false, Ordering::SeqCst);
    }

    /// Panics if a server has ended by itself, or one of its children crashed.
    pub fn assert_well(&self) {
        for server in self.replicas.running().chain([&self.primary]) {
            let log = server.log();
            let crashed = tells_of_a_crash(&log) || log.lines().any(tells_of_a_crashed_child);
            assert!(!crashed && is_alive(server.process_id()), "a server has crashed:\n{}", end_of(&log));
        }
    }

    /// The end of the server's log.
    pub fn tail(&self) -> String {
        format!("the server's log ends with:\n{}", end_of(&self.primary.log()))
    }

    /// Compares every bucket of every client with what is stored.
    fn audit(&self, now: &mut Now) {
        let stored = buckets(&mut self.primary.connect());
        let mut known = 0;
        for books in self.books {
            let mut books = books.lock().unwrap();
            let state = |key: &str| stored.get(key).map(|one| (one.level.clone(), one.refilled_at_us));
            self.world.count_fate(books.settle(now, |key| walk::stored(state(key))));
            known += books.page().iter().filter(|bucket| stored.contains_key(&bucket.key)).count();
            assert_expiries(&mut books, &stored);
        }
        assert_eq!(known, stored.len(), "there are buckets that nobody made: {:?}", stored.keys());
        self.world.count("audited");
    }

    fn compare(&mut self) {
        let (clock, random, world) = (self.primary.clock(), &mut self.random, self.world);
        if self.replicas.running().next().is_none() {
            self.replicas.change(&self.primary, random, world);
        }
        self.replicas.wait_until_linked(|| world.tick(clock, random));
        let mut now = self.world.now.write().unwrap();
        for _ in 0..self.replicas.compare(&self.primary, &mut now) {
            self.world.count("replicas compared");
        }
    }

    fn client(&self) -> Connection {
        self.primary.connect()
    }

    /// Sends a command that may be refused for one of these reasons alone.
    fn try_say(&self, words: &str, excuses: &[&str]) {
        if let Err(error) = self.client().try_run(&words.split(' ').collect::<Vec<_>>()) {
            assert!(excuses.iter().any(|excuse| error.contains(excuse)), "{words}: {error}");
        }
    }

    fn change_a_setting(&mut self) {
        let setting = *self.random.pick(&[
            "hz 1",
            "hz 100",
            "hz 500",
            "activedefrag yes",
            "activedefrag no",
            "notify-keyspace-events KEA",
            "notify-keyspace-events Ed",
            "rdb-key-save-delay 0",
            "rdb-key-save-delay 3000",
            "repl-diskless-sync yes",
            "repl-diskless-sync no",
            "aof-use-rdb-preamble yes",
            "aof-use-rdb-preamble no",
            "lazyfree-lazy-expire yes",
            "lazyfree-lazy-user-del yes",
            "active-expire-effort 10",
        ]);
        self.world.remember(setting);
        // Not every server has been built with an allocator that can.
        self.try_say(
            &format!("CONFIG SET {setting}"),
            &["Active defragmentation cannot be enabled", "DISABLED"],
        );
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
        let most_bytes = if memory == Memory::Free { "0" } else { "1" };
        let mut client = self.client();
        client.run(&["CONFIG", "SET", "maxmemory", most_bytes]);
        if !is_before(7, 0) {
            let on_oom = if memory == Memory::FullAndAllowing { "allow" } else { "deny" };
            client.run(&["CONFIG", "SET", "tokenbucket.on-oom", on_oom]);
        }
        now.memory = memory;
    }

    fn flush(&self) {
        let _now = self.world.now.write().unwrap();
        self.empty();
    }

    fn empty(&self) {
        let mut client = self.client();
        client.run(&["FLUSHALL", "ASYNC"]);
        client.run(&["SET", STRING_KEY, ""]);
        self.books.iter().for_each(|books| books.lock().unwrap().reset());
    }

    fn reload(&mut self) {
        let how = *self.random.pick(&["DEBUG RELOAD", "DEBUG LOADAOF"]);
        self.world.remember(how);
        self.try_say(how, &[]);
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
        client.info("memory", "used_memory").parse().unwrap()
    }
}

/// No key goes before its bucket is full, nor much later.
fn assert_expiries(books: &mut Books, stored: &Buckets) {
    for bucket in books.page().iter() {
        if let Some(stored) = stored.get(&bucket.key) {
            bucket.model.see_expiry(stored.expires_at_ms);
        }
    }
}

/// Whether a process runs, and has not ended without anybody having noticed.
fn is_alive(process_id: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process_id}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z'))
}

/// Whether a line of a log says that a child ended by a signal other than the one by which servers end children.
fn tells_of_a_crashed_child(line: &str) -> bool {
    const ENDED_BY_ITS_SERVER: &str = "signal 10";
    line.contains("terminated by signal") && !line.trim_end().ends_with(ENDED_BY_ITS_SERVER)
}

fn end_of(log: &str) -> &str {
    const MOST: usize = 8_000;
    let start = log.len().saturating_sub(MOST);
    let start = (start..log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or(0);
    &log[start..]
}
