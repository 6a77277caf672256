//! Calls that wait their turn in the server: who is served when, what others get meanwhile, and how a wait ends.
//!
//! A story here has several clients. Besides the lines of [`stories`] there are these:
//! - `b: call` sends a call on the connection `b`, and waits until it waits in the server;
//! - `b => reply` reads its reply, `b: call => reply` is any other call on it, and `b closes` ends the connection.
//!
//! `{b}` in a call is the id of that client. When a story ends nobody waits, and no reply is left.

use super::acl::limited;
use super::is_refused_before;
use super::persistence::{assert_stored, everything};
use super::replication::assert_same;
use super::stories;
use super::traces::{has_seen_a_change, Listener};
use crate::common::clock::START_US;
use crate::common::engine::Brand;
use crate::common::stored::{
    append_only_bytes, begin_to_follow, follow, quiet, wait_while_time_passes, with_append_only_file,
};
use crate::common::{
    decision, integer, is_before, shown, tell, text, wait_until, Connection, Engine, Server, HOUR_MS,
};
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tokenbucket_core::bucket::Bucket;
use tokenbucket_core::effect::Effect;

/// The clients of a server that wait, by their names in a story.
pub struct Clients<'server> {
    server: &'server Server,
    main: Connection,
    waiting: BTreeMap<String, (Connection, i64)>,
}

impl<'server> Clients<'server> {
    pub fn new(server: &'server Server) -> Self {
        Self { server, main: server.connect(), waiting: BTreeMap::new() }
    }

    pub fn play(&mut self, story: &str) {
        let lines = story.lines().map(str::trim).filter(|line| !line.is_empty());
        for line in lines.filter(|line| !line.starts_with('#')) {
            self.play_line(line);
        }
        self.end();
    }

    pub fn play_line(&mut self, line: &str) {
        if let Some(name) = line.strip_suffix(" closes") {
            let before = self.main.waiting();
            self.waiting.remove(name).expect("it is connected");
            return wait_until("its wait is over", || self.main.waiting() < before);
        }
        let line = self.with_ids(line);
        match (line.split_once(": "), line.split_once(" => ")) {
            (Some((name, call)), None) => self.wait(name, call),
            (Some((name, call)), Some(_)) if is_name(name) => {
                let (call, expected) = call.split_once(" => ").unwrap();
                assert_eq!(tell(self.client(name).attempt(call)), expected, "{line}");
            }
            (_, Some((name, expected))) if is_name(name) => {
                let told = self.read(name);
                match expected.strip_suffix('…') {
                    Some(beginning) => assert!(told.starts_with(beginning), "{line}, not {told}"),
                    None => assert_eq!(told, expected, "{line}"),
                }
            }
            _ => stories::play(self.server, &mut self.main, &line),
        }
    }

    fn with_ids(&self, line: &str) -> String {
        let ids = self.waiting.iter().map(|(name, (_, id))| (format!("{{{name}}}"), id.to_string()));
        ids.fold(line.to_owned(), |line, (name, id)| line.replace(&name, &id))
    }

    fn client(&mut self, name: &str) -> &mut Connection {
        let connect = || {
            let mut client = self.server.connect();
            let id = integer(&client.say("CLIENT ID"));
            (client, id)
        };
        &mut self.waiting.entry(name.to_owned()).or_insert_with(connect).0
    }

    /// Sends a call that will wait.
    fn wait(&mut self, name: &str, call: &str) {
        let before = self.main.waiting();
        self.client(name).send(call);
        wait_until(&format!("'{call}' waits"), || self.main.waiting() == before + 1);
    }

    fn read(&mut self, name: &str) -> String {
        self.client(name).receive()
    }

    fn end(&mut self) {
        assert_eq!(self.main.waiting(), 0, "somebody still waits");
        for (name, (mut client, _)) in std::mem::take(&mut self.waiting) {
            // Those that were killed have no connection.
            let pong = client.attempt("PING");
            assert!(pong.as_ref().map_or(true, |pong| text(pong) == "PONG"), "{name}: {pong:?}");
        }
    }
}

fn is_name(word: &str) -> bool {
    word.chars().all(|letter| letter.is_ascii_lowercase())
}

/// Plays each story on a server without keys and from [`START_US`] on.
pub fn play_all(stories: &str) {
    let server = Server::with_clock();
    let mut clients = Clients::new(&server);
    for story in stories.split("\n\n") {
        clients.main.say("FLUSHALL");
        server.clock().set_us(START_US);
        clients.play(story);
    }
}

