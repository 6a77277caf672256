//! What happens to the server while its clients call.

use super::books::Books;
use super::replicas::{leaping, Replicas};
use super::world::{Memory, Now, Worker, World};
use crate::common::stored::{buckets, buckets_alive, tells_of_a_crash};
use crate::common::{is_before, wait_until, Connection, Random, Server};
use std::fs;
use std::sync::atomic::Ordering;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Something that happens.
struct Event {
    name: &'static str,
    /// How often in a round.
    times: usize,
    /// Whether it leaves the process alone, so that its memory can be watched.
    is_calm: bool,
    happen: fn(&mut Storm),
}

const fn event(name: &'static str, times: usize, is_calm: bool, happen: fn(&mut Storm)) -> Event {
    Event { name, times, is_calm, happen }
}

/// Why a server does not begin to write a file.
const BUSY: &[&str] = &["in progress", "is active"];

/// What happens in one round, in any order.
const EVENTS: [Event; 13] = [
    event("kill", 4, false, |storm| storm.kill()),
    event("disconnect", 2, false, |storm| storm.try_say("CLIENT KILL TYPE normal", &[])),
    event("replica", 2, false, |storm| storm.replicas.change(&storm.master, &mut storm.random, storm.world)),
    event("replica of the replica", 1, false, |storm| {
        storm.replicas.change_sub_replica(&storm.master, &mut storm.random, storm.world);
    }),
    event("compare", 2, false, |storm| storm.compare()),
    event("snapshot", 2, true, |storm| storm.try_say("BGSAVE", BUSY)),
    event("rewrite", 2, true, |storm| storm.try_say("BGREWRITEAOF", BUSY)),
    event("setting", 3, true, |storm| storm.change_a_setting()),
    event("squeeze", 2, true, |storm| storm.squeeze()),
    event("flush", 1, true, |storm| storm.flush()),
    event("purge", 1, true, |storm| storm.try_say("MEMORY PURGE", &[])),
    event("reload", 1, true, |storm| storm.reload()),
    event("audit", 1, true, |storm| storm.audit(&mut storm.world.now.write().unwrap())),
];

/// How often the clock leaps.
const TICK: Duration = Duration::from_millis(15);

/// How often it is said how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// The longest pause between two events.
const MOST_TICKS: u64 = 60;

/// The server that is called, its replicas, and what its clients believe to be in it.
pub struct Storm<'a> {
    pub world: &'a World,
    books: &'a [Mutex<Books>],
    random: Random,
    master: Server,
    replicas: Replicas,
    /// When it was last said how far it is.
    told: Instant,
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
        let (random, replicas, told) = (Random::new(u64::MAX), Replicas::default(), Instant::now());
        Self { world, books, random, master, replicas, told }
    }

    /// One event after the other until the time is over, each at least once.
    pub fn rage(&mut self, duration: Duration) {
        let round: Vec<&Event> =
            EVENTS.iter().flat_map(|event| std::iter::repeat_n(event, event.times)).collect();
        let started = Instant::now();
        while !self.world.is_over() {
            for event in self.random.shuffled(&round) {
                let all_happened = EVENTS.iter().all(|event| self.world.counted(event.name) > 0);
                if started.elapsed() >= duration && all_happened {
                    return;
                }
                self.happen(event);
            }
        }
    }

    /// Events that leave the process alone. Returns how many bytes the empty server uses, before and after.
    pub fn calm(&mut self, duration: Duration) -> (i64, i64) {
        self.replicas.end();
        self.kill();
        self.try_say("BGSAVE", BUSY);
        let before = self.used_memory_when_empty();
        let round: Vec<&Event> = EVENTS.iter().filter(|event| event.is_calm).collect();
        let started = Instant::now();
        while !self.world.is_over() && started.elapsed() < duration {
            self.random.shuffled(&round).into_iter().for_each(|event| self.happen(event));
        }
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

    fn happen(&mut self, event: &Event) {
        self.pause();
        self.world.remember(event.name);
        (event.happen)(self);
        self.world.count(event.name);
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
        for server in self.replicas.running().iter().chain([&self.master]) {
            let log = server.log();
            let crashed = tells_of_a_crash(&log) || log.lines().any(tells_of_a_crashed_child);
            assert!(!crashed && is_alive(server.process_id()), "a server has crashed:\n{}", end_of(&log));
        }
    }

    /// Compares every bucket of every client with what is stored.
    fn audit(&self, now: &mut Now) {
        let stored = buckets(&mut self.master.connect());
        let mut known = 0;
        for books in self.books {
            let mut books = books.lock().unwrap();
            let fate = books.settle(now, |key| stored.get(key).cloned());
            fate.into_iter().for_each(|fate| self.world.count(fate));
            known += books.page().iter().filter(|bucket| stored.contains_key(&bucket.key)).count();
        }
        assert_eq!(known, stored.len(), "there are buckets that nobody made: {:?}", stored.keys());
        self.world.count("audited");
    }

    fn compare(&mut self) {
        let (clock, random, world) = (self.master.clock(), &mut self.random, self.world);
        if self.replicas.running().is_empty() {
            self.replicas.change(&self.master, random, world);
        }
        self.replicas.wait_until_linked(|| world.tick(clock, random));
        let mut now = self.world.now.write().unwrap();
        for _ in 0..self.replicas.compare(&self.master, &mut now) {
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
        let most_bytes = if memory == Memory::Free { "0" } else { "1" };
        let mut client = self.client();
        client.run(&["CONFIG", "SET", "maxmemory", most_bytes]);
        if !is_before(7, 0) {
            let on_oom = if memory == Memory::FullAndAllowing { "allow" } else { "deny" };
            client.run(&["CONFIG", "SET", "tokenbucket.on-oom", on_oom]);
        }
        now.memory = memory;
    }

    fn flush(&mut self) {
        let _now = self.world.now.write().unwrap();
        self.empty();
    }

    fn empty(&self) {
        self.client().run(&["FLUSHALL", "ASYNC"]);
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

impl Worker for Storm<'_> {
    fn tail(&self) -> String {
        format!("the server's log ends with:\n{}", end_of(&self.master.log()))
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