#[test]
fn calls_are_served_in_the_order_in_which_they_came() {
    play_all(include_str!("stories/waiting_order.txt"));
}

#[test]
fn waits_end_with_their_time_by_an_operator_or_with_the_connection() {
    play_all(include_str!("stories/waiting_ends.txt"));
}

#[test]
fn a_clock_that_is_set_back_neither_locks_waiters_out_nor_grants_early() {
    let server = Server::with_clock();
    let mut clients = Clients::new(&server);
    clients.play_line("TB.TAKE r 4 1 4 => [1 0 0 4000]");
    clients.play_line("large: TB.BTAKE r 4 1 4 60000");
    clients.play_line("brief: TB.BTAKE r 4 1 4 5000");
    server.clock().advance_ms(-HOUR_MS);
    let set_back_us = server.clock().now_us();
    wait_until("its bucket counts on from the new time", || {
        clients.main.state("r").is_some_and(|(_, refilled_at_us)| refilled_at_us == set_back_us)
    });
    clients.play_line("(3999 milliseconds later)");
    clients.play_line("TB.PEEK r 4 1 4 => [0 3 8001 1]");
    assert_eq!(clients.main.waiting(), 2);
    clients.play(
        "(1 millisecond later)
        large => [1 0 0 4000]
        (1 second later)
        brief => [0 1 3000 3000]",
    );
}

#[test]
fn a_call_that_waits_after_the_clock_was_set_back_waits_as_long_as_it_may() {
    play_all(
        "# while nobody waited
        TB.TAKE p 10 1 10 => [1 0 0 10000]
        a: TB.BTAKE p 10 1 10 1000
        (1 second later)
        a => [0 1 9000 9000]
        (1 hour earlier)
        TB.TAKE q 10 1 10 => [1 0 0 10000]
        b: TB.BTAKE q 10 1 10 5000
        TB.TAKE r 1 1 1 => [1 0 0 1000]
        c: TB.BTAKE r 1 1 1 5000
        (1 second later)
        c => [1 0 0 1000]
        (4 seconds later)
        b => [0 5 5000 5000]

        # a moment before
        TB.TAKE p 10 1/h 10 => [1 0 0 36000000]
        a: TB.BTAKE p 10 1/h 10 60000
        TB.TAKE q 10 1 10 => [1 0 0 10000]
        TB.TAKE r 1 1 1 => [1 0 0 1000]
        (1 hour earlier)
        b: TB.BTAKE q 10 1 10 5000
        c: TB.BTAKE r 1 1 1 5000
        (1 second later)
        c => [1 0 0 1000]
        (4 seconds later)
        b => [0 5 5000 5000]
        CLIENT UNBLOCK {a} => 1
        a => [0 0 …",
    );
}

/// Ways to make room in the pool `p`, which the hold `a` keeps.
const MAKE_ROOM: [&str; 10] = [
    "TB.SETTLE p 2 0 a 0",
    "TB.MSETTLE 1 a p 2 0 0",
    "TB.HOLD p 2 0 0 1 a",
    "TB.MHOLD 1 1 a p 2 0 0",
    "DEL p",
    "UNLINK p",
    "RENAME p elsewhere",
    "FLUSHDB",
    "FLUSHALL",
    "PEXPIREAT p 1",
];

/// Nothing is served inside of a transaction: until its end the waiting call is due, and keeps the others out of its buckets.
#[test]
fn a_peek_and_a_take_agree_while_a_call_is_due() {
    let server = Server::with_clock();
    let mut clients = Clients::new(&server);
    let others = ["TB.PEEK p 2 1/h", "TB.TAKE p 2 1/h", "TB.PEEK p 2 0", "TB.HOLD p 2 0 1 60000 other"];
    for freeing in MAKE_ROOM {
        for (wait, is_served) in [
            ("TB.BHOLD p 2 0 2 60000 b 60000", true),
            // It lacks another bucket as well.
            ("TB.BMHOLD 2 60000 b 60000 p 2 0 2 q 1 0 1", false),
        ] {
            clients.main.say("FLUSHALL");
            clients.play_line("TB.HOLD p 2 0 2 60000 a => [1 0 0 60000]");
            clients.play_line("TB.HOLD q 1 0 1 60000 a => [1 0 0 60000]");
            clients.wait("b", wait);
            let replies = clients.main.transaction(&[&[freeing], others.as_slice()].concat());
            let decisions: Vec<_> = replies[1..].iter().map(decision).collect();
            assert_eq!(decisions[0], decisions[1], "after {freeing}");
            assert_eq!(decisions[2], decisions[3], "after {freeing}");
            assert_eq!([decisions[1].allowed, decisions[3].allowed], [0, 0], "after {freeing}");
            if is_served || freeing.starts_with("FLUSH") {
                assert!(clients.read("b").starts_with("[1 "), "after {freeing}");
            } else {
                wait_until("it keeps no call out", || clients.main.decide(others[1]).allowed == 1);
                clients.play_line("b closes");
            }
        }
    }
}

/// By the next call, whatever it is that puts tokens back or takes the key away.
#[test]
fn who_waits_is_served_before_the_call_that_follows_one_that_makes_room() {
    const OTHER: &str = "TB.HOLD p 2 0 2 60000 other";
    let server = Server::with_clock();
    let mut clients = Clients::new(&server);
    let others = [
        "EVAL return(redis.call('TB.SETTLE','p',2,0,'a',0)) 0",
        "MOVE p 1",
        "FLUSHALL ASYNC",
        "SWAPDB 0 1",
        "EVAL return(redis.call('DEL','p')) 0",
        "RENAME half p",
        "restore",
        "restore as a replica does",
    ];
    for freeing in MAKE_ROOM.into_iter().chain(others) {
        clients.main.say("FLUSHALL");
        // Nothing of it is held, so all of a pool is free.
        clients.play_line("TB.TAKE half 3 1/s 1 => [1 2 0 1000]");
        let half = clients.main.dump("half");
        clients.play_line("TB.HOLD p 2 0 2 60000 a => [1 0 0 60000]");
        clients.play_line("b: TB.BHOLD p 2 0 2 60000 b 60000");
        match freeing {
            "restore" => drop(clients.main.restore("p", &half).unwrap()),
            "restore as a replica does" => {
                let bucket = Bucket { level_micro: 2_000_000, refilled_at_us: START_US };
                let full = Effect::Stored { bucket, expire_at_ms: None, extension: None };
                drop(clients.main.run(&[b"TB.RESTORE".as_slice(), b"p", full.encode().as_ref()]))
            }
            _ => drop(clients.main.say(freeing)),
        }
        assert_eq!(clients.main.decide(OTHER).allowed, 0, "after {freeing}");
        let told = clients.read("b");
        assert!(told.starts_with("[1 "), "after {freeing}: {told}");
        let inside = clients.main.transaction(&["TB.SETTLE p 2 0 b 0", "PING"]);
        assert!(shown(&inside[0]).starts_with("[1 "), "after {freeing}: {inside:?}");
    }
    clients.play(
        "# a key that becomes one of another type
        TB.HOLD p 2 0 2 60000 a => [1 0 0 60000]
        b: TB.BHOLD p 2 0 2 60000 b 60000
        SET p x => +OK
        TB.HOLD p 2 0 2 60000 other => WRONGTYPE Operation against a key holding the wrong kind of value
        b => WRONGTYPE Operation against a key holding the wrong kind of value
        GET p => \"x\"",
    );
    // In a transaction too.
    clients.play_line("DEL p => 1");
    clients.play_line("TB.HOLD p 2 0 2 60000 a => [1 0 0 60000]");
    clients.play_line("b: TB.BHOLD p 2 0 2 60000 b 60000");
    let replies = clients.main.transaction(&["TB.SETTLE p 2 0 a 0", OTHER, "DEL p", OTHER]);
    let shown: Vec<_> = replies.iter().map(shown).collect();
    assert_eq!(shown, ["[1 2 0 0]", "[0 2 1 0]", "0", "[0 2 1 0]"]);
    clients.play("b => [1 0 0 60000]");
}

/// Nobody has to call: by its own timer, and a call that makes room need not be followed by another one.
#[test]
fn waiters_are_woken_within_milliseconds() {
    const TRIES: usize = 20;
    const SOON: Duration = Duration::from_millis(15);
    let server = Server::start();
    let mut clients = Clients::new(&server);
    // On a busy machine most of them are late.
    let mut assert_woken = |before: &str, call: &str, freeing: &str, after: Duration| {
        let tries = (0..TRIES).map(|_| {
            clients.main.say("FLUSHALL");
            clients.main.say(before);
            match freeing {
                "PING" => clients.client("b").send(call),
                _ => clients.wait("b", call),
            }
            let begin = Instant::now();
            clients.main.say(freeing);
            let told = clients.read("b");
            assert!(told.starts_with("[1 "), "{call} after {before} and {freeing}: {told}");
            begin.elapsed()
        });
        let least = tries.min().unwrap();
        assert!(least < after + SOON, "{call} after {before} and {freeing}: {least:?}");
    };
    let ms = Duration::from_millis;
    assert_woken("TB.TAKE r 1 1/30ms 1", "TB.BTAKE r 1 1/30ms 1 60000", "PING", ms(30));
    let (held, wait) = ("TB.HOLD p 1 0 1 60000 a", "TB.BHOLD p 1 0 1 60000 b 60000");
    assert_woken("TB.HOLD p 1 0 1 30 a", wait, "PING", ms(30));
    for freeing in ["TB.SETTLE p 1 0 a 0", "FLUSHALL", "SWAPDB 0 1"] {
        assert_woken(held, wait, freeing, ms(0));
    }
    // Redis 6.0 does not tell that keys go: the module looks ten times a second.
    let look = if is_before(6, 2) { ms(100) } else { ms(0) };
    for freeing in ["DEL p", "UNLINK p", "RENAME p elsewhere"] {
        assert_woken(held, wait, freeing, look);
    }
    // Servers look for what has expired ten times a second.
    assert_woken(held, wait, "PEXPIRE p 20", look + ms(120));
}

#[test]
fn nothing_is_written_while_a_call_waits_and_the_grant_is_written_at_its_moment() {
    let server = with_append_only_file("no").start();
    let mut clients = Clients::new(&server);
    let written = |client: &mut Connection| (append_only_bytes(client), client.changes(), client.keys());
    let take = ["TB.TAKE k 1 1/h 1", "TB.GIVE k 1 1/h 1"];
    let hold = ["TB.HOLD k 1 0 1 60000 a", "TB.SETTLE k 1 0 a 0"];
    for ([taken, given], call) in [
        (take, "TB.BTAKE k 1 1/h 1 60000"),
        (hold, "TB.BHOLD k 1 0 1 60000 b 60000"),
        (take, "TB.BMTAKE 2 60000 k 1 1/h 1 new 1 1/h 1"),
        (hold, "TB.BMHOLD 2 60000 b 60000 k 1 0 1 new 1 0 1"),
    ] {
        clients.main.say("FLUSHALL");
        clients.main.say(taken);
        let mut watcher = server.connect();
        watcher.say("WATCH k new");
        let before = written(&mut clients.main);
        clients.wait("b", call);
        server.clock().advance_ms(5000);
        assert_eq!(written(&mut clients.main), before, "{call}");
        assert!(!has_seen_a_change(&mut watcher), "{call}");
        watcher.say("WATCH k new");
        clients.main.say(given);
        assert!(clients.read("b").starts_with("[1 0 0 "), "{call}");
        assert!(has_seen_a_change(&mut watcher), "{call}");
        assert_ne!(written(&mut clients.main), before, "{call}");
    }
}

/// Grants by every way: the next call, a transaction, a script, the timer, with and without waits before them.
#[test]
fn replicas_and_files_have_what_was_granted() {
    let (mut master, replica) = (with_append_only_file("yes").start(), quiet().start());
    follow(&replica, &master);
    let mut clients = Clients::new(&master);
    for number in 0..20 {
        let pool = format!("pool:{number}");
        clients.play_line(&format!("TB.HOLD {pool} 2 0 2 3000 a => [1 0 0 3000]"));
        clients.wait("b", &format!("TB.BHOLD {pool} 2 0 1 86400000 b 60000"));
        clients.wait("c", &format!("TB.BMHOLD 2 86400000 c 60000 {pool} 2 0 1 other:{number} 10 1/h 3"));
        clients.wait("d", &format!("TB.BHOLD {pool} 2 0 2 86400000 d 4000"));
        match number % 7 {
            0 => drop(clients.main.transaction(&[&format!("TB.HOLD {pool} 2 0 1 3000 a"), "SET x 1"])),
            1 => drop(clients.main.transaction(&[&format!("DEL {pool}"), "SET x 1"])),
            2 => drop(clients.main.say(&format!("EVAL redis.call('TB.SETTLE','{pool}',2,0,'a',0) 0"))),
            3 => drop(clients.main.say(&format!("RENAME {pool} renamed:{number}"))),
            4 => drop(clients.main.say(&format!("PEXPIRE {pool} 2000"))),
            5 => drop(clients.main.say("BGREWRITEAOF")),
            _ => drop(clients.main.say(&format!("TB.HOLD {pool} 2 0 1 3000 a"))),
        }
        // A slice that took too long goes on a millisecond later, by the clock that the test moves on Redis 6.0.
        let mut wait_for = |left| {
            let what = format!("{left} of {pool} wait");
            wait_while_time_passes(&[master.clock()], &what, || clients.main.waiting() <= left);
        };
        master.clock().advance_ms(3000);
        wait_for(1);
        master.clock().advance_ms(1000);
        wait_for(0);
        for waiter in ["b", "c"] {
            let told = clients.read(waiter);
            assert!(told.starts_with("[1 "), "{waiter} of {pool}: {told}");
        }
        let told = clients.read("d");
        assert!(told.starts_with("[0 "), "d of {pool}: {told}");
    }
    clients.end();
    assert_same(&replica, &master);
    let granted = everything(&master);
    master.kill_and_restart();
    assert_stored(&master, &granted, "a power cut");
}

#[test]
fn denials_after_a_wait_are_counted_and_announced_and_so_are_grants() {
    let server = Server::with_clock();
    let mut clients = Clients::new(&server);
    let counts = |client: &mut Connection| {
        ["waiting", "served_after_waiting", "gave_up_waiting", "decisions_allowed", "decisions_denied"]
            .map(|field| client.count("tokenbucket", &format!("tokenbucket_{field}")))
    };
    let has_events = !is_refused_before((6, 2), &mut clients.main, "CONFIG SET notify-keyspace-events Ed");
    if has_events {
        clients.main.say("CONFIG SET notify-keyspace-events Ed");
    }
    let mut listener = Listener::new(&server);
    clients.play_line("TB.TAKE k 1 1 1 => [1 0 0 1000]");
    clients.play_line("TB.HOLD p 1 0 1 60000 a => [1 0 0 60000]");
    clients.play_line("b: TB.BTAKE k 1 1 1 60000");
    clients.play_line("c: TB.BHOLD p 1 0 1 60000 c 5000");
    clients.play_line("d: TB.BHOLD p 1 0 1 60000 d 60000");
    clients.play_line("e: TB.BHOLD p 1 0 1 60000 e 60000");
    listener.heard();
    assert_eq!(counts(&mut clients.main), [4, 0, 0, 2, 0]);
    assert_eq!(shown(&clients.main.say("TB.TOP")), "[]");
    clients.play_line("(5 seconds later)");
    clients.play_line("b => [1 0 0 1000]");
    clients.play_line("c => [0 0 55000 55000]");
    clients.play_line("CLIENT UNBLOCK {d} => 1");
    clients.play_line("d => [0 0 55000 55000]");
    clients.play_line("e closes");
    assert_eq!(counts(&mut clients.main), [0, 1, 3, 3, 2]);
    assert!(shown(&clients.main.say("TB.TOP")).starts_with("[[\"p\" 2 "));
    let expected: &[&str] = if has_events { &["tb.take k", "tb.deny p", "tb.deny p"] } else { &[] };
    assert_eq!(listener.heard().0, expected);
    clients.play_line("f: TB.BHOLD p 1 0 1 60000 f 60000");
    clients.play_line("TB.SETTLE p 1 0 a 0 => [1 1 0 0]");
    clients.play("f => [1 0 0 60000]");
    let expected: &[&str] = if has_events { &["tb.settle p", "tb.hold p"] } else { &[] };
    assert_eq!(
        listener.heard().0.iter().filter(|event| !event.starts_with("del")).collect::<Vec<_>>(),
        expected
    );
}

#[test]
fn at_most_max_waiters_calls_wait() {
    let server = Server::builder().controlled_clock().module_arguments(&["max-waiters", "2"]).start();
    let mut clients = Clients::new(&server);
    clients.play(
        "TB.HOLD p 1 0 1 60000 a => [1 0 0 60000]
        b: TB.BHOLD p 1 0 1 60000 b 60000
        c: TB.BHOLD p 1 0 1 60000 c 60000
        TB.BHOLD p 1 0 1 60000 d 0 => [0 0 60000 60000]
        TB.BHOLD p 1 0 1 60000 d 60000 => [0 0 60000 60000]
        TB.BMHOLD 1 60000 e 60000 p 1 0 1 => [0 0 60000 60000 [[0 0 60000 60000]]]
        TB.BTAKE free 1 1 1 60000 => [1 0 0 1000]
        b closes
        d: TB.BHOLD p 1 0 1 60000 d 60000
        TB.SETTLE p 1 0 a 0 => [1 1 0 0]
        c => [1 0 0 60000]
        TB.SETTLE p 1 0 c 0 => [1 1 0 0]
        d => [1 0 0 60000]",
    );
    assert_eq!(clients.main.count("tokenbucket", "tokenbucket_waits_refused"), 2);
}

/// The key would have to be created when memory is short.
#[test]
fn a_grant_over_maxmemory_is_as_on_oom_says() {
    for (on_oom, told) in [("deny", "OOM "), ("allow", "[1 0 0 -1]")] {
        let server = Server::builder().controlled_clock().module_arguments(&["on-oom", on_oom]).start();
        let mut clients = Clients::new(&server);
        clients.play_line("TB.HOLD p 1 0 1 60000 a => [1 0 0 60000]");
        clients.play_line("TB.CHARGE r 4 1 8 => [1 -4 4000 8000]");
        clients.play_line("b: TB.BHOLD p 1 0 1 60000 b 60000");
        clients.play_line("c: TB.BTAKE r 4 1 1 60000");
        clients.play_line("CONFIG SET maxmemory 1 => +OK");
        clients.play_line("TB.SETTLE p 1 0 a 0 => [1 1 0 0]");
        clients.play_line(&format!("b => {told}…"));
        clients.play_line("(5 seconds later)");
        clients.play("c => [1 0 0 4000]");
        assert_eq!(clients.main.keys(), 1, "{on_oom}");
    }
}

#[test]
fn an_evicted_bucket_is_full_for_those_who_wait() {
    let server = Server::start();
    let mut clients = Clients::new(&server);
    clients.play_line("TB.HOLD p 1 0 1 86400000 a => [1 0 0 86400000]");
    clients.play_line("b: TB.BHOLD p 1 0 1 86400000 b 86400000");
    for setting in ["maxmemory-policy allkeys-random", "maxmemory 1"] {
        clients.main.say(&format!("CONFIG SET {setting}"));
    }
    wait_until("it is evicted", || clients.main.attempt("SET x 1").is_err() && clients.main.keys() == 0);
    let told = clients.read("b");
    assert!(told.starts_with("[1 ") || told.starts_with("OOM "), "{told}");
    clients.end();
}

#[test]
fn while_nothing_may_be_written_nobody_is_served_and_waits_end_in_time() {
    let server = Server::with_clock();
    let mut clients = Clients::new(&server);
    for (begin, end) in [
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        ("CLIENT PAUSE 3600000 WRITE", "CLIENT UNPAUSE"),
    ] {
        if begin.starts_with("CLIENT")
            && is_refused_before((6, 2), &mut clients.main, "CLIENT PAUSE 1 WRITE now")
        {
            return; // Redis 6.0 pauses all calls of all clients.
        }
        clients.main.say("FLUSHALL");
        clients.play_line("TB.TAKE r 1 1 1 => [1 0 0 1000]");
        clients.play_line("TB.HOLD p 1 0 1 60000 a => [1 0 0 60000]");
        clients.play_line("b: TB.BTAKE r 1 1 1 60000");
        clients.play_line("c: TB.BHOLD p 1 0 1 60000 c 2000");
        clients.main.say(begin);
        clients.play_line("(2 seconds later)");
        clients.play_line("c => [0 0 58000 58000]");
        assert_eq!(clients.main.waiting(), 1, "served after {begin}");
        clients.main.say(end);
        // The module looks again from time to time.
        clients.play_line("(100 milliseconds later)");
        clients.play("b => [1 0 0 1000]");
    }
}

#[test]
fn a_master_that_becomes_a_replica_ends_all_waits_and_grants_nothing() {
    let (server, other) = (Server::with_clock(), Server::with_clock());
    let mut clients = Clients::new(&server);
    clients.play_line("TB.HOLD p 1 0 1 1000 a => [1 0 0 1000]");
    clients.play_line("a: TB.BHOLD p 1 0 1 1000 ann 60000 SHARE ann");
    clients.play_line("b: TB.BHOLD p 1 0 1 60000 b 60000");
    clients.play_line("c: TB.BHOLD p 1 0 1 60000 c 60000 SHARE bob");
    clients.play_line("TB.SETTLE p 1 0 a 0 => [1 1 0 0]");
    clients.play_line("a => [1 0 0 1000]");
    clients.main.say(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
    clients.play_line("b => UNBLOCKED …");
    clients.play_line("c => UNBLOCKED …");
    assert_eq!(clients.main.waiting(), 0);
    let refused = clients.main.refusal("TB.BHOLD q 1 0 1 60000 b 60000");
    assert!(refused.starts_with("READONLY "), "{refused}");
    // A replica that may be written to has nobody wait.
    clients.main.say("CONFIG SET replica-read-only no");
    clients.main.say("REPLICAOF NO ONE");
    clients.play_line("TB.BTAKE k 1 1 1 60000 => [1 0 0 1000]");
    // What ann was granted is forgotten: bob came second.
    clients.play(
        "TB.HOLD q 1 0 1 60000 x => [1 0 0 60000]
        a: TB.BHOLD q 1 0 1 60000 a 60000 SHARE ann
        d: TB.BHOLD q 1 0 1 60000 d 60000 SHARE bob
        TB.SETTLE q 1 0 x 0 => [1 1 0 0]
        a => [1 0 0 60000]
        TB.SETTLE q 1 0 a 0 => [1 1 0 0]
        d => [1 0 0 60000]",
    );
}

#[test]
fn calls_wait_each_in_its_database() {
    let server = Server::with_clock();
    let mut clients = Clients::new(&server);
    for db in [0, 5] {
        clients.main.say(&format!("SELECT {db}"));
        clients.play_line("TB.HOLD p 1 0 1 60000 a => [1 0 0 60000]");
    }
    clients.play_line("b: SELECT 5 => +OK");
    clients.play_line("b: TB.BHOLD p 1 0 1 60000 b 60000");
    clients.play_line("c: TB.BHOLD p 1 0 1 60000 c 60000");
    clients.main.say("SELECT 0");
    clients.play_line("TB.SETTLE p 1 0 a 0 => [1 1 0 0]");
    clients.play_line("c => [1 0 0 60000]");
    assert_eq!(clients.main.waiting(), 1, "it waits in another database");
    clients.play_line("SWAPDB 0 5 => +OK");
    clients.play_line("TB.PEEK p 1 0 0 => [1 0 0 60000]");
    assert_eq!(clients.main.waiting(), 1, "in its own is what was in the other, a hold too");
    clients.play_line("DEL p => 1");
    clients.play_line("SWAPDB 5 0 => +OK");
    clients.play_line("SWAPDB 0 5 => +OK");
    clients.play_line("SWAPDB 0 5 => +OK");
    clients.main.say("SELECT 5");
    clients.play("b => [1 0 0 60000]");
}

/// As the server's own blocking commands, where a module can ask.
#[test]
fn a_user_whose_rights_are_taken_while_it_waits_is_granted_nothing() {
    let server = Server::with_clock();
    let mut clients = Clients::new(&server);
    let hold = "TB.BHOLD p 1 0 1 60000 b 60000";
    let of_two = "TB.BMHOLD 2 60000 b 60000 q 1 0 1 p 1 0 1";
    for (call, taken) in [(hold, "-@all"), (hold, "resetkeys"), (of_two, "resetkeys ~q"), (hold, "reset")] {
        clients.main.say("TB.HOLD p 1 0 1 60000 a");
        let mut user = limited(&server, "+tb.bhold +tb.bmhold ~p ~q");
        user.send(call);
        wait_until("it waits", || clients.main.waiting() == 1);
        clients.main.say(&format!("ACL SETUSER limited {taken}"));
        clients.main.say("TB.SETTLE p 1 0 a 0");
        let told = user.receive();
        if is_before(7, 0) {
            assert!(told.starts_with("[1 "), "{told}");
            clients.main.say("DEL p q");
        } else {
            assert!(told.starts_with("NOPERM User limited "), "{told}");
            assert_eq!(clients.main.keys(), 0, "after {taken}");
        }
    }
}

/// From Valkey 9.1 on rights can depend on the database.
#[test]
fn a_user_confined_to_a_database_is_granted_there_what_it_waits_for() {
    let server = Server::with_clock();
    let mut clients = Clients::new(&server);
    if !Engine::under_test().has_rights_by_database() {
        let refused = clients.main.refusal("ACL SETUSER limited db=2");
        return assert!(refused.contains("ACL SETUSER modifier 'db=2'"), "{refused}");
    }
    for (rules, told) in [("", "[1 0 0 60000]"), ("resetdbs db=0", "NOPERM User limited ")] {
        clients.main.say("SELECT 2");
        clients.main.say("TB.HOLD p 1 0 1 60000 a");
        let mut user = limited(&server, "+@all ~* db=2");
        user.say("SELECT 2");
        user.send("TB.BHOLD p 1 0 1 60000 b 60000");
        wait_until("it waits", || clients.main.waiting() == 1);
        clients.main.say(&format!("ACL SETUSER limited {rules}"));
        clients.main.say("TB.SETTLE p 1 0 a 0");
        let reply = user.receive();
        assert!(reply.starts_with(told), "{rules}: {reply}");
        clients.main.say("FLUSHALL");
    }
}

/// What [`while_nothing_may_be_written_nobody_is_served_and_waits_end_in_time`] says, where the setting cannot be read.
#[test]
fn without_config_a_server_that_wants_replicas_serves_nobody_by_itself() {
    let renamed = "rename-command CONFIG SECRET\n";
    let server = Server::builder().configuration_file(renamed).controlled_clock().start();
    let mut clients = Clients::new(&server);
    clients.play_line("TB.TAKE r 1 1 1 => [1 0 0 1000]");
    clients.play_line("b: TB.BTAKE r 1 1 1 2000");
    clients.main.say("SECRET SET min-replicas-to-write 1");
    clients.play("(2 seconds later)\nb => [0 1 1 0]");
    clients.main.say("SECRET SET min-replicas-to-write 0");
    clients.play(
        "TB.TAKE r 1 1 1 => [1 0 0 1000]\nb: TB.BTAKE r 1 1 1 2000\n(1 second later)\nb => [1 0 0 1000]",
    );
}

/// Nobody could tell whether their slot has moved.
#[test]
fn without_type_calls_do_not_wait_in_a_cluster() {
    let renamed = || Server::builder().configuration_file("rename-command TYPE \"\"\n").controlled_clock();
    for (server, waits) in [(renamed().start_as_cluster(), false), (renamed().start(), true)] {
        let (mut client, mut waiter) = (server.connect(), server.connect());
        client.say("TB.TAKE k 1 1");
        waiter.send("TB.BTAKE k 1 1 1 60000");
        if waits {
            wait_until("it waits", || client.waiting() == 1);
            server.clock().advance_ms(1000);
        }
        assert_eq!(waiter.receive(), if waits { "[1 0 0 1000]" } else { "[0 0 1000 1000]" });
    }
}

/// Valkey counts such a client among the subscribers, and lets modules block none of them.
#[test]
fn a_resp3_client_with_a_subscription_waits_except_on_valkey() {
    let (server, mut client) = Server::with_clock_and_client();
    let (mut subscriber, (sender, _pushes)) = (server.connect_resp3(), channel());
    subscriber.inner().set_push_sender(sender);
    subscriber.inner().subscribe_resp3("news").unwrap();
    subscriber.say("PING");
    client.say("TB.TAKE k 1 1");
    subscriber.send("TB.BTAKE k 1 1 1 60000");
    let Engine { brand, version } = Engine::under_test();
    let waits = brand != Brand::Valkey || version < (8, 1);
    if waits {
        wait_until("it waits", || client.waiting() == 1);
        server.clock().advance_ms(1000);
    }
    assert_eq!(subscriber.receive(), if waits { "[1 0 0 1000]" } else { "[0 0 1000 1000]" });
}

/// Redis 6 does not note for a client that was blocked what was written for it.
#[test]
fn wait_after_a_grant_counts_the_replicas_that_have_it_except_on_redis_6() {
    let (master, replica) =
        (Server::builder().option("repl-diskless-sync-delay", 0).start(), Server::start());
    begin_to_follow(&replica, &master);
    let (mut client, mut waiter) = (master.connect(), master.connect());
    client.say("TB.HOLD p 1 0 1 60000 a");
    waiter.send("TB.BHOLD p 1 0 1 60000 b 60000");
    wait_until("it waits", || client.waiting() == 1);
    wait_until("the replica has what was written before", || {
        let written = client.count("replication", "master_repl_offset");
        text(&client.say("INFO replication")).contains(&format!("state=online,offset={written},"))
    });
    // The shell's own: bare machines lack the program.
    let stop = Command::new("sh").args(["-c", &format!("kill -STOP {}", replica.process_id())]).status();
    assert!(stop.unwrap().success());
    client.say("TB.SETTLE p 1 0 a 0");
    assert!(waiter.receive().starts_with("[1 "));
    assert_eq!(shown(&waiter.say("WAIT 1 100")), if is_before(7, 0) { "1" } else { "0" });
}

/// Reloading flushes, loads, and tells of both.
#[test]
fn waits_outlive_a_reload() {
    let server = with_append_only_file("yes").start();
    let mut clients = Clients::new(&server);
    clients.play_line("TB.HOLD p 1 0 1 60000 a => [1 0 0 60000]");
    clients.play_line("b: TB.BHOLD p 1 0 1 60000 b 60000");
    for reload in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        clients.main.say(reload);
        assert_eq!(shown(&clients.main.say("TB.HOLDS p")), "[[\"a\" \"1\" 60000]]", "{reload}");
        assert_eq!(clients.main.waiting(), 1, "{reload}");
    }
    clients.play_line("TB.SETTLE p 1 0 a 0 => [1 1 0 0]");
    clients.play("b => [1 0 0 60000]");
}
